"""Steps: what takes how long: steps, phases, waits, collectives, profiles, FLOPs."""
