"""The spool for ingest: lists and reads files that untrusted writers may have written."""
