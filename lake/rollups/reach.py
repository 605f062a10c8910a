"""Which dates of an input an output date of a rollup depends on."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

Reach = Literal["day", "eve", "days", "until", "over", "run"]


@dataclass(frozen=True, slots=True)
class Input:
    """A table that a rollup reads.

    Attributes
    ----------
    table
        Its name.
    reach
        Which dates of it an output date depends on: that ``day``; ``eve``, with the day before; ``days``, with
        the day before and the day after; ``until``, that day and all before; ``over``, those of which a row's
        time goes over it, as the statistics in the Delta log have it; ``run``, whatever dates the runs have
        that began on the output date.
    begin, end
        With ``over``: columns that a row's time begins and ends with; where the first is NULL or more than `MAX_DAYS`
        from the row's date, the next one, at last the date.
    """

    table: str
    reach: Reach
    begin: tuple[str, ...] = ()
    end: tuple[str, ...] = ()

    def days(self, day: date) -> tuple[date, ...] | None:
        """Return the dates of the table that an output date depends on; None where they are not bounded."""
        around = {"day": (0,), "eve": (-1, 0), "days": (-1, 0, 1)}.get(self.reach)
        return None if around is None else tuple(day + timedelta(days=offset) for offset in around)
