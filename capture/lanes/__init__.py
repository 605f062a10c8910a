"""Lanes: the files that rows are written to while training runs, as slots or frames."""
