"""Replay: partitions of a table built again from what they came from."""
