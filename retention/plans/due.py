"""What is due: a partition, rows of it, or values in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.ingest.spool.gate import may_be_read_yet
from ranklake.lake.query.sql import session
from ranklake.lake.store.files import listed
from ranklake.lake.tables.live_files import files_digest
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.holds.hold import Hold
from ranklake.retention.holds.holds import rules_on
from ranklake.retention.policies.order import cutoff
from ranklake.retention.policies.parts import Group, Parts
from ranklake.retention.proposals.retention_plans import Item

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class DuePartition:
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
    dates = zip(newest["date"].to_pylist(), written.to_pylist(), strict=True)
    return {day: min(day, when.date()) for day, when in dates if day is not None}


def of_day(live: pa.Table, day: date) -> pa.Table:
    """Return the files of a date."""
    return live.filter(pc.equal(live["date"], pa.scalar(day, pa.date32())))


def planned_item(
    contract: "Contract",
    day: date,
    files: pa.Table,
    as_of: date,
    period_days: int,
    *,
    reason: str,
    rule: str,
    **facts: Any,  # noqa: ANN401 - fields of several types
) -> Item:
    """Return files of a partition as an item of a plan: all of their rows and bytes, unless `facts` say otherwise.

    Parameters
    ----------
    files
        Rows of `ranklake.lake.tables.live_files.files`.
    facts
        Further fields of the item.
    """
    until = cutoff(period_days, as_of)
    assert until is not None
    sums = {
        name: int(pc.sum(files[of]).as_py() or 0) for name, of in (("rows", "num_records"), ("bytes", "size_bytes"))
    }
    return Item(
        table=contract.table,
        partition_date=day,
        retention_class=contract.retention,
        period_days=period_days,
        cutoff_date=until,
        files=files.num_rows,
        files_sha256=files_digest(files["path"].to_pylist()),
        reason=reason,
        rule=rule,
        **{**sums, **facts},
    )


def share_of_bytes(files: pa.Table, groups: Mapping[str, Sequence[Group]]) -> int:
    """Return the bytes of some rows of files, by path, as their share of the rows of each."""
    return sum(
        row["size_bytes"] * sum(group.rows for group in groups[row["path"]]) // max(row["num_records"], 1)
        for row in files.select(["path", "size_bytes", "num_records"]).to_pylist()
    )


def by_day(unheld: Parts, holds: Sequence[Hold]) -> Callable[[date], Parts]:
    """Return a function that gives the rules for rows of a date: holds may be about some dates only."""
    known: dict[tuple[str, ...], Parts] = {(): unheld}

    def of(day: date) -> Parts:
        rules = rules_on(holds, day)
        names = tuple(rule.name for rule in rules)
        if names not in known:
            known[names] = Parts(unheld.lake, unheld.contract, unheld.rules, rules, unheld.runs)
        return known[names]

    return of


OF_NOBODY: Final = "quarantine"
"""Class of bytes that belong to no table that is known."""
_ASIDE: Final = 'SELECT sha256, "table", unreadable, date FROM segments WHERE unreadable IS NOT NULL'


def raw_bytes(lake: "Lake") -> Iterator[tuple[str, date, pa.Table]]:
    """Yield what lies in quarantine, by table and by date of the plan that put it there.

    Each with its files: columns path (a digest), size_bytes and date. Bytes that came more than once are as young as
    the last time.
    """
    there = {one.path.rpartition("/")[2]: one.size_bytes for one in listed(lake.fs, lake.path("quarantine"))}
    if not there or delta_table(lake.store, "segments") is None:
        return
    last: dict[str, Mapping[str, Any]] = {}
    context = session(lake, ["segments"], heavy=True)  # what it answers is empty once it is let go
    for row in context.sql(_ASIDE).to_arrow_table().to_pylist():
        sha256 = row["sha256"]
        if sha256 in there and not may_be_read_yet(row["unreadable"]):
            last[sha256] = max(last.get(sha256, row), row, key=lambda row: row["date"])
    parts: dict[tuple[str, date], list[str]] = {}
    for sha256, row in sorted(last.items()):
        parts.setdefault((row["table"], row["date"]), []).append(sha256)
    for (table, day), files_of_day in sorted(parts.items()):
        facts = {
            "path": files_of_day,
            "size_bytes": [there[sha256] for sha256 in files_of_day],
            "date": [day] * len(files_of_day),
        }
        yield table, day, pa.table(facts)
