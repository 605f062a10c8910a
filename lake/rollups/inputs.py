"""The current inputs of rollups, and their digests.

The digest of a partition is computed from the names of its files, since a file never changes. A rollup is due if a
digest differs from the one in `lineage`.

A partition that retention removed does not count as changed. Results that were computed from it are kept, even if late
rows are added to the partition.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.query.scan import NO_FILES, live_files
from ranklake.lake.store.governance import held_partitions
from ranklake.lake.tables.commit import number_of
from ranklake.lake.tables.live_files import files, files_digest
from ranklake.lake.tables.read import read, read_some
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

WHOLE: Final = ""
NOTHING: Final = ""
"""Fingerprint of a partition without files."""

_OUTCOMES: Final = ("application", "cancellation")
ABSENT: Final = -1
"""Version of a table that was never written."""

Key = tuple[str, str]
"""Input table and its partition (``date=2026-01-31``)."""


@dataclass(frozen=True)
class Snapshot:
    """A table at one version.

    Attributes
    ----------
    version
        Delta version; `ABSENT` if the table was never written.
    number
        Transaction number, if it was requested; 0 if the table was never written.
    digests
        Digest of each date that has files.
    live
        Live files with the log's statistics, as `ranklake.lake.tables.live_files.files` returns them.
    """

    table: str
    version: int = ABSENT
    number: int = 0
    digests: Mapping[date, str] = field(default_factory=dict)
    live: pa.Table | None = None

    def files(self, days: Collection[date] | None = None) -> pa.Table:
        """Return the live files of some dates or all, as `ranklake.lake.query.scan.live_files` does."""
        if self.live is None:
            return live_files(None)
        if days is None:
            return self.live
        return of_days(self.live, days)

    def of(self, days: Collection[date], *columns: str) -> "Snapshot":
        """Return the part for some dates, with only the statistics of some columns."""
        digests = {day: digest for day, digest in self.digests.items() if day in days}
        return replace(self, digests=digests, live=None if self.live is None else self.files(days)).slim(*columns)

    def slim(self, *columns: str) -> "Snapshot":
        """Return the snapshot with only the statistics of some columns, to send it to another process."""
        return replace(self, live=None if self.live is None else slim(self.live, *columns))

    def files_of(self, runs: Collection[str]) -> pa.Table:
        """Return the live files that may have rows of some runs, by their statistics in the Delta log."""
        live = self.files()
        if not {"min.run", "max.run"} <= set(live.column_names):
            return live
        names = np.array(sorted(runs), dtype=object)
        low, high = (live[name].to_numpy(zero_copy_only=False) for name in ("min.run", "max.run"))
        bounded = live["min.run"].is_valid().to_numpy() & live["max.run"].is_valid().to_numpy()
        between = np.ones(live.num_rows, bool)
        between[bounded] = np.searchsorted(names, low[bounded], "left") < np.searchsorted(names, high[bounded], "right")
        return live.filter(pa.array(between))

    def rows(
        self,
        lake: "Lake",
        columns: Sequence[str] | None = None,
        days: Collection[date] | None = None,
        *,
        verify: bool = False,
    ) -> pa.Table:
        """Return rows of the table at this version, with its contract's Arrow types; by default all.

        With `verify`, the digests of files are checked; it is needed for rows that are rewritten.
        """
        known = lake.contract(self.table)
        empty = arrow_schema(known).empty_table()
        parts = [rows for _, rows in read_some(lake.tables, known, self.files(days), columns, verify=verify)]
        return pa.concat_tables([empty if columns is None else empty.select(columns), *parts])

    def extents(self, begin: Sequence[str], end: Sequence[str], most: timedelta) -> dict[date, tuple[date, date]]:
        """Return the first and last date of the times in each date's rows; see `begin` and `end` of `Input`.

        Times more than `most` from a row's date are limited to that.
        """
        reach: dict[date, tuple[date, date]] = {}
        for row in [] if self.live is None else self.live.to_pylist():
            low, high = reach.get(row["date"], (date.max, date.min))
            first, last = _bound(row, begin, "min", most), _bound(row, end, "max", most)
            reach[row["date"]] = (min(low, first), max(high, last))
        return reach

    def begin_days(self, lake: "Lake", begin: Sequence[str], days: Collection[date], most: timedelta) -> set[date]:
        """Return the dates on which the rows of some dates begin, by reading the rows; see `extents`."""
        rows = self.rows(lake, ["ts", *begin], days)
        first = rows["ts"]
        for name in reversed(begin):
            apart_us = pc.abs_checked(pc.subtract(rows[name].cast(pa.int64()), rows["ts"].cast(pa.int64())))
            is_near = pc.less_equal(apart_us, most // timedelta(microseconds=1))
            first = pc.if_else(pc.fill_null(is_near, fill_value=False), rows[name], first)
        return set(pc.unique(first.cast(pa.date32())).to_pylist())


def of_days(live: pa.Table, days: Collection[date]) -> pa.Table:
    """Return the files of some dates."""
    return live.filter(pc.is_in(live["date"], value_set=pa.array(sorted(days), pa.date32())))


def begin_of(day: date) -> datetime:
    """Return the begin of a date, UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def hours_around(day: date) -> tuple[datetime, datetime]:
    """Return the begin of the hour before a date, and the end of the hour after it, UTC."""
    begin = begin_of(day)
    return begin - timedelta(hours=1), begin + timedelta(hours=25)


