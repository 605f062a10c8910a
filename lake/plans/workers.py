"""Workers carry out the tasks of a plan: the interface, and implementations in this process and in subprocesses.

`ranklake.lake.plans.dask_workers` implements workers on Dask clusters.
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
    """The Dask cluster cannot be reached, or a task failed on it repeatedly."""


class LostTaskError(WorkersError):
    """The process that carried out a task died."""


@dataclass(frozen=True, slots=True)
class Room:
    """Capacity of workers.

    Attributes
    ----------
    tasks
        Number of tasks that run at the same time.
    bytes_each
        Memory for each of them, in bytes.
    """

    tasks: int
    bytes_each: int


PIECE_SHARE: Final = 6
"""A worker may fill one part in so many of its memory with decoded rows. Sorting, writing and libraries use the rest.
"""
ONE: Final = Room(1, 2 * 2**30)
"""Capacity of a single process without a configured limit."""
Done = Callable[[], None] | None
"""Called after each task."""


class Pending(Protocol[Task_contra, Result_co]):
    """Tasks that were submitted to workers, or that are deferred until `results` is called."""

    @property
    def is_done(self) -> bool:
        """Whether `results` would return without waiting."""

    @property
    def is_deferred(self) -> bool:
        """Whether the tasks run in this process during `results`, and not before."""

    def submit(self, tasks: Sequence[Task_contra], urgency: int = 0) -> None:
        """Add tasks. Their results follow those of earlier tasks."""

    def results(self, done: Done = None) -> Sequence[Result_co]:
        """Return results in the order of the tasks, calling `done` after each task. Raises the first error.

        Calling it again after an error repeats all tasks.
        """

    def cancel(self) -> None:
        """Cancel tasks that have not begun. Results are lost."""

    def abandon(self) -> Sequence[Result_co]:
        """Cancel tasks that have not begun and wait for the others. Returns the results of those that succeed."""


Others = Sequence[Pending[Any, Any]]


class Workers(ABC):
    """Runs independent tasks."""

    def fitting(self, cpu_s: float) -> "Workers":
        """Return the workers to use for about this many CPU seconds of work; for little work, perhaps this process."""
        del cpu_s
        return self

    @abstractmethod
    def room(self) -> Room:
        """Return the current capacity. It may change later."""

    @abstractmethod
    def begin(self, work: Callable[[Task], Result], tasks: Sequence[Task], urgency: int = 0) -> Pending[Task, Result]:
        """Submit tasks without waiting for them. Waiting tasks with a higher `urgency` run first."""

    def wait(self, pending: Others) -> None:
        """Wait until one of the `pending` groups of tasks is done. Returns immediately if none is running."""
        del pending

    @abstractmethod
    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        done: Done = None,
        lost: Callable[[Task], Result] | None = None,
    ) -> list[Result]:
        """Run tasks and return their results in order, calling `done` after each task. Raises the first error.

        If a task runs out of memory or its process dies, the result of `lost(task)` is used instead.
        """


class Later(Generic[Task, Result]):
    """Tasks that run when `results` is called."""

    is_done: Final = False
    is_deferred: Final = True

    def __init__(self, run: Callable[[Sequence[Task], Done], list[Result]]) -> None:
        self._run = run
        self._tasks: list[Task] = []

    def submit(self, tasks: Sequence[Task], urgency: int = 0) -> None:
        """Add tasks."""
        del urgency
        self._tasks += tasks

    def results(self, done: Done = None) -> list[Result]:
        """Run all tasks in order and return their results."""
        return self._run(self._tasks, done)

    def cancel(self) -> None:
        """Do nothing, as no task has begun."""

    def abandon(self) -> list[Result]:
        """Return an empty list, as no task has begun."""
        return []


class OneByOne(Workers):
    """Runs tasks one after the other."""

    def room(self) -> Room:
        """Return the capacity for one task."""
        return ONE

    def begin(self, work: Callable[[Task], Result], tasks: Sequence[Task], urgency: int = 0) -> Pending[Task, Result]:
        """Defer tasks until `results` is called."""
        later = Later[Task, Result](partial(self.run, work))
        later.submit(tasks, urgency)
        return later

    @abstractmethod
    def carry_out(self, work: Callable[[Task], Result], task: Task) -> Result:
        """Run a task and return its result. Raises the task's error, and `LostTaskError` if its process died."""

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        done: Done = None,
        lost: Callable[[Task], Result] | None = None,
    ) -> list[Result]:
        """Run the tasks in order."""
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
    """Runs tasks in this process: for small work, and to finish another process' plan."""

    def carry_out(self, work: Callable[[Task], Result], task: Task) -> Result:
        """Run a task and return its result."""
        return work(task)


@dataclass(frozen=True, slots=True)
class DaskSection:
    """The workers that run the tasks of ingest, checks, rollups and upkeep."""

    address: str = ""
    """Scheduler address such as ``tls://host:8786``. Empty: a local cluster is started if there is enough work."""
    workers: int = 0
    """Number of worker processes of a local cluster. 0: one per core, at most four, and no cluster for small work."""
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
        """The configured TLS files, by name of the setting."""
        files = {name: getattr(self, name) for name in ("tls_ca_file", "tls_client_cert", "tls_client_key")}
        return {name: path for name, path in files.items() if path}


_SERVE: Final = f"import sys; from {__name__} import serve; serve(int(sys.argv[1]))"
_READY: Final = b"R"


class InSubprocess(OneByOne):
    """Runs each task in its own process, so that a task may crash."""

    def carry_out(self, work: Callable[[Task], Result], task: Task) -> Result:
        """Run a task and return its result.

        Raises the task's error, `LostTaskError` if its process died or ran out of memory, and `WorkersError` if no
        process can be started.
        """
        has_died, answer = _run(work, task)
        if has_died or isinstance(answer, MemoryError):
            raise LostTaskError("the process of a task died", hint="look at its memory and run it again")
        if isinstance(answer, BaseException):
            raise answer
        return cast("Result", answer)


def _run(work: Callable[[Task], Result], task: Task) -> tuple[bool, Any]:
    """Run a task in a new process. Returns whether the process died, and the task's result or error."""
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
            return False, pickle.loads(answer[len(_READY) :])  # noqa: S301 - written by our child process
        except (EOFError, pickle.UnpicklingError):
            return True, None


def serve(descriptor: int) -> None:
    """Run the task from standard input. Writes `_READY`, then the pickled result or error, to a descriptor."""
    with os.fdopen(descriptor, "wb", buffering=0) as answers:
        work, task = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the parent process
        answers.write(_READY)
        try:
            answer = work(task)
        except Exception as error:  # noqa: BLE001 - the parent process raises it
            answer = error
        raw = memoryview(pickle.dumps(answer))
        while raw:
            raw = raw[answers.write(raw) :]
