"""Bringing the rollups up to date: compute what is due, replace those partitions, write down what they came from."""

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.commit import replace_partitions
from ranklake.lake.contracts.load import contract
from ranklake.lake.integrity import Damage, DamagedFileError, damaged
from ranklake.lake.query import session
from ranklake.lake.rollups.due import Due, due_days, due_runs, reaches
from ranklake.lake.rollups.evaluate import evaluate_day, evaluate_runs
from ranklake.lake.rollups.inputs import ABSENT, Key, Snapshot, Tables, day_of, partition, record
from ranklake.lake.rollups.pieces import AT_ONCE, WHOLE_RANGE, Range, ranges
from ranklake.lake.rollups.registry import Rollup, chosen

if TYPE_CHECKING:
    from ranklake.lake.store import Lake

BATCH_ROWS: Final = 2_000_000
"""Rows after which computed dates are committed, so that memory does not grow with the number of dates."""


@dataclass(frozen=True, slots=True)
class RollupResult:
    """What happened to one rollup.

    Attributes
    ----------
    name
        Of the rollup and its table.
    partitions
        Dates (ISO) that were replaced; empty if nothing had changed.
    computed
        Dates that were due. Those that came out as they were are not replaced.
    rows
        Rows in the replaced partitions.
    version
        Delta version of the table afterwards; None where there is none.
    seconds
        How long it took.
    damaged
        Files that it would have read and that are not what was written. What depends on them stays as it was, and due.
    """

    name: str
    partitions: tuple[str, ...]
    computed: int
    rows: int
    version: int | None
    seconds: float
    damaged: tuple[Damage, ...] = ()


