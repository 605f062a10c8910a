"""Deadline: code that takes more CPU time than it may is interrupted where it runs, and nothing else is.

A thread watches the CPU time of another, and raises `TimeLimitError` in it. Time on the CPU, not of the clock: on a
busy machine code does not run out of time because others work. What cannot be interrupted is one call of a C library
that never returns.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

_LOOKS: Final = 4
"""How often the watcher looks within the limit, at least; a detector may take so much longer than it should."""
_SHORTEST_LOOK_S: Final = 0.0005
_LONGEST_LOOK_S: Final = 0.5
_JUMPS: Final = 100
Result = TypeVar("Result")


class TimeLimitError(BaseException):
    """Code took longer than it may; no `Exception`, so that code that contains its own faults does not go on."""


class Deadline:
    """Calls functions in the thread that made it, each for at most so many seconds of CPU time; use it in a ``with``.

    Parameters
    ----------
    limit_s
        CPU seconds of a call; on systems that do not tell those of another thread, seconds of the clock.

    Notes
    -----
    The exception is sent once a call, and only while `_since` says under the lock that one is under way. It may
    arrive a few instructions later, when the function is done: `call` waits for it, so that nothing arrives outside.
    It is never taken back: CPython 3.11 would then look for it for good, and hang in the first call that is traced.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._thread_id = limit_s, threading.get_ident()
        self._lock = threading.Lock()
        self._since: float | None = None
        self._is_sent = False
        self._closing = threading.Event()
        self._clock = _cpu_clock(self._thread_id)
        self._watcher = threading.Thread(target=self._watch, name="ranklake-deadline", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no more."""
        self._closing.set()
        self._watcher.join()

    def call(self, function: Callable[[], Result]) -> Result:
        """Return what a function returns; raises what it raises, or `TimeLimitError`."""
        try:
            with self._lock:
                self._since, self._is_sent = self._clock(), False
            try:
                return function()
            finally:
                self._end()
        except TimeLimitError:
            with self._lock:  # `_end` may have been interrupted
                self._since = None
            raise

    def _end(self) -> None:
        with self._lock:
            self._since = None
            is_sent = self._is_sent
        if is_sent:  # it arrives at a jump back, if it has not yet
            for _ in range(_JUMPS):
                pass

    def _watch(self) -> None:
        pause_s = max(_SHORTEST_LOOK_S, min(_LONGEST_LOOK_S, self._limit_s / _LOOKS))
        while not self._closing.wait(pause_s):
            with self._lock:
                if self._since is None or self._is_sent or self._clock() - self._since < self._limit_s:
                    continue
                self._is_sent = True
                error = ctypes.py_object(TimeLimitError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), error)


def _cpu_clock(thread_id: int) -> Callable[[], float]:
    """Return a clock of a thread's CPU time that other threads can read while it lives."""
    if not hasattr(time, "pthread_getcpuclockid"):  # macOS
        return time.monotonic
    clock_id = time.pthread_getcpuclockid(thread_id)
    return lambda: time.clock_gettime(clock_id)
