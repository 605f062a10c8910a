"""What people look at: runs, fleet, on-call, catalog, each number with its SQL."""
