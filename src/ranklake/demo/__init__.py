"""The demo: a small real training run on two ranks, recorded, and what ranklake makes of it."""