def run_rollups(
    lake: "Lake",
    names: Iterable[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    full: bool = False,
) -> list[RollupResult]:
    """Recompute the partitions whose inputs or code changed, of the named rollups and those that they read.

    Parameters
    ----------
    names
        Rollups; default all.
    progress
        Called with (rollups done, rollups in all).
    full
        Compute everything anew, whatever lineage says. The result is the same.

    All rollups see an input as of one version. Raises `UnknownRollupError`, and `LostRaceError` if another
    process changes the same table meanwhile. Rollups before the failing one stay committed; running again goes on.
    """
    rollups = chosen(names, lake.prices)
    results = []
    tables = Tables(lake)
    for done, rollup in enumerate(rollups):
        if progress:
            progress(done, len(rollups))
        results.append(_bring_up_to_date(tables, rollup, full=full))
    if progress:
        progress(len(rollups), len(rollups))
    return results


def _bring_up_to_date(tables: Tables, rollup: Rollup, *, full: bool) -> RollupResult:
    began = time.monotonic()
    lake = tables.lake
    inputs = {name: tables.snapshot(name) for name in rollup.tables}
    output = tables.snapshot(rollup.name)
    state = {} if full else tables.recorded(rollup, output.version)
    work = _Work(lake, rollup, inputs, output)
    if rollup.scope == "partition":
        work.days(due_days(rollup, inputs, output, state, tables.retired))
    else:
        try:
            work.runs(due_runs(lake, rollup, inputs, output, state, tables.retired))
        except DamagedFileError as error:
            work.damaged += error.damage
    if work.version != output.version:
        tables.changed(rollup.name)
    return RollupResult(
        rollup.name,
        tuple(sorted(day.isoformat() for day in work.replaced)),
        work.computed,
        work.rows,
        None if work.version == ABSENT else work.version,
        round(time.monotonic() - began, 3),
        tuple(dict.fromkeys(work.damaged)),
    )


def recompute(
    lake: "Lake", name: str, days: Collection[date], *, dry_run: bool = False
) -> tuple[list[date], list[date]]:
    """Compute partitions of one rollup from its inputs as they are and replace them, whatever lineage says.

    Parameters
    ----------
    days
        Output dates; of a rollup of whole runs, the runs that began on them.
    dry_run
        Only say which.

    Returns the dates that were replaced, and those that stay as they are because retention took what they were, or a
    run on them was, computed from. Raises as `run_rollups`; inputs that are rollups themselves are taken as they are.
    Raises `DamagedFileError` where inputs are damaged; damaged files of the rollup itself are what this mends.
    """
    (rollup,) = (one for one in chosen([name], lake.prices) if one.name == name)
    tables = Tables(lake)
    inputs = {table: tables.snapshot(table) for table in rollup.tables}
    output = tables.snapshot(rollup.name)
    gone = tables.retired
    work = _Work(lake, rollup, inputs, output, anyway=True)
    held = {day for day in output.fingerprints if day in days}
    if rollup.scope == "partition":
        frozen = {day for day in days if (name, partition(day)) in gone or reaches(rollup, day, gone)}
        due = due_days(rollup, inputs, output, {}, gone)
        due = {day: found for day, found in due.items() if day in days and day not in frozen}
        if not dry_run:
            work.days(due)
        if work.damaged:
            raise DamagedFileError(work.damaged)
        return sorted(due), sorted(held & frozen)
    output = work.output = _readable(lake, rollup, output, days, gone)
    runs = due_runs(lake, rollup, inputs, output, {}, gone)
    rows = output.rows(lake, ["run", "date"], held).to_pylist()
    if runs is None:
        return [], sorted(held)
    mine = {row["run"] for row in rows} | {run for run, day in runs.starts.items() if day in days}
    mine &= runs.replaced
    kept = {row["date"] for row in rows if row["run"] not in mine}
    starts = {run: day for run, day in runs.starts.items() if run in mine}
    old_days = frozenset(row["date"] for row in rows if row["run"] in mine)
    if mine and not dry_run:
        work.runs(Due(starts, frozenset(mine), old_days, {}))
    return sorted({*starts.values(), *old_days}), sorted(kept)


def _readable(lake: "Lake", rollup: Rollup, output: Snapshot, days: Collection[date], gone: set[Key]) -> Snapshot:
    """Return the output of a run rollup without its damaged files on some dates, which are computed anew.

    Raises `DamagedFileError` where retention took something that the rollup reads: a row of it may have stood there.
    """
    bad = damaged(lake, rollup.name, output.files(days))
    if not bad or output.live is None:
        return output
    if any(table in rollup.tables for table, _ in gone):
        raise DamagedFileError(bad)
    lost = pc.is_in(output.live["path"], value_set=pa.array([one.path for one in bad]))
    return replace(output, live=output.live.filter(pc.invert(lost)))


class _Work:
    """One rollup being brought up to date: what was computed and waits for its commit, and what was committed."""

    def __init__(
        self,
        lake: "Lake",
        rollup: Rollup,
        inputs: Mapping[str, Snapshot],
        output: Snapshot,
        *,
        anyway: bool = False,
    ) -> None:
        self.anyway = anyway  # whether dates that come out as they were are replaced, too
        self.lake, self.rollup, self.inputs = lake, rollup, inputs
        self.contract = contract(rollup.name)
        self.output = output
        self.version = output.version
        self.replaced: list[date] = []
        self.computed = self.rows = 0
        self.damaged: list[Damage] = []
        self._waiting: dict[date, pa.Table] = {}
        self._state: dict[str, dict[Key, str]] = {}

    def days(self, due: Mapping[date, dict[Key, str]]) -> None:
        """Compute dates of a partition rollup."""
        for day, inputs in sorted(due.items()):
            read_days = {item.table: days for item in self.rollup.inputs if (days := item.days(day)) is not None}
            read_days |= {
                item.table: tuple(day_of(name) for table, name in inputs if table == item.table)
                for item in self.rollup.inputs
                if item.reach == "over"
            }
            live = {name: one.files(read_days.get(name)) for name, one in self.inputs.items()}
            if bad := [one for name, some in live.items() for one in damaged(self.lake, name, some)]:
                self.damaged += bad
                continue
            pieces, at_once = self._pieces(day)
            # a query in one partition brings no partial results together: pieces side by side take up to a fifth less
            threads = max(1, (os.cpu_count() or 1) // at_once)
            ctx = session(self.lake, self.rollup.tables, live=live, threads=threads, heavy=True)
            self._waiting[day] = evaluate_day(ctx, self.rollup, day, pieces, at_once)
            self._state[partition(day)] = inputs
            if sum(rows.num_rows for rows in self._waiting.values()) >= BATCH_ROWS:
                self._commit()
        self._commit()

    def _pieces(self, day: date) -> tuple[Sequence[Range], int]:
        """Return the ranges in which the rollup's column `cut` is computed on a date, and how many at once."""
        if not self.rollup.cut:
            return (WHOLE_RANGE,), 1
        at_once = min(os.cpu_count() or 1, AT_ONCE)
        found = ranges(self.inputs[self.rollup.inputs[0].table].files([day]), self.rollup.cut, at_once=at_once)
        return found, min(at_once, len(found))

    def runs(self, due: Due | None) -> None:
        """Compute whole runs of a run rollup; what else lies in their output dates stays."""
        if due is None:
            return
        live = {name: one.files_of(due.starts) for name, one in self.inputs.items()}  # sound, or they were not due
        ctx = session(self.lake, self.rollup.tables, live=live)
        rows = evaluate_runs(ctx, self.rollup, due.starts)
        days = sorted({*due.starts.values(), *due.old_days, *rows["date"].unique().to_pylist()})
        others = self.output.rows(self.lake, days=days, verify=True)
        others = others.filter(
            pc.invert(pc.is_in(others["run"], value_set=pa.array(sorted(due.replaced), pa.string())))
        )
        rows = pa.concat_tables([rows, others])
        self._waiting = {day: rows.filter(pc.equal(rows["date"], pa.scalar(day, pa.date32()))) for day in days}
        self._state = {"": due.inputs}
        self._commit()

    def _commit(self) -> None:
        """Replace the dates that came out different, in one commit; then write lineage of all that were computed."""
        self.computed += len(self._waiting)
        news = {day: rows for day, rows in self._waiting.items() if self.anyway or not self._stands(day, rows)}
        if news:
            self.version = replace_partitions(
                self.lake,
                self.contract,
                pa.concat_tables(news.values()),
                list(news),
                metadata=self._metadata(),
                expected_version=None if self.version == ABSENT else self.version,
            )
            self.replaced += news
            self.rows += sum(rows.num_rows for rows in news.values())
        if self._state:
            record(self.lake, self.rollup, self.version, self.inputs, self._state)
        self._waiting, self._state = {}, {}

    def _stands(self, day: date, rows: pa.Table) -> bool:
        """Return whether the table holds just these rows on a date: then what reads them need not be computed again."""
        if day not in self.output.fingerprints:
            return bool(rows.num_rows == 0)
        if sum(self.output.files([day])["num_records"].to_pylist()) != rows.num_rows:
            return False
        try:
            held = self.output.rows(self.lake, days=[day])  # a date is replaced once, so it is still as it was at first
        except DamagedFileError:  # what was computed anew takes its place
            return False
        return bool(_sorted(held, self.contract.grain).equals(_sorted(rows, self.contract.grain)))

    def _metadata(self) -> dict[str, str]:
        inputs = {
            output: {f"{table}/{name}": digest[:16] for (table, name), digest in found.items()}
            for output, found in self._state.items()
        }
        return {"rollup": self.rollup.name, "transform_sha256": self.rollup.sha256, "inputs": json.dumps(inputs)}


def _sorted(rows: pa.Table, grain: Sequence[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in grain]).combine_chunks()
