"""Lanes: the files that rows are written to while training runs, one slot or frame a row."""
