"""The documented place of `pseudonym`, which lives in `ranklake.lake.rollups.lookups`."""

from ranklake.lake.rollups.lookups import pseudonym

__all__ = ["pseudonym"]
