"""Errors that keep dates from being replayed."""

from collections.abc import Iterable, Sequence
from datetime import date

from ranklake.errors import RanklakeError


class ReplayError(RanklakeError):
    """A replay that cannot be done, or would not give the rows that were there; nothing was changed."""


class MissingSegmentsError(ReplayError):
    """Segments that the partitions were made of are no longer in the spool.

    Attributes
    ----------
    segments
        How many.
    days
        Dates that need them.
    """

    def __init__(self, table: str, segments: int, days: Iterable[date]) -> None:
        self.segments, self.days = segments, tuple(sorted(days))
        what = f"{segments} segments are no longer in the spool, for {shown_days(self.days)}"
        hint = "replay other dates, or bring the segments back; ingest keeps them for --keep-days"
        super().__init__(what, where=table, hint=hint)


def shown_days(days: Sequence[date]) -> str:
    """Return dates, in order, as errors show them: the first and the last."""
    return f"{days[0]}" if len(days) == 1 else f"{days[0]} to {days[-1]}"
