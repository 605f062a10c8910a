"""Detectors of faults in tables: declarations with algorithms that get the rows of one subject as arrays."""
