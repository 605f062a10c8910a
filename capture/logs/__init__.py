"""Logs: record log lines, standard output and standard error as rows."""
