"""Lifecycle: heartbeats, failures, preemption and the end of a run."""
