"""Processes that answer viewers' queries, and are killed at limits of time and memory.

    page ──POST──▶ QueryPool ──pickle──▶ ranklake.ui.query_process: the path of `ranklake sql` ──bytes──▶ page

Queries may run for ever, and the engine has no limits. So queries run outside of the server: a process that runs too
long, grows too large, or whose viewer left is killed, and replaced for the next query.
"""

import asyncio
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psutil

from ranklake.errors import RanklakeError
from ranklake.ui.guard import BusyError

if TYPE_CHECKING:
    from functools import partial

    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

LENGTH_BYTES: Final = 8
"""Length before each pickle on a pipe, big-endian."""
_LOOK_S: Final = 0.05
_IDLE_S: Final = 300.0
_MOST_WAITING: Final = 256
_MOST_OF_A_NAME: Final = 8
_START_S: Final = 120.0


class QueryStoppedError(RanklakeError):
    """A query that took too long or too much memory, or that ended its process."""


@dataclass(frozen=True, slots=True)
class ViewerQuery:
    """A query of a viewer.

    Attributes
    ----------
    consumer
        Consumer, for the query log.
    form
        Format of the answer: one of `ranklake.ui.query_process.FORMS`.
    is_logged
        Whether the query log is kept.
    """

    text: str
    role: "Role | None"
    consumer: str
    form: str
    is_logged: bool


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Bounds of one query."""

    time_s: float
    memory_bytes: int
    at_once: int = 2


@dataclass(eq=False)
class _Worker:
    process: asyncio.subprocess.Process
    used_at: float = field(default_factory=time.monotonic)

    async def call(self, value: object) -> Any:  # noqa: ANN401 - what the process answers
        """Send a value, and return the answer. Raises `EOFError` and `OSError` if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        data = pickle.dumps(value)
        self.process.stdin.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
        await self.process.stdin.drain()
        length = await self.process.stdout.readexactly(LENGTH_BYTES)
        answer = await self.process.stdout.readexactly(int.from_bytes(length, "big"))
        return pickle.loads(answer)  # noqa: S301 - our own process; a query chooses no object in it

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        """Wait for the end of the killed process, and close its pipes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(OSError, ValueError):
            await self.process.communicate()


class QueryPool:
    """Answers queries in child processes, a few at a time; others wait.

    Parameters
    ----------
    open_lake
        Function that opens the lake in a process of the pool, for each query.
    """

    def __init__(self, open_lake: "partial[Lake]", limits: QueryLimits) -> None:
        self._open_lake, self._limits = open_lake, limits
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._turns, self._starting = asyncio.Semaphore(limits.at_once), asyncio.Lock()
        self._turn_by_name: dict[str, asyncio.Semaphore] = {}
        self._waiting: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, query: ViewerQuery, name: str) -> bytes:
        """Return the answer to a viewer's query; a viewer's queries run one at a time.

        Raises `QueryStoppedError`, `BusyError` if too many wait, and what the query raises. Cancelling it ends the
        query.
        """
        if self._waiting.total() >= _MOST_WAITING or (name and self._waiting[name] >= _MOST_OF_A_NAME):
            raise BusyError("too many queries wait: try again in a minute")
        self._waiting[name] += 1
        own = self._turn_by_name.setdefault(name, asyncio.Semaphore(1 if name else self._limits.at_once))
        try:
            async with own, self._turns:
                return await self._answer(query)
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name], self._turn_by_name[name]

    async def _answer(self, query: ViewerQuery) -> bytes:
        async with self._starting:  # a starting process may serve it
            worker = self._idle.pop() if self._idle else await self._start()
        answer: bytes | RanklakeError | None = None
        try:
            answer = await self._bounded(worker, worker.call(query), self._limits.time_s)
        except (EOFError, OSError, pickle.UnpicklingError):
            hint = "ask for less, or with 'ranklake sql'"
            raise QueryStoppedError("the query ended its process", where="SQL", hint=hint) from None
        finally:
            if answer is None:
                self._end(worker)
            else:
                self._keep(worker)
        if isinstance(answer, RanklakeError):
            raise answer
        return answer

    async def _bounded(self, worker: _Worker, work: Coroutine[Any, Any, Any], time_s: float) -> Any:  # noqa: ANN401 - its answer
        """Return the result of a call to a process. Raises `QueryStoppedError` at a limit."""
        begun, call = time.monotonic(), asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({call}, timeout=_LOOK_S))[0]:
                if time.monotonic() - begun > time_s:
                    hint = "ask for fewer rows or dates, or with 'ranklake sql'"
                    raise QueryStoppedError(f"the query took more than {time_s:g} s", where="SQL", hint=hint)
                if _memory_bytes(worker.process.pid) > self._limits.memory_bytes:
                    message = f"the query took more than {self._limits.memory_bytes / 2**30:.3g} GiB of memory"
                    raise QueryStoppedError(message, where="SQL", hint="ask for fewer rows, groups or columns")
            return call.result()
        finally:
            call.cancel()

    async def _start(self) -> _Worker:
        """Return a new process that is ready for a query."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ranklake.ui.query_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is handled by the server, which ends it
        )
        worker = _Worker(process)
        self._workers.add(worker)
        is_ready = False
        try:
            is_ready = await self._bounded(worker, worker.call(self._open_lake), _START_S)
        except (EOFError, OSError):
            raise QueryStoppedError("no process for queries can be started", hint="see the server's output") from None
        finally:
            if not is_ready:
                self._end(worker)
        return worker

    def warm(self) -> None:
        """Start a process if there is none, so that the page's first query need not wait for it."""

        async def start() -> None:
            async with self._starting:
                if not self._workers:
                    with suppress(RanklakeError, OSError):
                        self._keep(await self._start())

        if not self._workers:
            self._run(start())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _keep(self, worker: _Worker) -> None:
        worker.used_at = time.monotonic()
        self._idle.append(worker)
        asyncio.get_running_loop().call_later(_IDLE_S, self._end_idle, worker)

    def _end_idle(self, worker: _Worker) -> None:
        if worker in self._idle and time.monotonic() - worker.used_at >= _IDLE_S:
            self._idle.remove(worker)
            self._end(worker)

    def _end(self, worker: _Worker) -> None:
        worker.kill()
        self._workers.discard(worker)
        self._run(worker.end())

    async def close(self) -> None:
        """End all processes, and wait for their ends."""
        for worker in list(self._workers):
            self._end(worker)
        while tasks := list(self._tasks):
            await asyncio.wait(tasks)


def _memory_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


async def unless_gone(work: Coroutine[Any, Any, bytes], is_gone: Callable[[], Coroutine[Any, Any, bool]]) -> bytes:
    """Return the result of work, which is cancelled once its viewer leaves. Raises `QueryStoppedError` then."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=5 * _LOOK_S))[0]:
            if await is_gone():
                raise QueryStoppedError("nobody waits for the answer")
        return task.result()
    finally:
        task.cancel()
