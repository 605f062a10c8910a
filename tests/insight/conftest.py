"""A lake and a spool beside it."""

from changed_contracts import changed
from lake_fixtures import lake, spool

__all__ = ["changed", "lake", "spool"]
