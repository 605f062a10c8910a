"""Updates the rollups: computes what is due, replaces those partitions, and records their lineage."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranklake.errors import RanklakeError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.declaration import Rollup
from ranklake.lake.rollups.due import changed_inputs, due_days
from ranklake.lake.rollups.inputs import ABSENT, Snapshot, Tables, day_of
from ranklake.lake.rollups.lineage import Lineage, State
from ranklake.lake.rollups.named import rollups_of
from ranklake.lake.rollups.own import OwnRollupError
from ranklake.lake.rollups.tasks import TASK_CPU_S
from ranklake.lake.rollups.work import Work
from ranklake.lake.tables.commit import LostRaceError
from ranklake.lake.tables.integrity import Damage
from ranklake.lake.tables.table_schema import UnmigratedTableError
from ranklake.lake.tables.tables import NewerTableError, ensure_table, keep_overlay

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.store import Lake


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
        self._in_turn = set[str]()
        self.failed: OwnRollupError | None = None

    def bring_up_to_date(
        self, rollups: Sequence[Rollup], progress: Callable[[int, int], None] | None
    ) -> list[RollupResult]:
        """Bring rollups up to date, given in an order in which each comes after what it reads."""
        current = list[Work]()
        try:
            done = self._all_done(rollups, current, progress)
        except LostRaceError:
            for work in reversed(current):  # what began with others' results first, so that no more of it begins
                work.undo()
            raise
        finally:
            for work in current:
                work.cancel()
        if progress:
            progress(len(rollups), len(rollups))
        return [done[one.name] for one in rollups if one.name in done]

    def _all_done(
        self, rollups: Sequence[Rollup], current: list[Work], progress: Callable[[int, int], None] | None
    ) -> dict[str, RollupResult]:
        """Return what came of each rollup; what is being computed stands in `current` meanwhile."""
        urgency, waiting = _urgency(rollups), list(rollups)
        made, read = {one.name for one in rollups}, (name for one in rollups for name in one.tables)
        self._ahead = [name for name in dict.fromkeys(read) if name not in made]
        done: dict[str, RollupResult] = {}
        while waiting or current:
            behind = {one.name for one in waiting} | {work.rollup.name for work in current}
            ready = [one for one in waiting if behind.isdisjoint(one.tables)]
            waiting = [one for one in waiting if one not in ready]
            ready.sort(key=lambda one: -urgency[one.name])  # to look at inputs takes as long as a small rollup
            beside = len(current) + len(ready) - 1
            current += [self._begun(one, urgency[one.name], beside) for one in ready]
            while early := self._begun_early(waiting, current, urgency):
                current.append(early)
                waiting.remove(early.rollup)
            if progress:
                progress(len(done), len(rollups))
            names = {work.rollup.name for work in current}
            work = self._next([one for one in current if names.isdisjoint(one.before)])
            if work.before:
                self._look_anew(work)
            try:
                work.advance()
            except OwnRollupError as error:  # nobody else's is held up by it
                self.failed = self.failed or error
                current.remove(work)
                self._tables.changed(work.rollup.name)  # dates before it may be committed
                continue
            if work.replaced:  # of several commits, too, each
                self._tables.changed(work.rollup.name)
            if work.is_finished:
                current.remove(work)
                done[work.rollup.name] = self._ended(work)
        return done

    def _begun_early(
        self, waiting: Sequence[Rollup], current: Sequence[Work], urgency: Mapping[str, int]
    ) -> Work | None:
        """Begin the most urgent rollup that waits for nothing but what workers compute already; None where none does.

        It is one of whole runs, as which of them are due is found out where they are computed. Nothing is begun with
        what an operator's own rollup comes to: where that fails, what reads it goes on with what stands.
        """
        under_way = {work.rollup.name: work for work in current if work.is_under_way and work.rollup.own is None}
        if not under_way or isinstance(self._crew.fitting(TASK_CPU_S), InProcess):
            return None
        behind = {one.name for one in waiting} | {work.rollup.name for work in current} - under_way.keys()
        for one in sorted(waiting, key=lambda one: -urgency[one.name]):
            if one.scope != "run" or one.name in self._in_turn or not behind.isdisjoint(one.tables):
                continue
            try:
                work, state = self._looked_at(one, urgency[one.name], sum(not work.before for work in current))
            except RanklakeError:  # said when it is its turn: others are committed till then
                self._in_turn.add(one.name)
                continue
            before = {name: under_way[name] for name in one.tables if name in under_way}
            if work.begin_runs_after(before, state, self._tables.retired, self._tables.kept_back):
                return self._to_be_made(work)
        return None

    def _look_anew(self, work: Work) -> None:
        """Give a rollup that was begun early its inputs as they are, now that what it began with is committed.

        Where nothing of it was due, no check holds anything of it back.
        """
        work.inputs = {name: self._tables.snapshot(name) for name in work.rollup.tables}
        output = self._tables.output(work.rollup.name)
        state = self._recorded(work.rollup, output) if work.kept_back else {}
        if work.kept_back and not changed_inputs(work.rollup, work.inputs, output, state, self._tables.retired):
            work.kept_back = set()

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
        work, state = self._looked_at(rollup, urgency, beside)
        tables, output = self._tables, self._tables.output(rollup.name)
        if rollup.scope == "partition":
            work.begin_days(due_days(tables.lake, rollup, work.inputs, output, state, tables.retired), tables.kept_back)
        elif changed_inputs(rollup, work.inputs, output, state, tables.retired) is not None:
            work.begin_runs(state, tables.retired, kept_back=tables.kept_back)
        return self._to_be_made(work)

    def _looked_at(self, rollup: Rollup, urgency: int, beside: int) -> tuple[Work, State]:
        """Return a rollup of which nothing is begun yet, and what lineage has of it."""
        self._began[rollup.name] = time.monotonic()
        tables = self._tables
        inputs = {name: tables.snapshot(name) for name in rollup.tables}
        output = tables.output(rollup.name)
        if output.version != ABSENT:  # an added column is a commit: before we look, not between
            with suppress(NewerTableError, UnmigratedTableError):  # said where it is due: others go on till then
                ensure_table(tables.lake, rollup.contract)
            tables.changed(rollup.name)
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
        return work, self._recorded(rollup, output)

    def _recorded(self, rollup: Rollup, output: Snapshot) -> State:
        return {} if self._full else self._lineage.recorded(rollup, output)

    def _to_be_made(self, work: Work) -> Work:
        if work.version == ABSENT and work.pending is not None:
            self._unmade.append(work.rollup.contract)
        return work

    def _ended(self, work: Work) -> RollupResult:
        name = work.rollup.name
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
