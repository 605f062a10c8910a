"""Interrupts a function that exceeds a limit of CPU time.

A watcher thread reads the CPU time of the thread that runs the function, and raises `TimeLimitError` in it. CPU time is
used instead of wall time, so that other processes on a busy machine do not cause timeouts. A call of a C library that
never returns cannot be interrupted.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

_LOOKS: Final = 4
"""Checks of the CPU time within the limit. A function may exceed the limit by one interval between checks."""
_SHORTEST_LOOK_S: Final = 0.0005
_LONGEST_LOOK_S: Final = 0.5
_JUMPS: Final = 100
Result = TypeVar("Result")


class TimeLimitError(BaseException):
    """A function exceeded its time limit. No `Exception`, so that functions that catch these do not continue."""


class Deadline:
    """A context manager that calls functions with a limit of CPU time, in the thread that created it.

    Parameters
    ----------
    limit_s
        CPU seconds per call; wall seconds on systems without CPU clocks of threads.

    Notes
    -----
    The exception is sent at most once per call, and only while `_since` is set, under the lock. It may arrive a few
    instructions later, after the function has returned. `call` waits for it, so that it never arrives outside of
    `call`. The exception is never withdrawn: CPython 3.11 would then check for it forever, and hang in the first
    traced call.
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
        """Start the watcher thread."""
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the watcher thread."""
        self._closing.set()
        self._watcher.join()

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function and return its result. Raises what the function raises, or `TimeLimitError`."""
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
        if is_sent:  # CPython raises a pending exception at a backward jump, so this loop receives it
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
    """Return a clock of a thread's CPU time. Other threads can read it while the thread exists."""
    if not hasattr(time, "pthread_getcpuclockid"):  # macOS
        return time.monotonic
    clock_id = time.pthread_getcpuclockid(thread_id)
    return lambda: time.clock_gettime(clock_id)
