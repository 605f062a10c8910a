"""Updates one rollup: has the due dates or runs computed, and replaces the dates whose result changed."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from ranklake.lake.plans.driver import Unit, carry_out
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.declaration import Rollup
from ranklake.lake.rollups.due import DueRuns
from ranklake.lake.rollups.growth import Growth, growth_of
from ranklake.lake.rollups.inputs import ABSENT, WHOLE, Key, Snapshot, day_of, partition
from ranklake.lake.rollups.lineage import Lineage, State, commit_metadata
from ranklake.lake.rollups.tasks import (
    TASK_CPU_S,
    ComputeResult,
    DaysTask,
    Output,
    RunsTask,
    compute,
    files_for,
)
from ranklake.lake.store.files import delete
from ranklake.lake.tables.commit import LostRaceError, replace_files

if TYPE_CHECKING:
    from ranklake.lake.plans.workers import Pending, Workers
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.tables.live_files import Damage


def split_kept_back(
    due: Mapping[date, dict[Key, str]], kept_back: Collection[Key]
) -> tuple[dict[date, dict[Key, str]], set[Key]]:
    """Return the dates of a partition rollup that may be computed, and the partitions for which the others may not."""
    if not kept_back:
        return dict(due), set()
    may: dict[date, dict[Key, str]] = {}
    why: set[Key] = set()
    for day, inputs in due.items():
        held = {key for key in kept_back if _is_read(key, inputs, day)}
        why |= held
        if not held:
            may[day] = inputs
    return may, why


def _is_read(key: Key, inputs: Collection[Key], day: date) -> bool:
    """Whether a partition is an input of a date, by itself or as part of the whole table up to the date."""
    return key in inputs or ((key[0], WHOLE) in inputs and day_of(key[1]) <= day)


BATCH_ROWS: Final = 20_000_000
"""Input rows per parallel task after which computed dates are committed. It limits what is lost by a kill."""
MOST_ROWS: Final = 500_000
"""Most input rows of consecutive dates that are computed together. For fewer rows, planning takes most of the time."""
MOST_DAYS: Final = 64


class Work:
    """The update of one rollup: remaining, running and committed tasks.

    Parameters
    ----------
    crew
        Workers, used if there is enough to compute.
    since_plan
        The lake's last finished plan before any input was read. If an erasure was applied after it, nothing is
        committed.
    urgency
        Length of the longest chain of rollups that wait for this one.
    beside
        Number of other rollups that are computed at the same time and share the cores.
    anyway
        Whether to replace dates with an unchanged result, too.
    """

    def __init__(  # noqa: PLR0913 - all that it takes to bring a rollup up to date
        self,
        lake: "Lake",
        rollup: Rollup,
        inputs: Mapping[str, Snapshot],
        output: Snapshot,
        lineage: Lineage,
        crew: "Workers",
        *,
        since_plan: int,
        urgency: int = 0,
        beside: int = 0,
        anyway: bool = False,
    ) -> None:
        self.lake, self.rollup, self.inputs = lake, rollup, inputs
        self.contract = rollup.contract
        self.lineage, self.since_plan = lineage, since_plan
        self.urgency, self._beside = urgency, beside
        self.version = output.version
        self.replaced: list[date] = []
        self.computed = self.rows = 0
        self.damaged: list[Damage] = []
        self.kept_back: set[Key] = set()
        self._output = Output(lake.store.address, lake.store.storage, output, anyway=anyway)
        self._crew = crew
        self._left: list[DaysTask | RunsTask] = []
        self._current: list[DaysTask | RunsTask] = []
        self.pending: Pending[Any, ComputeResult] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether all due dates are committed."""
        return self.pending is None

    @property
    def is_done(self) -> bool:
        """Whether `advance` returns without waiting."""
        return self.pending is None or self.pending.is_done

    @property
    def is_deferred(self) -> bool:
        """Whether the tasks will be computed in this process, by `advance`."""
        return self.pending is not None and self.pending.is_deferred

    def begin_days(
        self, due: Mapping[date, dict[Key, str]], kept_back: Collection[Key] = (), state: State | None = None
    ) -> None:
        """Begin computing dates of a partition rollup, except for those that depend on what checks hold back.

        With `state`, the recorded lineage, only what new rows of a date can change is computed, where the rollup allows
        it (`ranklake.lake.rollups.growth`).
        """
        due, self.kept_back = split_kept_back(due, kept_back)
        tasks = []
        for group, rows in self._groups(due):
            growth = self._growth(group, state or {})
            tasks.append(DaysTask(self.rollup, group, {}, self._output, growth.rows if growth else rows, growth))
        self._begin(tasks, len(tasks) * TASK_CPU_S + self.rollup.row_cpu_s * sum(task.rows for task in tasks))

    def _growth(self, group: Mapping[date, dict[Key, str]], state: State) -> Growth | None:
        """Return the files that were added since a date was computed; None if it must be computed as a whole.

        Several dates are computed as a whole.
        """
        (day, digests), *others = group.items()
        recorded = state.get(partition(day))
        if others or not recorded:
            return None
        return growth_of(self.lake.store, self.rollup, day, recorded, digests, self.inputs, self._output.held)

    def begin_runs(
        self, state: State, gone: set[Key], due: DueRuns | None = None, kept_back: Collection[Key] = ()
    ) -> None:
        """Begin computing whole runs of a run rollup: those of `due`, or else what lineage does not cover."""
        self._begin([self._runs_task(state, gone, due, kept_back)], TASK_CPU_S)

    def _runs_task(self, state: State, gone: set[Key], due: DueRuns | None, kept_back: Collection[Key]) -> RunsTask:
        self.kept_back |= {key for key in kept_back if key[0] in self.inputs}
        inputs = {name: one.slim("run") for name, one in self.inputs.items()}
        return RunsTask(self.rollup, inputs, self._output, state, gone, due, frozenset(self.kept_back))

    def _begin(self, tasks: Sequence[DaysTask | RunsTask], cpu_s: float) -> None:
        # a lookup with a key must not be sent to another process
        if tasks and not self.rollup.holds_secret:
            self._crew = self._crew.fitting(cpu_s)
        else:
            self._crew = InProcess()
        self._left = list(tasks)
        self._begin_some()

    def _begin_some(self) -> None:
        """Begin the next tasks, as many as are committed together."""
        self.pending = None
        if not self._left:
            return
        here = isinstance(self._crew, InProcess)
        room = 1 if here else self._crew.room().tasks
        rows = count = 0
        while count < len(self._left) and rows < BATCH_ROWS * room:
            rows += self._left[count].rows
            count += 1
        self._current, self._left = self._left[:count], self._left[count:]
        work = partial(compute, lake=self.lake) if here else partial(compute)
        threads = 0 if here else self._threads(self._crew, count)
        # the longest first, so that none is running alone at the end
        self._current.sort(key=lambda task: task.rows, reverse=True)
        tasks = [self._with_inputs(task, threads) for task in self._current]
        self.pending = self._crew.begin(work, tasks, self.urgency)

    def _threads(self, crew: "Workers", count: int) -> int:
        """Return the number of threads for each query, if `count` tasks run at the same time."""
        return math.ceil(crew.room().tasks / (count + self._beside))

    def _with_inputs(self, task: DaysTask | RunsTask, threads: int) -> DaysTask | RunsTask:
        """Return a task with its inputs and settings, ready to be sent to a worker."""
        output = replace(self._output, threads=threads)
        rollup = self.rollup.with_lookups() if threads else self.rollup
        if isinstance(task, RunsTask):
            return replace(task, rollup=rollup, output=replace(output, held=output.held.slim()))
        output = replace(output, held=output.held.of(task.due, *rollup.bounds))
        return replace(task, rollup=rollup, output=output, live=files_for(rollup, task.due, self.inputs))

    def _leading_rows(self, inputs: Mapping[Key, str]) -> int:
        """Return the number of rows of a date's leading inputs."""
        leads = [self.inputs[item.table] for item in self.rollup.inputs[: self.rollup.leads]]
        read = {(table, day_of(name)) for table, name in inputs if name}
        files = [one.files([at]) for one in leads for name, at in read if name == one.table]
        return sum(pc.sum(some["num_records"]).as_py() or 0 for some in files)

    def _groups(self, due: Mapping[date, dict[Key, str]]) -> Iterator[tuple[dict[date, dict[Key, str]], int]]:
        """Yield the dates of each task, with the number of rows of their leading inputs.

        A task has one date, or several consecutive ones if the rollup allows it and they have few rows.
        """
        group: dict[date, dict[Key, str]] = {}
        rows = 0
        for day, inputs in sorted(due.items()):
            more = self._leading_rows(inputs)
            in_a_row = self.rollup.in_a_row and day - timedelta(1) in group and len(group) < MOST_DAYS
            if group and not (in_a_row and rows + more <= MOST_ROWS):
                yield group, rows
                group, rows = {}, 0
            group[day] = inputs
            rows += more
        if group:
            yield group, rows

    def advance(self) -> None:
        """Wait for the running tasks, commit their results, and begin the next tasks."""
        if self.pending is None:
            return
        dates = tuple(day for task in self._current if isinstance(task, DaysTask) for day in task.due)
        unit = Unit("compute", self.rollup.name, dates, reads=self.rollup.tables)
        computed = carry_out(unit, self.pending.results)
        self.pending = None  # committed results must not be undone if a later step fails
        self._commit(computed)
        self._begin_some()

    def finish(self) -> None:
        """Compute and commit all remaining tasks."""
        while not self.is_finished:
            self.advance()

    def cancel(self) -> None:
        """Cancel the running tasks."""
        if self.pending is not None:
            self.pending.cancel()

    def undo(self) -> None:
        """Cancel the running tasks and delete their files, which may have rows that were erased meanwhile."""
        for written in () if self.pending is None else self.pending.abandon():
            for file in written.files:
                delete(self.lake.store, self.lake.path("tables", file.table, file.path))

    def _commit(self, computed: Sequence[ComputeResult]) -> None:
        """Replace the dates with a changed result in one commit, and record the lineage of all computed dates."""
        self.damaged += [one for some in computed for one in some.damaged]
        self.computed += sum(some.computed for some in computed)
        state = {name: inputs for some in computed for name, inputs in some.state.items()}
        days = [day for some in computed for day in some.replaced]
        files = [file for some in computed for file in some.files]
        kept = {path for some in computed for path in some.kept}
        if days:
            swap = partial(
                replace_files,
                self.lake.tables,
                self.contract,
                files,
                days,
                kept=kept,
                metadata=commit_metadata(self.rollup, state),
                expected_version=None if self.version == ABSENT else self.version,
                since_plan=self.since_plan,
            )
            unit = Unit("commit", self.rollup.name, tuple(days), reads=self.rollup.tables, writes=True)
            try:
                self.version = carry_out(unit, swap)
            except LostRaceError:
                for file in files:  # not committed, and they may have rows that were erased meanwhile
                    delete(self.lake.store, self.lake.path("tables", file.table, file.path))
                raise
            self.replaced += days
            self.rows += sum(file.rows for file in files)
        if state:
            self.lineage.note(self.rollup, self.version, self.inputs, state)
