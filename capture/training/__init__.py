"""Training: what a training loop talks to."""