def of_hours(live: pa.Table, day: date) -> pa.Table:
    """Return the files of a date, and the files that may have rows of one hour before or after it."""
    if not {"min.ts", "max.ts"} <= set(live.column_names):
        return live
    begin, end = (pa.scalar(moment, pa.timestamp("us", tz="UTC")) for moment in hours_around(day))
    is_near = pc.and_(pc.greater_equal(live["max.ts"], begin), pc.less(live["min.ts"], end))
    is_of_day = pc.equal(live["date"], pa.scalar(day, pa.date32()))
    return live.filter(pc.or_(is_of_day, pc.fill_null(is_near, fill_value=True)))


def by_only_run(live: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Split files into files with rows of only one run (``min.run``), by the Delta log, and other files.

    Most files have only one run, since ingest sorts by run. Reading their rows to find the runs would take longer than
    all other work for finding due runs.
    """
    if not {"min.run", "max.run"} <= set(live.column_names):
        nothing = pa.chunked_array([pa.array([], pa.string())])
        return live.slice(0, 0).append_column("min.run", nothing), live
    alone = pc.fill_null(pc.equal(live["min.run"], live["max.run"]), fill_value=False)
    return live.filter(alone), live.filter(pc.invert(alone))


def slim(live: pa.Table, *columns: str) -> pa.Table:
    """Return files with only the statistics of some columns."""
    kept = {*NO_FILES.column_names, *(f"{side}.{name}" for name in columns for side in ("min", "max"))}
    return live.select([name for name in live.column_names if name in kept]).combine_chunks()


def snapshot(tables: "Tables", table: str, *, numbered: bool = False) -> Snapshot:
    """Return a snapshot of a table's current version.

    With `numbered`, it has the transaction number, which commits need. Reading it takes as long as the rest.
    """
    handle = latest(tables, table)
    if handle is None:
        return Snapshot(table)
    return replace(snapshot_of(handle, table), number=number_of(handle) if numbered else 0)


def snapshot_of(handle: "DeltaTable", table: str) -> Snapshot:
    """Return a snapshot of a table at a handle's version, without transaction number."""
    named: dict[date, list[str]] = defaultdict(list)
    live = files(handle)
    for row in live.select(["path", "date"]).to_pylist():
        named[row["date"]].append(row["path"])
    digests = {day: files_digest(paths) for day, paths in named.items()}
    return Snapshot(table, handle.version(), digests=digests, live=live)


def _bound(row: Mapping[str, Any], columns: Sequence[str], side: Literal["min", "max"], most: timedelta) -> date:
    """Return the first or last date of a file's rows, by the statistics of the columns in order of preference."""
    day: date = row["date"]
    bounds = []
    for name in columns:
        value = row.get(f"{side}.{name}")
        if isinstance(value, datetime):
            bounds.append(min(max(value.date(), day - most), day + most))
            other = row.get(f"{'max' if side == 'min' else 'min'}.{name}")
            within = isinstance(other, datetime) and all(abs(one.date() - day) < most for one in (value, other))
            if within and row.get(f"null_count.{name}") == 0:
                return min(bounds) if side == "min" else max(bounds)
    return min([*bounds, day]) if side == "min" else max([*bounds, day])


def partition(day: date) -> str:
    """Return the name of a date's partition, such as ``date=2026-01-31``."""
    return f"date={day.isoformat()}"


def day_of(name: str) -> date:
    """Return the date in a partition's name."""
    return date.fromisoformat(name.removeprefix("date="))


def combine_days(snapshots: Snapshot, until: date) -> str:
    """Return one digest for all dates of a table up to `until`, so that lineage needs only one row for them."""
    return files_digest(f"{day} {digest}" for day, digest in snapshots.digests.items() if day <= until)


class InputTables:
    """A cache of snapshots for one round of rollups.

    All rollups of a round see an input at the same version, and an object store needs fewer requests. After a rollup
    has written its table, `invalidate` must be called.

    Attributes
    ----------
    since_plan
        The lake's last finished plan before any table was read.
    """

    def __init__(self, lake: "Lake") -> None:
        self.lake, self.since_plan = lake, last_finished(lake.tables)
        self._snapshots: dict[str, Snapshot] = {}
        self._numbered = set[str]()

    def snapshot(self, name: str) -> Snapshot:
        """Return the snapshot of a table from its first use in the round."""
        if name not in self._snapshots:
            self._snapshots[name] = snapshot(self.lake.tables, name)
        return self._snapshots[name]

    def output(self, name: str) -> Snapshot:
        """Return a snapshot of a rollup's own table, with the transaction number, which commits need."""
        if name not in self._numbered:
            self._snapshots[name] = snapshot(self.lake.tables, name, numbered=True)
            self._numbered.add(name)
        return self._snapshots[name]

    def invalidate(self, name: str) -> None:
        """Drop a table from the cache."""
        self._snapshots.pop(name, None)
        self._numbered.discard(name)

    @cached_property
    def kept_back(self) -> set[Key]:
        """Partitions that are held back from rollups because a check failed on them."""
        return {(table, partition(day)) for table, day in held_partitions(self.lake.tables)}

    @cached_property
    def retired(self) -> set[Key]:
        """Partitions of which retention plans removed files, except for cancelled plans."""
        columns = ["retention_plan", "row_kind", "table", "partition_date", "rows", "part_sha256"]
        rows = read(self.lake.tables, contract("retention_plans"), columns).to_pylist()
        by_kind = {kind: {row["retention_plan"] for row in rows if row["row_kind"] == kind} for kind in _OUTCOMES}
        applied = by_kind["application"] - by_kind["cancellation"]
        return {
            (row["table"], partition(row["partition_date"]))
            for row in rows
            if row["row_kind"] == "item"
            and row["retention_plan"] in applied
            and not (row["part_sha256"] is not None and row["rows"] == 0)  # masked: what was computed follows
        }
