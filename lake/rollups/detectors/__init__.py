"""Detectors over the tables: each a declaration with its algorithm, which gets the rows of one subject as arrays."""
