"""The documented place of `pseudonym`, which lives in `ranklake.lake.rollups.pseudonyms`."""

from ranklake.lake.rollups.pseudonyms import pseudonym

__all__ = ["pseudonym"]
