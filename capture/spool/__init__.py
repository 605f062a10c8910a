"""Spool: a process's folder on the local disk, what the files in it say, and whose it is."""
