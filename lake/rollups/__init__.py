"""Rollups: derived tables, each made by one SQL file of this folder.

`registry` lists them, `evaluate` runs one over given tables, `inputs` tells what changed, `runner` recomputes that.
"""
