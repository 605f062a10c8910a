"""The documented import of `pseudonym`, which is defined in `ranklake.lake.rollups.lookups`."""

from ranklake.lake.rollups.lookups import pseudonym

__all__ = ["pseudonym"]
