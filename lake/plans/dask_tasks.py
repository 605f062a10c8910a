"""Tasks on a Dask cluster: submitted through a client, gathered as they come.

Only descriptions of work and of its results pass through the scheduler; rows never do.

Workers that this process did not start are first asked what they run. One of another version reads a task otherwise, or
not at all; with another deltalake or pyarrow it writes files that no test has seen together; by other contracts it
writes other rows.
"""

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic
from uuid import uuid4

from ranklake.lake.plans.workers import ONE, Done, Others, Result, Room, Task, Workers, WorkersError

_LOST: Final = ("cancelled", "lost")
"""What futures are called whose scheduler does not know them: it died, or was started again."""
ROOM_S: Final = 5.0
"""For how long what workers have is taken to be the same. To ask the scheduler takes as long as to send it a task, and
a round asks for each of its tasks."""


class ClusterLostError(WorkersError):
    """The scheduler went away while it had tasks. Those that ended have done what they do; running again goes on."""


class OnDask(Workers):
    """Runs tasks on a Dask cluster through a client.

    Parameters
    ----------
    is_ours
        Whether this process started the cluster, so that its workers run what it runs.
    """

    def __init__(self, client: Any, *, is_ours: bool = True) -> None:  # noqa: ANN401 - distributed ships no types
        self.client = client
        self._known: set[str] | None = None if is_ours else set()
        self._room: tuple[float, Room] | None = None

    def _compare(self) -> None:
        """Hold workers that came since the last look against this process. Raises `WorkersError`."""
        if self._known is None:
            return
        new = set(self.client.scheduler_info(n_workers=-1)["workers"]) - self._known
        if new:
            refuse_other_versions(worker_versions(self.client, sorted(new)))
            self._known |= new

    def room(self) -> Room:
        """Return the threads of all workers, and the memory that the least of them has for each of its own.

        What it was at most `ROOM_S` ago.
        """
        now = time.monotonic()
        if self._room is None or now - self._room[0] > ROOM_S:
            self._room = now, self._asked_room()
        return self._room[1]

    def _asked_room(self) -> Room:
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        each = [int(worker["memory_limit"]) // worker["nthreads"] for worker in workers if worker["memory_limit"]]
        return Room(max(1, sum(worker["nthreads"] for worker in workers)), min(each, default=ONE.bytes_each))

    def begin(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], urgency: int = 0
    ) -> "SubmittedTasks[Task, Result]":
        """Submit tasks. Raises `WorkersError` where workers run other versions than this process: none was sent."""
        self._compare()
        return SubmittedTasks(self.client, work, list(tasks), urgency)

    def wait(self, pending: Others) -> None:
        """Wait until one submitted task has finished, failed or been lost."""
        begun = [one for one in pending if isinstance(one, SubmittedTasks)]
        for _ in _finished_futures(self.client, [future for one in begun for future in one.futures]):
            if any(one.is_done for one in begun):
                return

    def run(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        done: Done = None,
        lost: Callable[[Task], Result] | None = None,
    ) -> list[Result]:
        """Submit all tasks and gather their results as they come; a task lost with its worker runs again.

        Raises what `begin` does, and `WorkersError` where workers died over and over at one task.
        """
        return self.begin(work, tasks).results(done, lost)


