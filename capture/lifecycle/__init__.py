"""Lifecycle: a run's signs of life, its failures, its preemption and its end."""
