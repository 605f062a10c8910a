"""Replay: partitions of a table built anew from what they came from."""
