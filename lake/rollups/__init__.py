"""Rollups: derived tables, each computed by an SQL file or a module of this folder.

`registry` lists them, `evaluate` computes one, `inputs` finds changed input partitions, and `runner` recomputes the
dates that depend on these.
"""
