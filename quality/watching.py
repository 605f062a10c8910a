"""Watches: checks of a partition as a whole, which also read other tables and earlier dates.

A scan calls `watch` for each batch, perhaps on a worker, to summarize it. The driver calls `judge_watched` for one
partition after another in the order of dates, so that each is compared with earlier ones. Facts about other tables and
dates are read when first needed, once per check (`Neighbours`).
"""

import json
from collections.abc import Mapping
from copy import copy
from datetime import date, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.checks.kind import WatchContext
from ranklake.lake.contracts.checks.registry import kind_of
from ranklake.lake.contracts.checks.series import Batch
from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read, read_batches
from ranklake.lake.tables.tables import latest
from ranklake.quality.results import RESULTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranklake.lake.contracts.model import Check, Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.quality.suite import Expectation, Suite
    from ranklake.quality.tally import Partition, Tally

    Watched = tuple[Expectation, Tally, tuple[str, ...]]

_SEGMENT_ROWS: Final = 2_000_000
"""Rows of ``segments`` that are read for the newest times, from the latest dates: about two seconds of reading."""

_SERIES: Final = "scalars"
_BATCH_ROWS: Final = 1_000_000

Measured = dict[date, Mapping[str, float]]


class Neighbours:
    """Facts about the other tables and dates of a lake, for the watches of one check.

    Parameters
    ----------
    now
        The time of the check.
    """

    def __init__(self, lake: "Lake", now: datetime) -> None:
        self._lake, self._now_us = lake, _micros_of(now)
        self.world_sizes = cache(self._world_sizes)
        self.stored_values = cache(self._stored_values)
        self.newest_ts = cache(self._newest_ts)
        self.runs_with_signal = cache(self._runs_with_signal)
        self._volumes: dict[str, Mapping[date, int]] = {}
        self._memory: dict[tuple[str, str], Measured] | None = None

    def at(self, now: datetime) -> "Neighbours":
        """Return a copy for another time that shares the facts which were already read."""
        self._load_history()
        result = copy(self)
        result._now_us = _micros_of(now)  # noqa: SLF001 - same class
        return result

    def of(self, contract: "Contract", part: "Partition", check: "Check") -> WatchContext:
        """Return the facts of one partition for a check."""
        watch = kind_of(check).watch
        uses_history = watch is not None and watch.uses_history
        return WatchContext(
            part.day,
            self._now_us,
            rows=part.rows,
            volumes=self._volumes_of(contract.table) if check.kind == "volume" else {},
            classified_statistics=_classified_statistics(contract, part.files) if check.kind == "protected" else (),
            earlier=self._earlier(contract.table, check.id, part.day) if uses_history else {},
            world_sizes=self.world_sizes,
            stored_values=self.stored_values,
            newest_ts=self.newest_ts,
            runs_with_signal=self.runs_with_signal,
        )

    def set_volumes(self, table: str, volumes: Mapping[date, int]) -> None:
        """Set the number of rows of each date of a table, from a log that was already read."""
        self._volumes[table] = volumes

    def remember(self, table: str, check_id: str, day: date, measured: Mapping[str, float]) -> None:
        """Keep the measurements of a check for the partitions of later dates in the same call."""
        self._load_history().setdefault((table, check_id), {})[day] = measured

    def _earlier(self, table: str, check_id: str, day: date) -> Measured:
        history = self._load_history().get((table, check_id), {})
        return {date_: measured for date_, measured in history.items() if date_ < day}

    def _load_history(self) -> dict[tuple[str, str], Measured]:
        if self._memory is None:
            self._memory = _last_measurements(self._lake)
        return self._memory

    def _world_sizes(self) -> dict[tuple[str, int], int]:
        rows = read(self._lake.tables, self._lake.contracts()["runs"], ["run", "attempt", "world_size"])
        sizes = rows.group_by(["run", "attempt"]).aggregate([("world_size", "max")])
        names = ("run", "attempt", "world_size_max")
        triples = zip(*(sizes[name].to_pylist() for name in names), strict=True)
        return {(run, attempt): size for run, attempt, size in triples if size is not None}

    def _stored_values(self, table: str, column: str) -> frozenset[Any] | None:
        contract = self._lake.contracts().get(table)
        if contract is None or column not in contract:
            return None
        values = pc.unique(read(self._lake.tables, contract, [column])[column]).to_pylist()
        return frozenset(values) if values else None

    def _runs_with_signal(self, signal: str) -> frozenset[str]:
        """Return the runs that have a value of a signal; empty if no table or column has its name."""
        metric = signal if "/" in signal else None
        table, _, column = (f"{_SERIES}.metric" if metric else signal).partition(".")
        contract, handle = self._lake.contracts().get(table), latest(self._lake.tables, table)
        column = column or "run"
        if contract is None or handle is None or not {column, "run"} <= set(contract.names):
            return frozenset()
        runs: set[str] = set()
        names = list(dict.fromkeys(("run", column)))
        for rows in read_batches(
            self._lake.store, contract, files(handle), names, batch_rows=_BATCH_ROWS, dictionaries=True
        ):
            has_value = pc.is_valid(rows[column])
            if metric:
                has_value = pc.fill_null(pc.equal(rows[column].cast(pa.string()), metric), fill_value=False)
            runs.update(pc.unique(rows["run"].filter(has_value).cast(pa.string())).to_pylist())
        return frozenset(runs)

    def _newest_ts(self) -> dict[tuple[str, str], int]:
        contract = packaged("segments")
        handle = latest(self._lake.tables, contract.table)
        if handle is None:
            return {}
        live = files(handle)
        dates: list[date] = []
        rows = 0
        for day in sorted(pc.unique(live["date"]).to_pylist(), reverse=True):
            rows += int(pc.sum(live.filter(pc.equal(live["date"], pa.scalar(day)))["num_records"]).as_py() or 0)
            if dates and rows > _SEGMENT_ROWS:
                break
            dates.append(day)
        segments = read(self._lake.tables, contract, ["table", "run", "ts_max"], partitions=dates)
        latest_times = segments.group_by(["table", "run"]).aggregate([("ts_max", "max")])
        triples = zip(
            latest_times["table"].to_pylist(),
            latest_times["run"].to_pylist(),
            _micros(latest_times["ts_max_max"]),
            strict=True,
        )
        return {(table, run): newest for table, run, newest in triples if newest is not None}

    def _volumes_of(self, table: str) -> Mapping[date, int]:
        if table not in self._volumes:
            handle = latest(self._lake.tables, table)
            live = None if handle is None else files(handle).group_by(["date"]).aggregate([("num_records", "sum")])
            days, rows = ([], []) if live is None else (live[name].to_pylist() for name in ("date", "num_records_sum"))
            self.set_volumes(table, dict(zip(days, rows, strict=True)))
        return self._volumes[table]


