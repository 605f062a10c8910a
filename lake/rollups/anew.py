"""Computes dates of derived tables for a migration, which commits them together with its change of columns.

    live dates ─▶ inputs exist, are sound, are not held back? ─▶ compute, write files without a commit ─▶ the migration
                                └─ no ─▶ left out: the migration rewrites their rows by its steps

No lineage is written. So the next round of rollups computes these dates again, because the code has changed, and finds
the result unchanged.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final

from ranklake.lake.migrations.due import ComputedDate
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import session
from ranklake.lake.rollups.due import depends_on, due_days, due_runs
from ranklake.lake.rollups.evaluate import evaluate_runs
from ranklake.lake.rollups.inputs import NOTHING, InputTables, Key, day_of, partition
from ranklake.lake.rollups.lineage import Lineage
from ranklake.lake.rollups.named import rollups_of
from ranklake.lake.rollups.tasks import ComputeResult, by_day, is_stored
from ranklake.lake.rollups.work import Work
from ranklake.lake.tables.live_files import DamagedFileError
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.table_schema import added_version_of, as_read, version_of
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    import pyarrow as pa

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.rollups.declaration import Rollup
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.tables.live_files import DataFile

_SPAN: Final = frozenset({"run", "date", "ts", "end_ts"})
"""Columns that a table of whole runs needs, to find the rows of a run."""


class FromInputs:
    """Computes dates of derived tables with the rollups of this release and of the lake's overlay."""

    def place(self, lake: "Lake", table: str) -> int:
        """Return the position of a table in the order of computation, from 1; 0 if no rollup computes it."""
        return 1 + next((at for at, one in enumerate(_rollups(lake)) if one.name == table), -1)

    def anew(
        self, lake: "Lake", target: "Contract", days: Collection[date], workers: "Workers"
    ) -> dict[date, ComputedDate]:
        """Compute dates of a table with a contract and write their rows, without a commit.

        Dates that cannot be computed are missing from the result.
        """
        asked = _Request.of(lake, target)
        return {} if asked is None else asked.computed(days, workers)

    def standing(self, lake: "Lake", target: "Contract", days: Mapping[date, str]) -> dict[date, bool]:
        """Compute dates again; return by date whether the table has exactly the computed rows."""
        asked = _Request.of(lake, target)
        return {} if asked is None else asked.standing(days)


def _rollups(lake: "Lake") -> "list[Rollup]":
    return list(rollups_of(lake))


def _digest_of(inputs: Sequence[tuple[str, ...]]) -> str:
    """Return one digest for all input partitions."""
    return hashlib.sha256(json.dumps(sorted(inputs)).encode()).hexdigest()


