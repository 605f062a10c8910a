"""Steps: the timing of training: steps, phases, waits, collectives, profiles, FLOPs."""
