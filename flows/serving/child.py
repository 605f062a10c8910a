"""A child process of ``ranklake up``: ends with its parent, restarts after a crash; its output is redacted."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import psutil

from ranklake.printable import printable
from ranklake.redaction.redact import redact

SHORTEST_S: Final = 1.0
LONGEST_S: Final = 60.0
"""Bounds of the pause before a restart in seconds. It doubles until a child has lived for `LONGEST_S`."""
_LINE_BYTES: Final = 1 << 20
_CHAINED: Final = ("The above exception was the direct cause", "During handling of the above exception")
LEASH: Final = (sys.executable, "-m", "ranklake.flows.serving.leash")


@dataclass(slots=True)
class Child:
    """A program that is restarted when it ends.

    Attributes
    ----------
    name
        Prefix of each of its output lines.
    command, environment
        Arguments and environment variables.
    say
        Called with each line to report.
    last
        Its last lines, as the reason of its end.
    restarts
        Number of restarts.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    say: Callable[[str], None]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    process: asyncio.subprocess.Process | None = None
    pause_s: float = SHORTEST_S
    restarts: int = 0
    _began: float = 0.0
    _reader: "asyncio.Task[None] | None" = None

    async def start(self) -> None:
        """Start the process."""
        self._began = time.monotonic()
        self.process = await start_on_leash(self.command, self.environment, _LINE_BYTES, asyncio.subprocess.STDOUT)
        self._reader = asyncio.create_task(self._pass_on())

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.returncode is None

    async def wait_for_end(self) -> str:
        """Wait until the process ends, and return how it ended, in words."""
        assert self.process is not None
        code = await self.process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def next_pause_s(self) -> float:
        """Return the pause before the next restart, in seconds."""
        if time.monotonic() - self._began > LONGEST_S:
            self.pause_s = SHORTEST_S
        result, self.pause_s = self.pause_s, min(2 * self.pause_s, LONGEST_S)
        return result

    def pids(self) -> set[int]:
        """Return the ids of the process and its descendants."""
        if self.process is None:
            return set()
        try:
            first = psutil.Process(self.process.pid)
            return {first.pid, *(child.pid for child in first.children(recursive=True))}
        except psutil.NoSuchProcess:
            return set()

    def kill_all(self) -> None:
        """Kill the process and its descendants."""
        if self.process is not None:
            kill_tree(self.process.pid)

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM; after `grace_s` seconds kill the process and its descendants."""
        if self.process is None:
            return
        if self.alive and grace_s:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), grace_s)
        self.kill_all()
        await self.process.wait()
        if self._reader is not None:
            await self._reader

    async def _pass_on(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        condensed = TracebackFilter()
        while True:
            try:
                line = await self.process.stdout.readline()
            except ValueError:  # longer than `_LINE_BYTES`
                continue
            if not line:
                return
            text = printable(redact(line.decode(errors="replace").rstrip()))
            if text and condensed.keeps(text):
                self.last.append(text)
                self.say(f"{self.name:<7} {text}")


@dataclass(slots=True)
class TracebackFilter:
    """Drops lines of tracebacks. Of chained errors it keeps the message of the first, which is the cause."""

    _frames: bool = False
    _chained: bool = False

    def keeps(self, line: str) -> bool:
        """Return whether a line is kept."""
        if line.startswith(_CHAINED):
            self._chained = True
            return False
        if line.startswith("Traceback (most recent call last)"):
            self._frames = True
            return False
        if self._frames and line.startswith(" "):
            return False
        kept = not (self._frames and self._chained)
        self._frames = self._chained = False
        return kept


async def start_on_leash(
    command: Sequence[str], environment: Mapping[str, str], limit: int, stderr: int = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    """Start a program in a new session that ends with this process; Ctrl-C in a terminal reaches the parent only."""
    return await asyncio.create_subprocess_exec(
        *LEASH,
        str(os.getpid()),
        *command,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        limit=limit,
    )


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants with SIGKILL."""
    try:
        first = psutil.Process(pid)
        processes = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for item in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            item.kill()


def kill_left_behind(mark: str, value: str, but: Container[int] = ()) -> int:
    """Kill every process of this user with this environment variable, except this process tree; return how many."""
    me = psutil.Process()
    ancestors = {me.pid, *(parent.pid for parent in me.parents())}
    result = 0
    for item in psutil.process_iter():
        try:
            if item.pid not in ancestors and item.pid not in but and item.environ().get(mark) == value:
                item.kill()
                result += 1
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return result
