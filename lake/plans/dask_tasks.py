"""Runs tasks on a Dask cluster: submits them through a client and gathers their results.

Only descriptions of work and of results pass through the scheduler, never rows.

Workers that this process did not start must run the same versions. With another version of ranklake a worker may read a
task differently, with another deltalake or pyarrow it writes files of an untested combination, and with other contracts
it writes other rows.
"""

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic
from uuid import uuid4

from ranklake.lake.plans.workers import ONE, Done, Others, Result, Room, Task, Workers, WorkersError

_LOST: Final = ("cancelled", "lost")
"""Status of futures that the scheduler does not know, because it died or was restarted."""
ROOM_S: Final = 5.0
"""Seconds for which the capacity of workers is cached. Requesting it takes as long as submitting a task."""


class ClusterLostError(WorkersError):
    """The scheduler died while it had tasks. Finished tasks need not run again."""


class OnDask(Workers):
    """Runs tasks on a Dask cluster through a client.

    Parameters
    ----------
    is_ours
        Whether this process started the cluster, so that its workers run the same versions.
    """

    def __init__(self, client: Any, *, is_ours: bool = True) -> None:  # noqa: ANN401 - distributed ships no types
        self.client = client
        self._checked: set[str] | None = None if is_ours else set()
        self._room: tuple[float, Room] | None = None

    def _check_versions(self) -> None:
        """Check the versions of workers that joined since the last call. Raises `WorkersError`."""
        if self._checked is None:
            return
        new = set(self.client.scheduler_info(n_workers=-1)["workers"]) - self._checked
        if new:
            refuse_other_versions(worker_versions(self.client, sorted(new)))
            self._checked |= new

    def room(self) -> Room:
        """Return the number of threads of all workers, and the least memory per thread. Cached for `ROOM_S`."""
        now = time.monotonic()
        if self._room is None or now - self._room[0] > ROOM_S:
            self._room = now, self._request_room()
        return self._room[1]

    def _request_room(self) -> Room:
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        bytes_each = [int(worker["memory_limit"]) // worker["nthreads"] for worker in workers if worker["memory_limit"]]
        return Room(max(1, sum(worker["nthreads"] for worker in workers)), min(bytes_each, default=ONE.bytes_each))

    def begin(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], urgency: int = 0
    ) -> "SubmittedTasks[Task, Result]":
        """Submit tasks. Raises `WorkersError`, without submitting any, if workers run other versions."""
        self._check_versions()
        return SubmittedTasks(self.client, work, list(tasks), urgency)

    def wait(self, pending: Others) -> None:
        """Wait until one group of submitted tasks is done."""
        submitted = [group for group in pending if isinstance(group, SubmittedTasks)]
        for _ in _finished_futures(self.client, [future for group in submitted for future in group.futures]):
            if any(group.is_done for group in submitted):
                return

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        done: Done = None,
        lost: Callable[[Task], Result] | None = None,
    ) -> list[Result]:
        """Submit all tasks and return their results. Dask repeats a task whose worker died.

        Raises the errors of `begin`, and `WorkersError` if workers died repeatedly at one task.
        """
        return self.begin(work, tasks).results(done, lost)


class SubmittedTasks(Generic[Task, Result]):
    """Tasks that were submitted to a cluster."""

    is_deferred: Final = False

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - distributed ships no types
        work: Callable[..., Result],
        tasks: list[Task],
        urgency: int,
    ) -> None:
        self._client, self._work = client, work
        self._groups: list[tuple[Sequence[Task], int]] = []
        self.futures: list[Any] = []
        self.submit(tasks, urgency)

    def submit(self, tasks: Sequence[Task], urgency: int = 0) -> None:
        """Submit further tasks. Raises `ClusterLostError` if the scheduler is lost."""
        self._groups.append((tasks, urgency))
        self.futures += self._submit(tasks, urgency)

    def _submit(self, tasks: Sequence[Task], urgency: int) -> list[Any]:
        # Pickled here, because Dask would send each column of a table as its own message, which costs more than the
        # task.
        pickled = [pickle.dumps(task) for task in tasks]
        if self._client.status == "closed":
            raise _lost_error()
        # Failed tasks are not retried here: after an outage the caller runs all again, and a bug would fail again.
        graph = _graph(self._work, pickled)
        return list(self._client.get(graph, list(graph), sync=False, priority=urgency))

    @property
    def is_done(self) -> bool:
        """Whether all tasks have finished, failed or been lost."""
        return bool(self.futures) and all(future.done() for future in self.futures)

    def cancel(self) -> None:
        """Cancel tasks that have not begun, and drop all results."""
        with suppress(Exception):  # errors mean that the scheduler is lost; then no task begins
            self._client.cancel(self.futures)
        self.futures = []

    def abandon(self) -> list[Result]:
        """Cancel tasks that have not begun and wait for the running ones. Returns the results of those that succeed.

        Empty if the scheduler is lost. A task that the scheduler assigns during this call may be missed.
        """
        with suppress(Exception):  # as in `cancel`
            running = {key for keys in self._client.processing().values() for key in keys}
            kept = [future for future in self.futures if future.done() or future.key in running]
            self._client.cancel([future for future in self.futures if future not in kept])
            for _ in _finished_futures(self._client, kept):
                pass
            return list(self._client.gather([future for future in kept if future.status == "finished"], errors="skip"))
        return []

    def results(self, done: Done = None, lost: Callable[[Task], Result] | None = None) -> list[Result]:
        """Return results in the order of the tasks; parameters as for `Workers.run`, errors as for `OnDask.run`."""
        if not self.futures:  # called again after an error
            self.futures = [future for tasks, urgency in self._groups for future in self._submit(tasks, urgency)]
        try:
            return self._gather_results(done, lost)
        except BaseException:
            self.cancel()
            raise

    def _gather_results(self, done: Done, lost: Callable[[Task], Result] | None) -> list[Result]:
        from distributed import KilledWorker

        futures, lost_keys = self.futures, set()
        for future in _finished_futures(self._client, futures):
            if future.status in _LOST:
                raise _lost_error()
            if future.status == "error":
                error = future.exception()
                if lost is not None and isinstance(error, (KilledWorker, MemoryError)):
                    lost_keys.add(future.key)
                    continue
                if isinstance(error, KilledWorker):
                    hint = "give each worker more memory ([dask] memory_limit) or look at the workers' logs"
                    raise WorkersError(f"workers died over and over at one task: {error}", hint=hint) from error
                raise error
            if done:
                done()
        gathered = iter(self._client.gather([future for future in futures if future.key not in lost_keys]))
        pairs = zip(futures, (task for tasks, _ in self._groups for task in tasks), strict=True)
        return [
            lost(task) if lost is not None and future.key in lost_keys else next(gathered) for future, task in pairs
        ]


