"""Tasks of rollups for workers: each computes rows, compares them with the stored ones, and writes data files.

Rows never pass through the scheduler. A task contains everything that it needs to know about the lake. The driver
commits the written files (`ranklake.lake.rollups.work`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.cores import usable_cores
from ranklake.lake.query.sql import session
from ranklake.lake.rollups.declaration import Rollup
from ranklake.lake.rollups.due import DueRuns, due_runs
from ranklake.lake.rollups.evaluate import (
    AT_ONCE,
    WHOLE_RANGE,
    Range,
    evaluate_day,
    evaluate_days,
    evaluate_runs,
    ranges,
)
from ranklake.lake.rollups.growth import (
    FULL_ROWS,
    Growth,
    files_from,
    files_of_groups,
    first_period,
    groups_of,
    is_of_groups,
    keep_groups,
    settled_attempts,
)
from ranklake.lake.rollups.inputs import Key, Snapshot, begin_of, day_of, of_days, of_hours, partition, slim
from ranklake.lake.rollups.lineage import State
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.live_files import Damage, DamagedFileError, DataFile, damaged_files, refuse_damaged
from ranklake.lake.tables.parquet import append_files, write_partition

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

TASK_CPU_S: Final = 0.05
"""Rough CPU cost of a task without rows."""


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a task.

    Attributes
    ----------
    lake_uri, storage
        Address of the lake, and storage options. References to secrets are resolved where the task runs.
    held
        Snapshot of the rollup's table.
    anyway
        Whether to write dates with an unchanged result, too.
    threads
        Threads of a query; 0 for one per core.
    """

    lake_uri: str
    storage: dict[str, str]
    held: Snapshot
    anyway: bool = False
    threads: int = 0

    @property
    def cores(self) -> int:
        """Number of cores that the task may use."""
        cores = usable_cores()
        return min(self.threads, cores) or cores


@dataclass(frozen=True, slots=True)
class DaysTask:
    """A task: dates of a partition rollup that are computed together.

    Attributes
    ----------
    due
        Digests of the inputs, by date.
    live
        Files to read, by table.
    rows
        Number of rows of the leading inputs; with `growth`, of the new files.
    growth
        For a single date whose inputs only got new files: these files.
    """

    rollup: Rollup
    due: Mapping[date, dict[Key, str]]
    live: Mapping[str, pa.Table]
    output: Output
    rows: int = 0
    growth: Growth | None = None


@dataclass(frozen=True, slots=True)
class RunsTask:
    """A task: the due runs of a run rollup. Without `due`, the task finds them as `due_runs` does."""

    rollup: Rollup
    inputs: Mapping[str, Snapshot]
    output: Output
    state: State
    gone: set[Key]
    due: DueRuns | None = None
    kept_back: frozenset[Key] = frozenset()

    @property
    def rows(self) -> int:
        """Always 0: all runs are one task."""
        return 0


@dataclass(frozen=True, slots=True)
class ComputeResult:
    """Result of a task.

    Attributes
    ----------
    state
        Digests by output partition and input partition, for lineage.
    computed
        Number of dates that were computed.
    replaced
        Dates with a changed result.
    files
        New data files of these dates, not committed yet.
    kept
        Paths of existing files of these dates that are kept in addition.
    damaged
        Input files whose bytes changed after they were written. Dates that depend on them were left out.
    """

    state: dict[str, dict[Key, str]]
    computed: int = 0
    replaced: tuple[date, ...] = ()
    files: tuple[DataFile, ...] = ()
    damaged: tuple[Damage, ...] = ()
    kept: tuple[str, ...] = ()


def compute(task: DaysTask | RunsTask, lake: Lake | None = None) -> ComputeResult:
    """Carry out one task.

    Parameters
    ----------
    lake
        The lake, if it is already open in this process.

    Raises what reading and computing raise. Then data files that are not committed may be left.
    """
    there = lake or Lake.open(task.output.lake_uri, task.output.storage)
    return _compute_days(there, task) if isinstance(task, DaysTask) else _compute_runs(there, task)


