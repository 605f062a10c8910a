"""Live: read a run that still records from the local spool, without writing and without involving its process."""
