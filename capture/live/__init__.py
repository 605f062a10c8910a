"""A run that still records, read from the local spool beside it: nothing is written, and its process is not asked."""
