"""Facts for people: runs, fleet, on-call, catalog; each number has its SQL."""
