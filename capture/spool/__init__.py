"""Spool: the folder of a process on the local disk, its files, and its owner."""
