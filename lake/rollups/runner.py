"""Updates the rollups: computes what is due, replaces those partitions, and records their lineage."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.delta.integrity import Damage, DamagedFileError, damaged
from ranklake.lake.delta.kept_overlay import keep_overlay
from ranklake.lake.delta.table_schema import UnmigratedTableError
from ranklake.lake.delta.tables import NewerTableError, ensure_table
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.declaration import Rollup
from ranklake.lake.rollups.due import Due, changed_inputs, due_days, due_runs, reaches
from ranklake.lake.rollups.inputs import ABSENT, Key, Snapshot, Tables, day_of, partition
from ranklake.lake.rollups.lineage import Lineage
from ranklake.lake.rollups.named import rollups_of
from ranklake.lake.rollups.own import OwnRollupError
from ranklake.lake.rollups.work import Work

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.storage.store import Lake


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
    kept_back
        Partitions (table, date) that checks hold back. What depends on them stays as it was, and due.
    """

    name: str
    partitions: tuple[str, ...]
    computed: int
    rows: int
    version: int | None
    seconds: float
    damaged: tuple[Damage, ...] = ()
    kept_back: tuple[tuple[str, str], ...] = ()


def run_rollups(
    lake: "Lake",
    names: Iterable[str] | None = None,
    *,
    workers: "Workers | None" = None,
    progress: Callable[[int, int], None] | None = None,
    full: bool = False,
) -> list[RollupResult]:
    """Recompute the partitions whose inputs or code changed, of the named rollups and those that they read.

    Parameters
    ----------
    names
        Rollups; default all.
    workers
        Who computes, a date or a rollup's runs each, where there is enough to do; by default this process does all.
    progress
        Called with (rollups done, rollups in all).
    full
        Compute everything anew, whatever lineage says. The result is the same.

    All rollups see an input as of one version. Raises `UnknownRollupError`, and `LostRaceError` if another
    process changes the same table meanwhile. Rollups before the failing one stay committed; running again goes on.
    Raises `ranklake.lake.rollups.own.OwnRollupError` for the first of an operator's that fails, after all others ran,
    and `ranklake.lake.contracts.errors.ContractError` for an overlay that the lake cannot be written under.
    """
    keep_overlay(lake)
    rollups = rollups_of(lake, names)
    tables = Tables(lake)
    with Lineage(lake) as lineage:
        found = _Round(tables, lineage, workers or InProcess(), full=full)
        results = found.bring_up_to_date(rollups, progress)
    if found.failed is not None:
        raise found.failed
    return results


class _Round:
    """One call of `run_rollups` on its way: each rollup begins when those that it reads are up to date."""

    def __init__(self, tables: Tables, lineage: Lineage, crew: "Workers", *, full: bool) -> None:
        self._tables, self._lineage, self._crew, self._full = tables, lineage, crew, full
        self._began: dict[str, float] = {}
        self._ahead: list[str] = []
        self._unmade: list[Contract] = []
        self.failed: OwnRollupError | None = None

    def bring_up_to_date(
        self, rollups: Sequence[Rollup], progress: Callable[[int, int], None] | None
    ) -> list[RollupResult]:
        """Bring rollups up to date, given in an order in which each comes after what it reads."""
        urgency = _urgency(rollups)
        waiting, current = list(rollups), list[Work]()
        made, read = {one.name for one in rollups}, (name for one in rollups for name in one.tables)
        self._ahead = [name for name in dict.fromkeys(read) if name not in made]
        done: dict[str, RollupResult] = {}
        try:
            while waiting or current:
                behind = {one.name for one in waiting} | {work.rollup.name for work in current}
                ready = [one for one in waiting if behind.isdisjoint(one.tables)]
                waiting = [one for one in waiting if one not in ready]
                ready.sort(key=lambda one: -urgency[one.name])  # to look at inputs takes as long as a small rollup
                beside = len(current) + len(ready) - 1
                current += [self._begun(one, urgency[one.name], beside) for one in ready]
                if progress:
                    progress(len(done), len(rollups))
                work = self._next(current)
                try:
                    work.advance()
                except OwnRollupError as error:  # nobody else's is held up by it
                    self.failed = self.failed or error
                    current.remove(work)
                    self._tables.changed(work.rollup.name)  # dates before it may be committed
                    continue
                if work.is_finished:
                    current.remove(work)
                    done[work.rollup.name] = self._ended(work)
        finally:
            for work in current:
                work.cancel()
        if progress:
            progress(len(rollups), len(rollups))
        return [done[one.name] for one in rollups if one.name in done]

    def _next(self, current: Sequence[Work]) -> Work:
        """Return the most urgent of those that ended, else of those that this process computes; or wait for one.

        What else there is to do is done while workers are at it, which then wait less for the driver.
        """

        def rank(work: Work) -> tuple[bool, bool, int]:
            return not work.is_done, not work.is_put_off, -work.urgency

        def is_next() -> bool:
            return any(work.is_done or work.is_put_off for work in current)

        while not is_next() and self._prepared():
            pass
        if not is_next():
            self._crew.wait([work.pending for work in current if work.pending is not None])
        return min(current, key=rank)

    def _prepared(self) -> bool:
        """Make a table that workers compute, or look at the log of one that later rollups read; False if none is left.

        A table that is made here stays empty where nothing comes of what workers compute.
        """
        with suppress(RanklakeError):  # said where it is written or read: others go on till then
            if self._unmade:
                ensure_table(self._tables.lake, self._unmade.pop(0))
            elif self._ahead:
                self._tables.snapshot(self._ahead.pop(0))
            else:
                return False
        return True

    def _begun(self, rollup: Rollup, urgency: int, beside: int) -> Work:
        self._began[rollup.name] = time.monotonic()
        tables = self._tables
        inputs = {name: tables.snapshot(name) for name in rollup.tables}
        output = tables.output(rollup.name)
        if output.version != ABSENT:  # an added column is a commit: before we look, not between
            with suppress(NewerTableError, UnmigratedTableError):  # said where it is due: others go on till then
                ensure_table(tables.lake, rollup.contract)
            tables.changed(rollup.name)
            output = tables.output(rollup.name)
        state = {} if self._full else self._lineage.recorded(rollup, output)
        work = Work(
            tables.lake,
            rollup,
            inputs,
            output,
            self._lineage,
            self._crew,
            since_plan=tables.since_plan,
            urgency=urgency,
            beside=beside,
        )
        if rollup.scope == "partition":
            work.begin_days(due_days(rollup, inputs, output, state, tables.retired), tables.kept_back)
        elif changed_inputs(rollup, inputs, output, state, tables.retired) is not None:
            work.begin_runs(state, tables.retired, kept_back=tables.kept_back)
        if output.version == ABSENT and work.pending is not None:
            self._unmade.append(rollup.contract)
        return work

    def _ended(self, work: Work) -> RollupResult:
        name = work.rollup.name
        if work.replaced:
            self._tables.changed(name)
        return RollupResult(
            name,
            tuple(sorted(day.isoformat() for day in work.replaced)),
            work.computed,
            work.rows,
            None if work.version == ABSENT else work.version,
            round(time.monotonic() - self._began[name], 3),
            tuple(dict.fromkeys(work.damaged)),
            tuple(sorted((table, day_of(name).isoformat()) for table, name in work.kept_back)),
        )


