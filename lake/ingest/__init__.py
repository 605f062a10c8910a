"""Ingest: new segments of the spool become rows of the tables, exactly once."""
