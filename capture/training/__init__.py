"""Training: the interface for training loops."""
