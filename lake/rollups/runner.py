"""Updates the rollups: computes what is due, replaces those partitions, and records their lineage."""

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
        Compute everything again, whatever lineage says. The result is the same.

    All rollups see an input as of one version. Raises `UnknownRollupError`, and `LostRaceError` if another
    process changes the same table meanwhile. Rollups before the failing one stay committed; running again goes on.
    Raises `ranklake.lake.rollups.own.OwnRollupError` for the first of an operator's that fails, after all others ran,
    and `ranklake.lake.contracts.errors.ContractError` for an overlay that the lake cannot be written under.
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
    """One call of `run_rollups`: each rollup begins when those that it reads are up to date."""

    def __init__(self, tables: InputTables, lineage: Lineage, crew: "Workers", *, full: bool) -> None:
        self._tables, self._lineage, self._crew, self._full = tables, lineage, crew, full
        self._began: dict[str, float] = {}
        self.failed: OwnRollupError | None = None

    def bring_up_to_date(
        self, rollups: Sequence[Rollup], progress: Callable[[int, int], None] | None
    ) -> list[RollupResult]:
        """Bring rollups up to date, given in an order in which each comes after what it reads."""
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
        """Compute rollups; `current` holds those under way, so that a caller can undo them."""
        urgency, waiting = _urgency(rollups), list(rollups)
        done: dict[str, RollupResult] = {}
        while waiting or current:
            behind = {rollup.name for rollup in waiting} | {work.rollup.name for work in current}
            ready = [rollup for rollup in waiting if behind.isdisjoint(rollup.tables)]
            waiting = [rollup for rollup in waiting if rollup not in ready]
            ready.sort(key=lambda rollup: -urgency[rollup.name])  # to look at inputs takes as long as a small rollup
            beside = len(current) + len(ready) - 1
            current += [self._begin(rollup, urgency[rollup.name], beside) for rollup in ready]
            if progress:
                progress(len(done), len(rollups))
            work = self._next_result(current)
            try:
                work.advance()
            except OwnRollupError as error:  # nobody else's is held up by it
                self.failed = self.failed or error
                current.remove(work)
                self._tables.invalidate(work.rollup.name)  # dates before it may be committed
                continue
            if work.replaced:  # of several commits, too, each
                self._tables.invalidate(work.rollup.name)
            if work.is_finished:
                current.remove(work)
                done[work.rollup.name] = self._result(work)
        return done

    def _next_result(self, current: Sequence[Work]) -> Work:
        """Pick the most urgent of those that ended, else of those that this process computes; else wait for one."""
        if not any(work.is_done or work.is_deferred for work in current):
            self._crew.wait([work.pending for work in current if work.pending is not None])
        return min(current, key=lambda work: (not work.is_done, not work.is_deferred, -work.urgency))

    def _begin(self, rollup: Rollup, urgency: int, beside: int) -> Work:
        self._began[rollup.name] = time.monotonic()
        tables = self._tables
        inputs = {name: tables.snapshot(name) for name in rollup.tables}
        output = tables.output(rollup.name)
        if output.version != ABSENT:  # an added column is a commit: before we look, not between
            with suppress(NewerTableError, UnmigratedTableError):  # raised where it is due: others go on till then
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
    """Length of the longest chain of rollups that wait for each."""
    lengths: dict[str, int] = {}
    for rollup in reversed(rollups):
        readers = [reader for reader in rollups if rollup.name in reader.tables]
        lengths[rollup.name] = 1 + max((lengths[reader.name] for reader in readers), default=-1)
    return lengths
