"""Paths of data files in a table's folder."""

from typing import Final

DATA_PATH: Final = r"date=[0-9]{4,}-[0-9]{2}-[0-9]{2}/[A-Za-z0-9][A-Za-z0-9._~-]*\.parquet"
"""Pattern of a data file's path, relative to its table's folder: nothing in it leads elsewhere, nor is an escape."""
