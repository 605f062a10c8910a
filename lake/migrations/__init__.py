"""Numbered migrations: each converts the stored rows of a table to the next version of its contract."""
