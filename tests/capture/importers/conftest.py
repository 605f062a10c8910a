"""A lake and a spool beside it."""

from lake_fixtures import lake, spool

__all__ = ["lake", "spool"]