def files_for(
    rollup: Rollup, due: Mapping[date, dict[Key, str]], inputs: Mapping[str, Snapshot]
) -> dict[str, pa.Table]:
    """Return the live files of inputs that some dates need, by table."""
    days = _read_days(rollup, due)
    live = {name: one.files(days.get(name)) for name, one in inputs.items()}
    if len(due) == 1:
        near = {item.table for item in rollup.inputs if item.reach == "hours"}
        live = {name: of_hours(some, *due) if name in near else some for name, some in live.items()}
        if rollup.lookback_s is not None:
            live = _files_since(rollup, live, begin_of(*due))
    return {name: slim(some, *rollup.bounds, "rank") for name, some in live.items()}


def _read_days(rollup: Rollup, due: Mapping[date, dict[Key, str]]) -> dict[str, set[date]]:
    """Return the input dates on which some output dates depend, by table. Tables read completely are left out."""
    dates: dict[str, set[date]] = {}
    for day, inputs in due.items():
        for item in rollup.inputs:
            days = item.days(day)
            if item.reach == "over":
                days = tuple(day_of(name) for table, name in inputs if table == item.table)
            if days is not None:
                dates.setdefault(item.table, set()).update(days)
    return dates


def _compute_days(lake: Lake, task: DaysTask) -> ComputeResult:
    """Compute dates together. If an input is damaged, compute each date alone, without those that need the input."""
    if task.growth is not None:
        with suppress(DamagedFileError):  # then the whole date is computed, or reported as damaged
            return _compute_growth(lake, task, task.growth)
    rows: dict[date, pa.Table] = {}
    state: dict[str, dict[Key, str]] = {}
    hurt: list[Damage] = []
    groups: list[Mapping[date, dict[Key, str]]] = [task.due]
    while groups:
        group = groups.pop(0)
        days = _read_days(task.rollup, group)
        live = {name: _files_of_days(files, days.get(name)) for name, files in task.live.items()}
        bad = [one for name, some in live.items() for one in damaged_files(lake.tables, name, some)]
        if bad and len(group) > 1:
            groups += [{day: inputs} for day, inputs in group.items()]
        elif bad:
            hurt += bad
        else:
            rows |= _evaluate(lake, task, sorted(group), live)
            state |= {partition(day): inputs for day, inputs in group.items()}
    return _write_changed(lake, task, rows, state, hurt)


def _files_of_days(files: pa.Table, days: Collection[date] | None) -> pa.Table:
    return files if days is None else of_days(files, days)