def _finished_futures(client: Any, futures: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401 - distributed ships no types
    """Yield futures as they finish, fail or are lost."""
    from distributed import as_completed

    if all(future.done() for future in futures):  # faster than `as_completed`
        yield from futures
        return
    with client.as_current():  # `as_completed` uses the current client
        completed = as_completed(futures)
    yield from completed


def _lost_error() -> ClusterLostError:
    hint = "check that the scheduler runs, then repeat the command: finished work is kept"
    return ClusterLostError("the Dask scheduler was lost while it had tasks", hint=hint)


def _graph(work: Callable[..., Any], pickled: Sequence[bytes]) -> dict[str, Any]:
    """Return a Dask graph whose tasks wait in the scheduler until a worker is free.

    By default Dask would assign small groups of tasks to queues of workers, where they wait although others are idle.
    """
    from dask._task_spec import Task as Node

    keys = [f"{_run_pickled.__name__}-{uuid4()}" for _ in pickled]
    tasks = zip(keys, pickled, strict=True)
    return {key: Node(key, _run_pickled, work, task, _data_producer=True) for key, task in tasks}


def _run_pickled(work: Callable[..., Result], pickled: bytes) -> Result:
    return work(pickle.loads(pickled))  # noqa: S301 - clients of a worker can execute code there anyway


Versions = dict[str, str]


def probe() -> Callable[[], Versions]:
    """Return a function that returns the versions of the process in which it is called.

    It is defined inside this function so that it is pickled by value: other workers may lack this module.
    """

    def versions() -> Versions:
        import hashlib
        import platform
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec
        from pathlib import Path

        versions_here = {"Python": platform.python_version().rpartition(".")[0]}
        for name in ("ranklake", "pyarrow", "deltalake"):
            try:
                versions_here[name] = version(name)
            except PackageNotFoundError:
                versions_here[name] = "none"
        spec = find_spec("ranklake.lake.contracts") if versions_here["ranklake"] != "none" else None
        files = sorted(Path(spec.origin).parent.rglob("*.yaml")) if spec and spec.origin else []
        texts = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files))
        versions_here["contracts"] = texts.hexdigest()[:12] if files else "none"
        return versions_here

    return versions


def worker_versions(client: Any, workers: list[str] | None = None) -> Mapping[str, Versions]:  # noqa: ANN401 - distributed ships no types
    """Return the versions of a cluster's workers (default: all) by their addresses. Raises `WorkersError`."""
    try:
        versions: Mapping[str, Versions] = client.run(probe(), workers=workers)
    except Exception as error:
        hint = "install the driver's versions on the workers and start them again"
        raise WorkersError(f"workers do not tell their versions: {type(error).__name__}: {error}", hint=hint) from error
    return versions


def refuse_other_versions(versions: Mapping[str, Versions]) -> None:
    """Raise `WorkersError` for the first worker whose versions differ from this process, with both versions."""
    own = probe()()
    for worker, actual in sorted(versions.items()):
        differences = [
            f"{name} {actual.get(name, 'none')} (here {version})"
            for name, version in own.items()
            if actual.get(name) != version
        ]
        if differences:
            hint = "install the driver's versions on all workers and start them again"
            raise WorkersError(f"a Dask worker runs {', '.join(differences)}", where=worker, hint=hint)
