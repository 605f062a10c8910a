"""What is due: a partition, rows of it, or values in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.retention.hold import Hold
from ranklake.retention.holds import rules_on
from ranklake.retention.parts import Parts

if TYPE_CHECKING:
    from ranklake.retention.proposals.retention_plans import Item


@dataclass(frozen=True, slots=True)
class Due:
    """A partition that is due, rows of it, or values of its rows.

    Attributes
    ----------
    item
        As it is planned.
    files
        Those that hold the rows: rows of `ranklake.lake.tables.live_files.files`; of raw bytes digests.
    live
        All files of the partition.
    goes
        Given rows of one of the files, returns true where one goes; None where all do, or none does.
    masked
        Given rows of one of the files, returns as many with values masked; None where rows go.
    aggregates
        Given the number of the plan that takes the rows, returns what they become; None where they become nothing.
    rows_left
        Rows of the partition that are due as well, and wait for the next plan.
    """

    item: "Item"
    files: pa.Table
    live: pa.Table
    goes: Callable[[pa.Table], pa.Array] | None = None
    masked: Callable[[pa.Table], pa.Table] | None = None
    aggregates: Callable[[int], pa.Table] | None = None
    rows_left: int = 0


def ages(live: pa.Table) -> dict[date, date]:
    """Return how old the rows of each date are: as old as they say, or as the newest file that they lie in.

    Whichever is more: who dates them in the future does not keep them for ever.
    """
    newest = live.group_by("date").aggregate([("modification_time", "max")])
    written = newest["modification_time_max"].cast(pa.int64()).cast(pa.timestamp("ms"))
    told = zip(newest["date"].to_pylist(), written.to_pylist(), strict=True)
    return {day: min(day, when.date()) for day, when in told if day is not None}


def by_day(unheld: Parts, holds: Sequence[Hold]) -> Callable[[date], Parts]:
    """Return what gives the rules for rows of a date: holds may be about some dates only."""
    known: dict[tuple[str, ...], Parts] = {(): unheld}

    def of(day: date) -> Parts:
        rules = rules_on(holds, day)
        names = tuple(rule.name for rule in rules)
        if names not in known:
            known[names] = Parts(unheld.lake, unheld.contract, unheld.rules, rules, unheld.runs)
        return known[names]

    return of
