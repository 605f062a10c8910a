"""A partition, rows or values that are due, and how they become an item of a retention plan."""

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
    """A partition with rows or values that are due.

    Attributes
    ----------
    item
        The item of the plan.
    files
        The files with the rows, as rows of `ranklake.lake.tables.live_files.files`; for raw bytes their digests.
    live
        All files of the partition.
    select_rows
        Takes rows of one of the files; returns a Boolean array that is true for rows to remove. None if all rows are
        removed, or none.
    mask_rows
        Takes rows of one of the files; returns them with masked values. None if rows are removed.
    aggregates
        Takes the number of the plan; returns the aggregates that replace the rows. None if there are none.
    rows_left
        Number of further due rows of the partition, which the next plan will contain.
    """

    item: "Item"
    files: pa.Table
    live: pa.Table
    select_rows: Callable[[pa.Table], pa.Array] | None = None
    mask_rows: Callable[[pa.Table], pa.Table] | None = None
    aggregates: Callable[[int], pa.Table] | None = None
    rows_left: int = 0


def ages(live: pa.Table) -> dict[date, date]:
    """Return, by partition date, the date that counts for the age of its rows.

    This is the partition date, or the date of its newest file if that is earlier. So rows that are dated in the future
    are not kept for ever.
    """
    newest = live.group_by("date").aggregate([("modification_time", "max")])
    written = newest["modification_time_max"].cast(pa.int64()).cast(pa.timestamp("ms"))
    dates = zip(newest["date"].to_pylist(), written.to_pylist(), strict=True)
    return {day: min(day, when.date()) for day, when in dates if day is not None}


def of_day(live: pa.Table, day: date) -> pa.Table:
    """Return the live files of a date."""
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
    """Return a plan's item for files of a partition, with all of their rows and bytes unless `facts` has other numbers.

    Parameters
    ----------
    files
        Rows of `ranklake.lake.tables.live_files.files`.
    facts
        Further fields of the item.
    """
    limit = cutoff(period_days, as_of)
    assert limit is not None
    columns = {"rows": "num_records", "bytes": "size_bytes"}
    sums = {name: int(pc.sum(files[column]).as_py() or 0) for name, column in columns.items()}
    return Item(
        table=contract.table,
        partition_date=day,
        retention_class=contract.retention,
        period_days=period_days,
        cutoff_date=limit,
        files=files.num_rows,
        files_sha256=files_digest(files["path"].to_pylist()),
        reason=reason,
        rule=rule,
        **{**sums, **facts},
    )


def share_of_bytes(files: pa.Table, groups: Mapping[str, Sequence[Group]]) -> int:
    """Return the bytes of groups of rows, in proportion to the rows of their files. `groups` are by path."""
    return sum(
        row["size_bytes"] * sum(group.rows for group in groups[row["path"]]) // max(row["num_records"], 1)
        for row in files.select(["path", "size_bytes", "num_records"]).to_pylist()
    )


def by_day(parts: Parts, holds: Sequence[Hold]) -> Callable[[date], Parts]:
    """Return a function from a date to `parts` with the holds of that date, since a hold may cover only some dates."""
    by_holds: dict[tuple[str, ...], Parts] = {(): parts}

    def parts_of(day: date) -> Parts:
        rules = rules_on(holds, day)
        names = tuple(rule.name for rule in rules)
        if names not in by_holds:
            by_holds[names] = Parts(parts.lake, parts.contract, parts.rules, rules, parts.runs)
        return by_holds[names]

    return parts_of


UNKNOWN_CLASS: Final = "quarantine"
"""Retention class of raw bytes whose table is unknown."""
_UNREADABLE: Final = 'SELECT sha256, "table", unreadable, date FROM segments WHERE unreadable IS NOT NULL'


def raw_bytes(lake: "Lake") -> Iterator[tuple[str, date, pa.Table]]:
    """Yield table, date and files of the raw bytes in quarantine. The date is that of the ingest plan.

    The files are a table with the columns path (a digest), size_bytes and date. Bytes that arrived more than once have
    the date of the last time.
    """
    sizes = {file.path.rpartition("/")[2]: file.size_bytes for file in listed(lake.fs, lake.path("quarantine"))}
    if not sizes or delta_table(lake.store, "segments") is None:
        return
    last: dict[str, Mapping[str, Any]] = {}
    context = session(lake, ["segments"], heavy=True)  # must stay referenced until the result is read
    for row in context.sql(_UNREADABLE).to_arrow_table().to_pylist():
        sha256 = row["sha256"]
        if sha256 in sizes and not may_be_read_yet(row["unreadable"]):
            last[sha256] = max(last.get(sha256, row), row, key=lambda row: row["date"])
    digests: dict[tuple[str, date], list[str]] = {}
    for sha256, row in sorted(last.items()):
        digests.setdefault((row["table"], row["date"]), []).append(sha256)
    for (table, day), paths in sorted(digests.items()):
        facts = {
            "path": paths,
            "size_bytes": [sizes[sha256] for sha256 in paths],
            "date": [day] * len(paths),
        }
        yield table, day, pa.table(facts)