class _Request:
    """A rollup with snapshots of its inputs and of its table."""

    def __init__(self, lake: "Lake", rollup: "Rollup") -> None:
        self.lake, self.rollup, self.tables = lake, rollup, InputTables(lake)
        self.inputs = {name: self.tables.snapshot(name) for name in rollup.tables}
        self.output = self.tables.output(rollup.name)

    @classmethod
    def of(cls, lake: "Lake", target: "Contract") -> "_Request | None":
        """Return the request for a table; None if this release does not compute the table with this contract."""
        rollup = next((one for one in _rollups(lake) if one.name == target.table), None)
        if rollup is None or rollup.contract.version != target.version:
            return None
        asked = cls(lake, rollup)
        return asked if all(map(asked.is_fit, rollup.tables)) else None

    def is_fit(self, name: str) -> bool:
        """Whether an input table has the contract's current version, which the rollup's query needs."""
        handle, wanted = latest(self.lake.tables, name), self.lake.contract(name)
        if handle is None or wanted.overlay is not None:
            return True
        versions = max(version_of(handle), 1), added_version_of(handle)
        return versions == (wanted.version, wanted.added_version)

    def computed(self, days: Collection[date], workers: "Workers") -> dict[date, ComputedDate]:
        """Compute dates and write their rows; return the written dates."""
        if self.rollup.scope == "run":
            of_whole_runs = self.of_runs(days)
            number = self.output.number + 1
            files = {
                day: append_files(self.lake.store, self.rollup.contract, rows, number)
                for day, rows in of_whole_runs.items()
            }
        else:
            work = _WrittenDates(self, workers)
            work.begin_days(self.due(days))
            work.finish()
            files = work.files
        inputs = self.digests(days)
        return {day: ComputedDate(tuple(some), inputs[day]) for day, some in files.items() if some}

    def standing(self, days: Mapping[date, str]) -> dict[date, bool]:
        """Compute the dates whose inputs have the given digests; return by date whether the result is unchanged."""
        now = self.digests(days)
        same = {day for day, digest in days.items() if now.get(day) == digest}
        if self.rollup.scope == "run":
            again = self.of_runs(same)
            return {
                day: is_stored(self.lake, self.rollup.contract, self.output, day, rows) for day, rows in again.items()
            }
        work = _WrittenDates(self, InProcess(), anyway=False)
        work.begin_days(self.due(same))
        work.finish()
        return {day: day not in work.replaced for day in work.days}

    def due(self, days: Collection[date]) -> dict[date, dict[Key, str]]:
        """Return dates of a partition rollup with their inputs, without dates that have none or have lost some."""
        gone = self.tables.retired
        barred = gone | self.tables.kept_back
        every = due_days(self.lake, self.rollup, self.inputs, self.output, {}, gone)
        return {
            day: inputs
            for day, inputs in every.items()
            if day in days
            and any(digest != NOTHING for digest in inputs.values())
            and (self.rollup.name, partition(day)) not in gone
            and not depends_on(self.rollup, day, barred)
        }

    def digests(self, days: Collection[date]) -> dict[date, str]:
        """Return a digest of each date's inputs."""
        if self.rollup.scope == "run":
            every = [
                (name, str(day), digest) for name, one in self.inputs.items() for day, digest in one.digests.items()
            ]
            return dict.fromkeys(days, _digest_of(every))
        return {
            day: _digest_of([(*key, digest) for key, digest in some.items()]) for day, some in self.due(days).items()
        }

    def of_runs(self, days: Collection[date]) -> "dict[date, pa.Table]":
        """Compute dates of a run rollup for which all runs with rows on them can be computed; return rows by date.

        Dates of a run that would get rows on a date where it has none now are left out, since a date is replaced as a
        whole and may have rows of other runs.
        """
        held_by = as_read(latest(self.lake.tables, self.rollup.name), self.rollup.contract)
        if _SPAN - set(held_by.names) or _SPAN - set(self.rollup.contract.names):
            return {}
        try:
            due = due_runs(
                self.lake, self.rollup, self.inputs, self.output, {}, self.tables.retired, self.tables.kept_back
            )
        except DamagedFileError:
            return {}
        if due is None or not due.starts:
            return {}
        live = {name: one.files_of(due.starts) for name, one in self.inputs.items()}
        rows = evaluate_runs(session(self.lake, self.rollup.tables, live=live), self.rollup, due.starts)
        now = _dates(rows.select(["run", "date"]).to_pylist())
        parts = [some for _, some in read_some(self.lake.tables, held_by, self.output.files(), ["run", "date"])]
        then = _dates([row for some in parts for row in some.to_pylist()])
        still = {run for run, dates in then.items() if run in due.starts and now.get(run, set()) <= dates}
        may = {day for day in days if all(run in still for run, dates in then.items() if day in dates)}
        moved = {day for run, dates in now.items() if not dates <= then.get(run, set()) for day in dates}
        rows_by_day = by_day(rows, may - moved)
        return {day: some for day, some in rows_by_day.items() if some.num_rows}


def _dates(rows: Sequence[Mapping[str, object]]) -> dict[str, set[date]]:
    dates: dict[str, set[date]] = defaultdict(set)
    for row in rows:
        dates[str(row["run"])].add(row["date"])  # type: ignore[arg-type]
    return dates


class _WrittenDates(Work):
    """Computes and writes dates without a commit: all dates, or with `anyway` False only those that changed."""

    def __init__(self, asked: _Request, crew: "Workers", *, anyway: bool = True) -> None:
        lineage = Lineage(asked.lake.tables)
        read = asked.rollup, asked.inputs, asked.output
        super().__init__(asked.lake, *read, lineage, crew, since_plan=asked.tables.since_plan, anyway=anyway)
        self.files: dict[date, list[DataFile]] = {}
        self.days: set[date] = set()

    def _commit(self, computed: Sequence[ComputeResult]) -> None:
        for item in computed:
            self.days |= {day_of(name) for name in item.state}
            self.replaced += item.replaced
            for file in item.files:
                self.files.setdefault(file.partition, []).append(file)
