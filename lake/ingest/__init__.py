"""Ingest: stores the rows of new segments in the tables, exactly once."""
