"""Maintenance of a lake. None of it changes the rows of a table.

`compaction` merges small files, `vacuum` deletes files that no table needs, and `run` calls both, cleans up the Delta
transaction logs, and verifies every data file if asked.
"""