class SubmittedTasks(Generic[Task, Result]):
    """Tasks that were submitted to a cluster."""

    is_put_off: Final = False

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
        """Submit further tasks. Raises `ClusterLostError` where the scheduler is gone."""
        self._groups.append((tasks, urgency))
        self.futures += self._submit(tasks, urgency)

    def _submit(self, tasks: Sequence[Task], urgency: int) -> list[Any]:
        # Each column of a table would be a message of its own, which costs the scheduler more than the task itself.
        sealed = [pickle.dumps(task) for task in tasks]
        if self._client.status == "closed":
            raise _lost()
        # No retries of a task that fails: an outage is for whoever runs the whole, a mistake stays one.
        graph = _graph(self._work, sealed)
        return list(self._client.get(graph, list(graph), sync=False, priority=urgency))

    @property
    def is_done(self) -> bool:
        """Whether all have finished, failed or been lost."""
        return bool(self.futures) and all(future.done() for future in self.futures)

    def cancel(self) -> None:
        """Have no more of them begun, and forget their results."""
        with suppress(Exception):  # whatever a client says that lost its scheduler: then nothing of them is begun
            self._client.cancel(self.futures)
        self.futures = []

    def abandon(self) -> list[Result]:
        """Have no more of them begun, wait for those that workers have, and return the results of those that succeeded.

        Nothing where the scheduler is gone. What it gives to a worker just now is not waited for.
        """
        with suppress(Exception):  # as in `cancel`
            theirs = {key for keys in self._client.processing().values() for key in keys}
            kept = [future for future in self.futures if future.done() or future.key in theirs]
            self._client.cancel([future for future in self.futures if future not in kept])
            for _ in _finished_futures(self._client, kept):
                pass
            return list(self._client.gather([future for future in kept if future.status == "finished"], errors="skip"))
        return []

    def results(self, done: Done = None, lost: Callable[[Task], Result] | None = None) -> list[Result]:
        """Return results in the order of the tasks; parameters and errors as for `OnDask.run`."""
        if not self.futures:  # another try
            self.futures = [future for tasks, urgency in self._groups for future in self._submit(tasks, urgency)]
        try:
            return self._gather_results(done, lost)
        except BaseException:
            self.cancel()
            raise

    def _gather_results(self, done: Done, lost: Callable[[Task], Result] | None) -> list[Result]:
        from distributed import KilledWorker

        futures, dead = self.futures, set()
        for future in _finished_futures(self._client, futures):
            if future.status in _LOST:
                raise _lost()
            if future.status == "error":
                error = future.exception()
                if lost is not None and isinstance(error, (KilledWorker, MemoryError)):
                    dead.add(future.key)
                    continue
                if isinstance(error, KilledWorker):
                    hint = "give each worker more memory ([dask] memory_limit) or look at the workers' logs"
                    raise WorkersError(f"workers died over and over at one task: {error}", hint=hint) from error
                raise error
            if done:
                done()
        gathered = iter(self._client.gather([future for future in futures if future.key not in dead]))
        pairs = zip(futures, (task for tasks, _ in self._groups for task in tasks), strict=True)
        return [lost(task) if lost is not None and future.key in dead else next(gathered) for future, task in pairs]


def _finished_futures(client: Any, futures: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401 - distributed ships no types
    """Yield futures as they finish, fail or are lost."""
    from distributed import as_completed

    if all(future.done() for future in futures):  # to be told would take longer than to look
        yield from futures
        return
    with client.as_current():  # which `as_completed` asks
        completed = as_completed(futures)
    yield from completed


def _lost() -> ClusterLostError:
    hint = "look whether the scheduler runs, and run it again: what was done stays done"
    return ClusterLostError("the Dask scheduler was lost while it had tasks", hint=hint)


def _graph(work: Callable[..., Any], sealed: Sequence[bytes]) -> dict[str, Any]:
    """Make a graph of tasks that wait with the scheduler for the first worker that is free.

    Dask puts a few tasks that come at a time into a worker's own queue, where they wait while another worker is idle.
    """
    from dask._task_spec import Task as Node

    keys = [f"{_open_work.__name__}-{uuid4()}" for _ in sealed]
    return {key: Node(key, _open_work, work, task, _data_producer=True) for key, task in zip(keys, sealed, strict=True)}


def _open_work(work: Callable[..., Result], sealed: bytes) -> Result:
    return work(pickle.loads(sealed))  # noqa: S301 - who speaks to a worker runs code there anyway


Versions = dict[str, str]


def probe() -> Callable[[], Versions]:
    """Return a function that tells the versions where it is called.

    It is made here each time so that it travels whole: a worker of another version may not have this module.
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
    """Return the versions of the workers of a cluster, or some of them, by address. Raises `WorkersError`."""
    try:
        versions: Mapping[str, Versions] = client.run(probe(), workers=workers)
    except Exception as error:
        hint = "install the driver's versions on the workers and start them again"
        raise WorkersError(f"workers do not tell their versions: {type(error).__name__}: {error}", hint=hint) from error
    return versions


def refuse_other_versions(versions: Mapping[str, Versions]) -> None:
    """Raise `WorkersError` for the first worker that runs something else than this process, naming both."""
    here = probe()()
    for worker, there in sorted(versions.items()):
        other = [
            f"{name} {there.get(name, 'none')} (here {mine})" for name, mine in here.items() if there.get(name) != mine
        ]
        if other:
            hint = "install the driver's versions on all workers and start them again"
            raise WorkersError(f"a Dask worker runs {', '.join(other)}", where=worker, hint=hint)