def _micros_of(when: datetime) -> int:
    return int(when.timestamp() * 1e6)


def _micros(column: pa.ChunkedArray) -> list[int | None]:
    return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


def _classified_statistics(contract: "Contract", live: pa.Table) -> tuple[str, ...]:
    """Return the classified columns with a minimum or maximum in the Delta log of these files."""
    names = {column.name for column in contract.columns if column.class_ != "operational"}
    logged = {
        name.partition(".")[2]
        for name in live.column_names
        if name.startswith(("min.", "max.")) and live[name].null_count < live.num_rows
    }
    return tuple(name for name in contract.names if name in names & logged)


def _last_measurements(lake: "Lake") -> dict[tuple[str, str], Measured]:
    """Return the latest measurements of each date, by table and check."""
    names = ["table", "check_id", "partition_date", "measured", "ts"]
    rows = read(lake.tables, lake.contracts()[RESULTS], names)
    rows = rows.filter(pc.is_valid(rows["measured"])).sort_by("ts")
    by_check: dict[tuple[str, str], Measured] = {}
    for row in rows.to_pylist():
        by_check.setdefault((row["table"], row["check_id"]), {})[row["partition_date"]] = json.loads(row["measured"])
    return by_check


_FORMAT_CHECKS: Final = ("matches", "in_set")
"""Kinds of checks that fix the format of a text, so that it cannot contain anything else."""


def watched_columns(contract: "Contract", expectation: "Expectation") -> tuple[str, ...]:
    """Return the columns that a watch reads and the table has."""
    assert expectation.watch is not None, f"{expectation.check.kind} watches nothing"
    names = {*expectation.check.columns, *expectation.check.by, *expectation.watch.extra_columns}
    if expectation.watch.reads_text:
        names |= {
            column.name
            for column in contract.columns
            if column.type == "string"
            and column.class_ == "operational"
            and not any(check.kind in _FORMAT_CHECKS for check in column.checks)
        }
    return tuple(name for name in contract.names if name in names)


def watch(rows: "pa.Table", watched: "Sequence[Watched]") -> None:
    """Summarize a batch of rows for each watch."""
    batch = Batch(rows)
    for expectation, tally, names in watched:
        if tally.error or expectation.watch is None or not names:
            continue
        seen = Batch(rows.select(names)) if expectation.watch.reads_text else batch
        try:
            part = expectation.watch.summarize(expectation.check, seen)
        except Exception as error:  # noqa: BLE001 - other watches must still run; no message: it may quote a value
            tally.error = f"could not be computed ({type(error).__name__})"
        else:
            if part is not None:
                tally.parts.append(part)


def judge_watched(
    contract: "Contract", suite: "Suite", part: "Partition", tallies: "list[Tally]", neighbours: "Neighbours"
) -> None:
    """Evaluate the watches of a partition by the summaries of its batches, and drop these."""
    for expectation, tally in zip(suite.expectations, tallies, strict=True):
        if expectation.watch is None or tally.absent or tally.error:
            continue
        try:
            result = expectation.watch.evaluate(
                expectation.check, tally.parts, neighbours.of(contract, part, expectation.check)
            )
        except Exception as error:  # noqa: BLE001 - as above
            tally.error = f"could not be computed ({type(error).__name__})"
            continue
        finally:
            tally.parts = []
        tally.checked, tally.failed, tally.unknown = result.checked, result.failed, result.unknown
        tally.expected, tally.measured, tally.again = result.expected, result.measured, result.recheck
        tally.seen = [result.observed] if result.observed and not expectation.classified else []
        if result.measured is not None:
            neighbours.remember(contract.table, expectation.check.id, part.day, result.measured)
