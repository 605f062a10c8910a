"""Workers: the interface that carries out a plan's tasks, one task after the other, or each in a process of its own.

`ranklake.lake.plans.dask_workers` has clusters.
"""

import os
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from ranklake.errors import RanklakeError

Task = TypeVar("Task")
Result = TypeVar("Result")
Task_contra = TypeVar("Task_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class WorkersError(RanklakeError):
    """The Dask cluster cannot be reached, or it lost a task for good."""


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
Done = Callable[[], None] | None
"""Called after each task."""


class Pending(Protocol[Task_contra, Result_co]):
    """Tasks that were submitted, or run when their results are asked for."""

    @property
    def is_done(self) -> bool:
        """Whether `results` has nothing to wait for."""

    @property
    def is_put_off(self) -> bool:
        """Whether they begin, in this process, only when `results` is asked for."""

    def submit(self, tasks: Sequence[Task_contra], urgency: int = 0) -> None:
        """Begin further tasks, whose results come after those of the others."""

    def results(self, done: Done = None) -> Sequence[Result_co]:
        """Return results in the order of the tasks, calling `done` after each, or raise the first error.

        Asked again after an error, it begins them anew.
        """

    def cancel(self) -> None:
        """Have no more of them begun: nobody wants the results."""

    def abandon(self) -> Sequence[Result_co]:
        """Cancel tasks that have not begun, wait for the others and return their results without failures."""


Others = Sequence[Pending[Any, Any]]


class Workers(ABC):
    """Runs independent tasks."""

    def fitting(self, cpu_s: float) -> "Workers":
        """Return who should carry out work of about so many CPU-seconds: where little is to do, perhaps another."""
        del cpu_s
        return self

    @abstractmethod
    def room(self) -> Room:
        """Return what there is for tasks now; more or less may be there later."""

    @abstractmethod
    def begin(self, work: Callable[[Task], Result], tasks: Sequence[Task], urgency: int = 0) -> Pending[Task, Result]:
        """Begin tasks and go on; of those that wait for a worker the more urgent come first."""

    def wait(self, pending: Others) -> None:
        """Wait until one of those that it began has ended; at once where none is under way."""
        del pending

    @abstractmethod
    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        done: Done = None,
        lost: Callable[[Task], Result] | None = None,
    ) -> list[Result]:
        """Return results in the order of the tasks, calling `done` after each; the first error is raised.

        What `lost` returns stands for the result of a task that took all memory, or killed whoever carried it out.
        """


class Later(Generic[Task, Result]):
    """Tasks that run when their results are asked for."""

    is_done: Final = False
    is_put_off: Final = True

    def __init__(self, run: Callable[[Sequence[Task], Done], list[Result]]) -> None:
        self._run = run
        self._tasks: list[Task] = []

    def submit(self, tasks: Sequence[Task], urgency: int = 0) -> None:
        """Put further tasks off."""
        del urgency
        self._tasks += tasks

    def results(self, done: Done = None) -> list[Result]:
        """Carry all of them out, in order."""
        return self._run(self._tasks, done)

    def cancel(self) -> None:
        """Do nothing: none was begun."""

    def abandon(self) -> list[Result]:
        """Return nothing: none was begun."""
        return []


class OneByOne(Workers):
    """Carries tasks out one after the other."""

    def room(self) -> Room:
        """Return room for one."""
        return ONE

    def begin(self, work: Callable[[Task], Result], tasks: Sequence[Task], urgency: int = 0) -> Pending[Task, Result]:
        """Put the tasks off until their results are asked for."""
        later = Later[Task, Result](partial(self.run, work))
        later.submit(tasks, urgency)
        return later

    @abstractmethod
    def carry_out(self, work: Callable[[Task], Result], task: Task) -> Result:
        """Return a task's result. Raises what the task does, and `LostTaskError` where its worker died."""

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        done: Done = None,
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
        """Return a task's result."""
        return work(task)


@dataclass(frozen=True, slots=True)
class DaskSection:
    """The workers that run the tasks of ingest, checks, rollups and upkeep."""

    address: str = ""
    """Scheduler address such as ``tls://host:8786``. Empty: a local cluster is started if there is enough work."""
    workers: int = 0
    """Processes of a local cluster for all work; 0 means one per core, four at most, and none for small work."""
    memory_limit: str = "2GiB"
    """Memory of each local worker process."""
    tls_ca_file: str = ""
    """PEM file of the CA to trust at `address`. If any of these three is set, only TLS is used."""
    tls_client_cert: str = ""
    """PEM file of the client certificate."""
    tls_client_key: str = ""
    """PEM file of the client certificate's key."""

    @property
    def tls(self) -> dict[str, str]:
        """The ones of the three that are set, by name."""
        given = {name: getattr(self, name) for name in ("tls_ca_file", "tls_client_cert", "tls_client_key")}
        return {name: path for name, path in given.items() if path}


_SERVE: Final = f"import sys; from {__name__} import serve; serve(int(sys.argv[1]))"
_READY: Final = b"R"


class InSubprocess(OneByOne):
    """Carries each task out in a process that may die."""

    def carry_out(self, work: Callable[[Task], Result], task: Task) -> Result:
        """Return the result of a task.

        Raises what the task does, `LostTaskError` where its process died or had no memory left, and `WorkersError`
        where none can be started.
        """
        died, answer = _run(work, task)
        if died or isinstance(answer, MemoryError):
            raise LostTaskError("the process of a task died", hint="look at its memory and run it again")
        if isinstance(answer, BaseException):
            raise answer
        return cast("Result", answer)


def _run(work: Callable[[Task], Result], task: Task) -> tuple[bool, Any]:
    """Return whether the process died at the task, and else what it returned or raised."""
    reading, writing = os.pipe()
    path = os.pathsep.join(entry or os.curdir for entry in sys.path)
    with os.fdopen(reading, "rb") as answers:
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[writing],
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            os.close(writing)
        with child:
            try:
                with suppress(BrokenPipeError):
                    cast("Any", child.stdin).write(pickle.dumps((work, task)))
                    cast("Any", child.stdin).close()
                answer = answers.read()
            except BaseException:
                child.kill()
                raise
        if not answer.startswith(_READY):
            raise WorkersError(
                "a process for a task cannot be started", hint="look at this machine's memory and limits"
            )
        try:
            return False, pickle.loads(answer[len(_READY) :])  # noqa: S301 - our own child's answer
        except (EOFError, pickle.UnpicklingError):
            return True, None


def serve(descriptor: int) -> None:
    """Do what is asked for on standard input, and answer on a descriptor: `_READY`, then the result or the error."""
    with os.fdopen(descriptor, "wb", buffering=0) as answers:
        work, task = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
        answers.write(_READY)
        try:
            answer = work(task)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to whoever asked
            answer = error
        raw = memoryview(pickle.dumps(answer))
        while raw:
            raw = raw[answers.write(raw) :]
