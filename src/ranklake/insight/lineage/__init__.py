"""Lineage of numbers: computations, columns, data files, segments; and their uses."""
