"""Updates rollups: computes the partitions that are due, replaces them, and records their lineage."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.declaration import Rollup
from ranklake.lake.rollups.due import changed_inputs, due_days
from ranklake.lake.rollups.inputs import ABSENT, InputTables, day_of
from ranklake.lake.rollups.lineage import Lineage
from ranklake.lake.rollups.named import rollups_of
from ranklake.lake.rollups.own import OwnRollupError
from ranklake.lake.rollups.work import Work
from ranklake.lake.tables.commit import LostRaceError
from ranklake.lake.tables.live_files import Damage
from ranklake.lake.tables.table_schema import UnmigratedTableError
from ranklake.lake.tables.tables import NewerTableError, keep_handle, keep_overlay, take_handle

if TYPE_CHECKING:
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class RollupResult:
    """Result of updating one rollup.

    Attributes
    ----------
    name
        Name of the rollup and its table.
    partitions
        Dates (ISO) that were replaced; empty if no result changed.
    computed
        Number of dates that were computed. Dates with an unchanged result are not replaced.
    rows
        Number of rows in the replaced partitions.
    version
        Delta version of the table afterwards; None if it has none.
    seconds
        Wall seconds.
    damaged
        Input files whose bytes changed after they were written. Dates that depend on them are unchanged and still due.
    kept_back
        Partitions (table, date) held back because a check failed. Dates that depend on them are unchanged and still
        due.
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
    """Compute the partitions whose inputs or code changed, for some rollups and the rollups that they read.

    All rollups see an input at the same version.

    Parameters
    ----------
    names
        Names of rollups; by default all.
    workers
        Workers for large rollups; a task is a date, or all due runs of a rollup. By default this process computes all.
    progress
        Called with the number of finished rollups and of all rollups.
    full
        Whether to compute everything again, without lineage. The result is the same.

    Raises
    ------
    UnknownRollupError
        There is no such rollup.
    LostRaceError
        Another process changed the same table. Rollups that were committed before are kept; another call continues.
    ranklake.lake.rollups.own.OwnRollupError
        An own rollup failed: the first error, raised after all other rollups.
    ranklake.lake.contracts.errors.ContractError
        The lake cannot be written under the configured overlay.
    """
    keep_overlay(lake)
    rollups = rollups_of(lake, names)
    tables = InputTables(lake)
    with Lineage(lake.tables) as lineage:
        current = _Round(tables, lineage, workers or InProcess(), full=full)
        results = current.bring_up_to_date(rollups, progress)
    if current.failed is not None:
        raise current.failed
    return results


class _Round:
    """One call of `run_rollups`. A rollup begins when the rollups that it reads are up to date."""

    def __init__(self, tables: InputTables, lineage: Lineage, crew: "Workers", *, full: bool) -> None:
        self._tables, self._lineage, self._crew, self._full = tables, lineage, crew, full
        self._began: dict[str, float] = {}
        self.failed: OwnRollupError | None = None

    def bring_up_to_date(
        self, rollups: Sequence[Rollup], progress: Callable[[int, int], None] | None
    ) -> list[RollupResult]:
        """Update rollups. Each must come after the rollups that it reads."""
        current = list[Work]()
        try:
            done = self._all_done(rollups, current, progress)
        except LostRaceError:
            for work in current:
                work.undo()
            raise
        finally:
            for work in current:
                work.cancel()
        if progress:
            progress(len(rollups), len(rollups))
        return [done[rollup.name] for rollup in rollups if rollup.name in done]

    def _all_done(
        self, rollups: Sequence[Rollup], current: list[Work], progress: Callable[[int, int], None] | None
    ) -> dict[str, RollupResult]:
        """Compute rollups. The list `current` has those that are not finished, so that the caller can undo them."""
        urgency, waiting = _urgency(rollups), list(rollups)
        done: dict[str, RollupResult] = {}
        while waiting or current:
            behind = {rollup.name for rollup in waiting} | {work.rollup.name for work in current}
            ready = [rollup for rollup in waiting if behind.isdisjoint(rollup.tables)]
            waiting = [rollup for rollup in waiting if rollup not in ready]
            ready.sort(key=lambda rollup: -urgency[rollup.name])  # finding due dates takes as long as a small rollup
            beside = len(current) + len(ready) - 1
            current += [self._begin(rollup, urgency[rollup.name], beside) for rollup in ready]
            if progress:
                progress(len(done), len(rollups))
            work = self._next_result(current)
            try:
                work.advance()
            except OwnRollupError as error:  # other rollups continue
                self.failed = self.failed or error
                current.remove(work)
                self._tables.invalidate(work.rollup.name)  # earlier dates may be committed
                continue
            if work.replaced:  # after each commit of the rollup
                self._tables.invalidate(work.rollup.name)
            if work.is_finished:
                current.remove(work)
                done[work.rollup.name] = self._result(work)
        return done

    def _next_result(self, current: Sequence[Work]) -> Work:
        """Return the most urgent rollup with a result; else one that this process computes; else wait for a result."""
        if not any(work.is_done or work.is_deferred for work in current):
            self._crew.wait([work.pending for work in current if work.pending is not None])
        return min(current, key=lambda work: (not work.is_done, not work.is_deferred, -work.urgency))

    def _begin(self, rollup: Rollup, urgency: int, beside: int) -> Work:
        self._began[rollup.name] = time.monotonic()
        tables = self._tables
        inputs = {name: tables.snapshot(name) for name in rollup.tables}
        output = tables.output(rollup.name)
        if output.version != ABSENT:  # adding a column is a commit, which must come before the snapshot
            with suppress(NewerTableError, UnmigratedTableError):  # raised later, if the rollup is due
                handle = take_handle(tables.lake.tables, rollup.contract)
                if handle.version() != output.version:
                    tables.invalidate(rollup.name)
                keep_handle(tables.lake.tables, rollup.name, handle)
            output = tables.output(rollup.name)
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
        state = {} if self._full else self._lineage.recorded(rollup, output)
        if rollup.scope == "partition":
            due = due_days(tables.lake, rollup, inputs, output, state, tables.retired)
            work.begin_days(due, tables.kept_back, state)
        elif changed_inputs(rollup, inputs, output, state, tables.retired) is not None:
            work.begin_runs(state, tables.retired, kept_back=tables.kept_back)
        return work

    def _result(self, work: Work) -> RollupResult:
        name = work.rollup.name
        return RollupResult(
            name,
            tuple(sorted(day.isoformat() for day in work.replaced)),
            work.computed,
            work.rows,
            None if work.version == ABSENT else work.version,
            round(time.monotonic() - self._began[name], 3),
            tuple(dict.fromkeys(work.damaged)),
            tuple(sorted((table, day_of(partition).isoformat()) for table, partition in work.kept_back)),
        )


def _urgency(rollups: Sequence[Rollup]) -> dict[str, int]:
    """Return for each rollup the length of the longest chain of rollups that wait for it."""
    lengths: dict[str, int] = {}
    for rollup in reversed(rollups):
        readers = [reader for reader in rollups if rollup.name in reader.tables]
        lengths[rollup.name] = 1 + max((lengths[reader.name] for reader in readers), default=-1)
    return lengths