def _urgency(rollups: Sequence[Rollup]) -> dict[str, int]:
    """Return how many rollups wait for each, one after the other."""
    found: dict[str, int] = {}
    for rollup in reversed(rollups):
        found[rollup.name] = 1 + max((found[one.name] for one in rollups if rollup.name in one.tables), default=-1)
    return found


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

    Returns the dates that were replaced, and those that stay as they are because retention took, or a check holds back,
    what they were, or a run on them was, computed from. Raises as `run_rollups`; inputs that are rollups themselves are
    taken as they are. Raises `DamagedFileError` where inputs are damaged; damaged files of the rollup itself are what
    this mends.
    """
    (rollup,) = (one for one in rollups_of(lake, [name]) if one.name == name)
    with Lineage(lake) as lineage:
        return _recompute(Tables(lake), lineage, rollup, days, dry_run=dry_run)


def _recompute(
    tables: Tables, lineage: Lineage, rollup: Rollup, days: Collection[date], *, dry_run: bool
) -> tuple[list[date], list[date]]:
    lake, name = tables.lake, rollup.name
    inputs = {table: tables.snapshot(table) for table in rollup.tables}
    output = tables.output(rollup.name)
    gone = tables.retired
    held = {day for day in output.digests if day in days}
    if rollup.scope == "partition":
        barred = gone | tables.kept_back
        frozen = {day for day in days if (name, partition(day)) in gone or reaches(rollup, day, barred)}
        due = due_days(rollup, inputs, output, {}, gone)
        due = {day: found for day, found in due.items() if day in days and day not in frozen}
        if not dry_run:
            work = Work(lake, rollup, inputs, output, lineage, InProcess(), since_plan=tables.since_plan, anyway=True)
            work.begin_days(due)
            work.finish()
            if work.damaged:
                raise DamagedFileError(work.damaged)
        return sorted(due), sorted(held & frozen)
    output = _readable(lake, rollup, output, days, gone)
    runs = due_runs(lake, rollup, inputs, output, {}, gone, tables.kept_back)
    rows = output.rows(lake, ["run", "date"], held).to_pylist()
    if runs is None:
        return [], sorted(held)
    mine = {row["run"] for row in rows} | {run for run, day in runs.starts.items() if day in days}
    mine &= runs.replaced
    kept = {row["date"] for row in rows if row["run"] not in mine}
    starts = {run: day for run, day in runs.starts.items() if run in mine}
    old_days = frozenset(row["date"] for row in rows if row["run"] in mine)
    if mine and not dry_run:
        work = Work(lake, rollup, inputs, output, lineage, InProcess(), since_plan=tables.since_plan, anyway=True)
        work.begin_runs({}, gone, Due(starts, frozenset(mine), old_days, {}))
        work.finish()
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
