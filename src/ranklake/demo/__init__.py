"""The demo: records a small real training run on two ranks, and summarizes the resulting tables."""
