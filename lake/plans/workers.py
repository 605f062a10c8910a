"""Workers: the interface that carries out a plan's tasks, and the plain way, one task after the other.

`ranklake.lake.plans.dask_workers` has clusters, `ranklake.lake.plans.subprocess_workers` processes that may die.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from ranklake.errors import RanklakeError

Task = TypeVar("Task")
Result = TypeVar("Result")
Task_contra = TypeVar("Task_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class WorkersError(RanklakeError):
    """The Dask cluster cannot be had, or it lost a task for good."""


class LostTaskError(WorkersError):
    """Whoever carried a task out died of it."""


@dataclass(frozen=True, slots=True)
class Room:
    """What workers have.

    Attributes
    ----------
    tasks
        How many they carry out at a time.
    bytes_each
        Memory for each of these.
    """

    tasks: int
    bytes_each: int


PIECE_SHARE: Final = 6
"""One part in so many of its memory may a worker fill with decoded rows: sorting, writing and libraries take the rest.
"""
ONE: Final = Room(1, 2 * 2**30)
"""What a process has that is given no limit."""


class Pending(Protocol[Task_contra, Result_co]):
    """Tasks that were begun, or are when somebody asks for what came of them."""

    @property
    def is_done(self) -> bool:
        """Whether `results` has nothing to wait for."""

    @property
    def is_put_off(self) -> bool:
        """Whether they begin, in this process, only when `results` is asked for."""

    def more(self, tasks: Sequence[Task_contra], urgency: int = 0) -> None:
        """Begin further tasks, whose results come after those of the others."""

    def results(self, done: Callable[[], None] | None = None) -> Sequence[Result_co]:
        """Return results in the order of the tasks, calling `done` after each, or raise the first error.

        Asked again after an error, it begins them anew.
        """

    def cancel(self) -> None:
        """Have no more of them begun: nobody wants the results."""

    def abandon(self) -> Sequence[Result_co]:
        """Have no more of them begun, wait for those that were, and return what came of them; failures are left out."""


class Workers(Protocol):
    """Runs independent tasks."""

    def fitting(self, cpu_s: float) -> "Workers":
        """Return who should carry out work of about so many CPU-seconds: where little is to do, perhaps another."""

    def room(self) -> Room:
        """Return what there is for tasks now; more or less may be there later."""

    def begin(self, work: Callable[[Task], Result], tasks: Sequence[Task], urgency: int = 0) -> Pending[Task, Result]:
        """Begin tasks and go on; of those that wait for a worker the more urgent come first."""

    def begin_after(
        self,
        work: Callable[[Task, Sequence[Any]], Result],
        task: Task,
        before: Sequence[Pending[Any, Any]],
        urgency: int = 0,
    ) -> Pending[Task, Result] | None:
        """Begin a task once others have ended, with what came of them, whoever has asked for that by then.

        None where nothing is gained by it: it is begun like any other once their results are there.
        """

    def wait(self, pending: Sequence[Pending[Any, Any]]) -> None:
        """Wait until one of those that it began has ended; at once where none is under way."""

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        done: Callable[[], None] | None = None,
        lost: Callable[[Task], Result] | None = None,
    ) -> list[Result]:
        """Return results in the order of the tasks, calling `done` after each; the first error is raised.

        What `lost` returns stands for the result of a task that took all memory, or killed whoever carried it out.
        """


class Later(Generic[Task, Result]):
    """Tasks that are carried out when somebody asks for what came of them."""

    is_done: Final = False
    is_put_off: Final = True

    def __init__(self, run: Callable[[Sequence[Task], Callable[[], None] | None], list[Result]]) -> None:
        self._run = run
        self._tasks: list[Task] = []

    def more(self, tasks: Sequence[Task], urgency: int = 0) -> None:
        """Put further tasks off."""
        del urgency
        self._tasks += tasks

    def results(self, done: Callable[[], None] | None = None) -> list[Result]:
        """Carry all of them out, in order."""
        return self._run(self._tasks, done)

    def cancel(self) -> None:
        """Do nothing: none was begun."""

    def abandon(self) -> list[Result]:
        """Return nothing: none was begun."""
        return []


class OneByOne(ABC):
    """Carries tasks out one after the other."""

    def fitting(self, cpu_s: float) -> "Workers":
        """Return itself."""
        del cpu_s
        return self

    def room(self) -> Room:
        """Return room for one."""
        return ONE

    def begin(self, work: Callable[[Task], Result], tasks: Sequence[Task], urgency: int = 0) -> Pending[Task, Result]:
        """Put the tasks off until their results are asked for."""
        found = Later[Task, Result](partial(self.run, work))
        found.more(tasks, urgency)
        return found

    def begin_after(
        self,
        work: Callable[[Task, Sequence[Any]], Result],
        task: Task,
        before: Sequence[Pending[Any, Any]],
        urgency: int = 0,
    ) -> None:
        """Begin nothing: one comes after the other anyway."""
        del work, task, before, urgency

    def wait(self, pending: Sequence[Pending[Any, Any]]) -> None:
        """Return at once: nothing is under way."""
        del pending

    @abstractmethod
    def carry_out(self, work: Callable[[Task], Result], task: Task) -> Result:
        """Return what came of a task. Raises what the task does, and `LostTaskError` where what carried it out died."""

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        done: Callable[[], None] | None = None,
        lost: Callable[[Task], Result] | None = None,
    ) -> list[Result]:
        """Carry out the tasks in order."""
        results = []
        for task in tasks:
            try:
                results.append(self.carry_out(work, task))
            except (MemoryError, LostTaskError):
                if lost is None:
                    raise
                results.append(lost(task))
            if done:
                done()
        return results


class InProcess(OneByOne):
    """Carries tasks out in this process: for small work, and for a plan that some other command finds."""

    def carry_out(self, work: Callable[[Task], Result], task: Task) -> Result:
        """Return what came of a task."""
        return work(task)