def _evaluate(lake: Lake, task: DaysTask, days: Sequence[date], live: Mapping[str, pa.Table]) -> dict[date, pa.Table]:
    rollup = task.rollup
    pieces, at_once = _pieces(task, live, days[0])
    # a query in one partition does not merge partial results, so parallel pieces take up to a fifth less time
    ctx = session(lake, rollup.tables, live=live, threads=max(1, task.output.cores // at_once), heavy=True)
    if not rollup.in_a_row:
        return {days[0]: evaluate_day(ctx, rollup, days[0], pieces, at_once)}
    return by_day(evaluate_days(ctx, rollup, days[0], days[-1]), days)


def _pieces(task: DaysTask, live: Mapping[str, pa.Table], day: date) -> tuple[Sequence[Range], int]:
    """Return the pieces of a date, and the number of pieces to compute in parallel."""
    rollup, most = task.rollup, min(task.output.cores, AT_ONCE)
    if not rollup.cut:
        return (WHOLE_RANGE,), 1
    pieces = ranges(_files_of_days(live[rollup.inputs[0].table], [day]), rollup.cut, at_once=most)
    return pieces, min(most, len(pieces))


def _files_since(rollup: Rollup, live: Mapping[str, pa.Table], since: datetime) -> dict[str, pa.Table]:
    """Return the files that may have rows from `Rollup.lookback_s` before a time on; of reach ``until``, all files."""
    first = since - timedelta(seconds=rollup.lookback_s or 0)
    until = {item.table for item in rollup.inputs if item.reach == "until"}
    return {name: files if name in until else files_from(files, "ts", first) for name, files in live.items()}


class _NewRows(NamedTuple):
    """Rows of some groups or periods of a date, and what they replace.

    `files_of` returns those of some files of the date that may have rows of these groups or periods, and `is_old` for
    each of some stored rows whether it is one.
    """

    rows: pa.Table
    files_of: Callable[[pa.Table], pa.Table]
    is_old: Callable[[pa.Table], pa.Array]


def _compute_growth(lake: Lake, task: DaysTask, growth: Growth) -> ComputeResult:
    """Compute what the new files of a date can change. Full files without rows of that are kept.

    Raises `DamagedFileError`.
    """
    rollup, output = task.rollup, task.output
    ((day, inputs),) = task.due.items()
    state = {partition(day): inputs}
    news = (_new_groups if rollup.cut else _new_periods)(lake, task, growth, day)
    if news is None:
        return ComputeResult(state, 1)
    held = output.held.files([day])
    near = pc.is_in(held["path"], value_set=news.files_of(held)["path"])
    is_stale = pc.or_(near, pc.less(held["num_records"], FULL_ROWS))
    stored = replace(output.held, live=held.filter(is_stale)).rows(lake, verify=True)
    is_old, grain = news.is_old(stored), rollup.contract.grain
    if _sort_rows(stored.filter(is_old), grain).equals(_sort_rows(news.rows, grain)):
        return ComputeResult(state, 1)
    others = stored.filter(pc.invert(is_old))
    parts = [news.rows, others] if others.num_rows >= FULL_ROWS else [pa.concat_tables([news.rows, others])]
    number = output.held.number + 1
    written = [write_partition(lake.store, rollup.contract, part, day, number) for part in parts if part.num_rows]
    kept = held.filter(pc.invert(is_stale))["path"].to_pylist()
    return ComputeResult(state, 1, (day,), tuple(written), kept=tuple(kept))


def _new_groups(lake: Lake, task: DaysTask, growth: Growth, day: date) -> _NewRows | None:
    """Compute the groups of a date with new rows; None if there are none."""
    rollup, output, cut = task.rollup, task.output, task.rollup.cut
    groups = groups_of(lake, rollup, growth)
    if not groups:
        return None
    settled = settled_attempts(lake, rollup, output.held, day, groups)
    groups = {attempt: ranges if attempt in settled else [WHOLE_RANGE] for attempt, ranges in groups.items()}
    live = {name: files_of_groups(files, cut, groups) for name, files in task.live.items()}
    for name, files in live.items():
        refuse_damaged(lake.tables, name, files)
    pieces, at_once = _pieces(task, live, day)
    ctx = session(lake, rollup.tables, live=live, threads=max(1, output.cores // at_once), heavy=True)
    keep_groups(ctx, rollup.tables, cut, groups)
    rows = evaluate_day(ctx, rollup, day, pieces, at_once, settled)
    return _NewRows(
        rows, partial(files_of_groups, cut=cut, groups=groups), partial(is_of_groups, cut=cut, groups=groups)
    )


def _new_periods(lake: Lake, task: DaysTask, growth: Growth, day: date) -> _NewRows | None:
    """Compute the hours or minutes of a date from the earliest new row on; None if new rows change none."""
    rollup = task.rollup
    since = first_period(lake, rollup, growth, task.output.held, day)
    if since is None:
        return None
    live = _files_since(rollup, task.live, since)
    for name, files in live.items():
        refuse_damaged(lake.tables, name, files)
    ctx = session(lake, rollup.tables, live=live, threads=task.output.cores, heavy=True)
    column, earlier = rollup.period, None
    if rollup.earlier and since > begin_of(day):
        earlier = task.output.held.rows(lake, rollup.earlier, [day], verify=True)
        earlier = earlier.filter(pc.less(earlier[column], since))
    rows = evaluate_day(ctx, rollup, day, since=since, earlier=earlier)
    return _NewRows(
        rows, partial(files_from, column=column, first=since), lambda stored: pc.greater_equal(stored[column], since)
    )


def by_day(rows: pa.Table, days: Collection[date]) -> dict[date, pa.Table]:
    """Return rows divided by date, for some dates."""
    return {day: rows.filter(pc.equal(rows["date"], pa.scalar(day, pa.date32()))) for day in days}


def _compute_runs(lake: Lake, task: RunsTask) -> ComputeResult:
    """Compute whole runs. Rows of other runs on their output dates are kept."""
    rollup, held = task.rollup, task.output.held
    try:
        due = task.due or due_runs(lake, rollup, task.inputs, held, task.state, task.gone, task.kept_back)
    except DamagedFileError as error:
        return ComputeResult({}, damaged=error.damage)
    if due is None:
        return ComputeResult({})
    live = {name: one.files_of(due.starts) for name, one in task.inputs.items()}  # sound, or they were not due
    ctx = session(lake, rollup.tables, live=live, threads=task.output.cores)
    rows = evaluate_runs(ctx, rollup, due.starts)
    days = sorted({*due.starts.values(), *due.old_days, *rows["date"].unique().to_pylist()})
    others = held.rows(lake, days=days, verify=True)
    others = others.filter(pc.invert(pc.is_in(others["run"], value_set=pa.array(sorted(due.replaced), pa.string()))))
    return _write_changed(lake, task, by_day(pa.concat_tables([rows, others]), days), {"": due.inputs}, ())


def _write_changed(
    lake: Lake,
    task: DaysTask | RunsTask,
    rows_by_day: Mapping[date, pa.Table],
    state: dict[str, dict[Key, str]],
    hurt: Sequence[Damage],
) -> ComputeResult:
    """Write the dates with a changed result; return the result of the task."""
    known, output = task.rollup.contract, task.output
    if task.rollup.kept:
        rows_by_day = {day: _as_at_first(lake, task, day, rows) for day, rows in rows_by_day.items()}
    news = {
        day: rows
        for day, rows in rows_by_day.items()
        if output.anyway or not is_stored(lake, known, output.held, day, rows)
    }
    number = output.held.number + 1  # number of the next commit; a later commit may use the files, too
    files = append_files(lake.store, known, pa.concat_tables(news.values()), number) if news else []
    return ComputeResult(state, len(rows_by_day), tuple(news), tuple(files), tuple(hurt))


def _as_at_first(lake: Lake, task: DaysTask | RunsTask, day: date, rows: pa.Table) -> pa.Table:
    """Return the rows of a date, with the stored values of the columns `Rollup.kept` for rows that already exist."""
    grain, kept, held = task.rollup.contract.grain, task.rollup.kept, task.output.held
    if day not in held.digests:
        return rows
    try:
        stored = held.rows(lake, [*grain, *kept], [day])
    except DamagedFileError:  # what was computed again takes its place
        return rows
    firsts = {tuple(row[name] for name in grain): row for row in stored.to_pylist()}
    for name in kept:
        place = rows.schema.get_field_index(name)
        keys = zip(*(rows[each].to_pylist() for each in grain), strict=True)
        news = zip(keys, rows[name].to_pylist(), strict=True)
        values = [firsts[key][name] if key in firsts else value for key, value in news]
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
    return rows


def is_stored(lake: Lake, known: "Contract", held: Snapshot, day: date, rows: pa.Table) -> bool:
    """Whether the table has exactly these rows on a date. Then the date is not replaced."""
    if day not in held.digests:
        return bool(rows.num_rows == 0)
    if sum(held.files([day])["num_records"].to_pylist()) != rows.num_rows:
        return False
    try:
        stored = held.rows(lake, days=[day])  # a date is replaced only once in a round, so the snapshot is current
    except DamagedFileError:  # what was computed again takes its place
        return False
    return bool(_sort_rows(stored, known.grain).equals(_sort_rows(rows, known.grain)))


def _sort_rows(rows: pa.Table, grain: Sequence[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in grain]).combine_chunks()
