"""Logs: log records and standard error, as rows."""
