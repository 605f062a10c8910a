"""Aggregate: combine values into one row of ``scalars`` per interval, as they arrive; and counters.

Each thread has its own row, so no lock is needed. Mean and sum of squared deviations are updated as by Welford: B. P.
Welford, "Note on a method for calculating corrected sums of squares and products", Technometrics 4 (1962).
"""

import math
import threading
from collections.abc import Callable
from typing import Any, Final

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import BadValueError, number
from ranklake.capture.lanes.double_buffer import BufferedSlot, DoubleBuffer
from ranklake.capture.metrics.handles import Define, Failed, NullHandle, step_of

State = tuple[int, int, float, float, float, float]
"""Number of values; number of finite values; minimum, maximum, mean and sum of squared deviations of these."""

EMPTY_STATE: Final[State] = (0, 0, 0.0, 0.0, 0.0, 0.0)


def fold(state: State, value: float) -> State:
    """Return the state with one more value. NaN and infinities only increase the number of values."""
    count, finite, minimum, maximum, mean, m2 = state
    if not math.isfinite(value):
        return count + 1, finite, minimum, maximum, mean, m2
    if not finite:
        return count + 1, 1, value, value, value, 0.0
    finite += 1
    deviation = value - mean
    mean += deviation / finite
    return count + 1, finite, min(minimum, value), max(maximum, value), mean, m2 + deviation * (value - mean)


class _Current(threading.local):
    """The current row of the calling thread."""

    slot: BufferedSlot | None = None
    state: State = EMPTY_STATE
    until_ns = 0
    busy = False


class Aggregate:
    """The handle of an aggregated metric: ``wait = run.aggregate("data/wait")``, then ``wait.add(seconds)``.

    Parameters
    ----------
    buffer
        Double buffer in the lane ``intervals``.
    define, failed
        See `ranklake.capture.metrics.handles`.
    every_ns
        Length of an interval. It begins with its first value; sealing the file ends it early.
    """

    __slots__ = ("_buffer", "_current", "_define", "_every_ns", "_failed", "_series", "name")

    def __init__(self, name: str, buffer: DoubleBuffer, define: Define, every_ns: int, failed: Failed) -> None:
        self.name = name
        self._buffer, self._define, self._every_ns, self._failed = buffer, define, every_ns, failed
        self._series: int | None = None
        self._current = _Current()

    def add(self, value: Any = None, step: Any = None) -> None:  # noqa: ANN401 - any value
        """Add a value to the current interval. After this call returns, the value survives a kill."""
        try:
            at = ABSENT if step is None else step_of(step)
            self.take(value if value.__class__ is float else number(value), at)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(self.name, value, error, lambda late: self.add(late, step))

    def take(self, value: float, step: int) -> bool:
        """Add a number to the current interval. Return False if it was counted as a gap. Raises errors of `define`."""
        time_ns = now()
        current = self._current
        if current.busy:  # called by a signal handler or destructor within the lines below: use a separate row
            return self._begin(value, step, time_ns) is not None
        current.busy = True
        try:
            if current.slot is not None and time_ns < current.until_ns:
                state = fold(current.state, value)
                if current.slot.write((time_ns, step, *state, value)):
                    current.state = state
                    return True
            current.slot = None
            current.slot = self._begin(value, step, time_ns)
            current.state, current.until_ns = fold(EMPTY_STATE, value), time_ns + self._every_ns
            return current.slot is not None
        finally:
            current.busy = False

    def _begin(self, value: float, step: int, time_ns: int) -> BufferedSlot | None:
        if self._series is None:
            self._series = self._define()
        return self._buffer.begin(time_ns, self._series, (time_ns, step, *fold(EMPTY_STATE, value), value))

    def after_fork(self) -> None:
        """Start a new row in a forked child, because the current row belongs to the parent."""
        self._current = _Current()

    def __reduce__(self) -> tuple[Any, ...]:
        return NullHandle, (self.name,)


class Counter:
    """The handle of a counter: ``read = run.counter("data/bytes_read")``, then ``read.add(len(block))``.

    Parameters
    ----------
    define, failed
        See `ranklake.capture.metrics.handles`.
    put
        Writes (time_ns, step, value, series).

    Notes
    -----
    All threads of the process share the sum. One lock covers addition and write; otherwise a later row could have a
    smaller sum, which readers interpret as a restart. The sum is exact up to 53 bits.
    """

    __slots__ = ("_define", "_failed", "_lock", "_put", "_series", "_sum", "name")

    def __init__(
        self, name: str, define: Define, put: Callable[[int, int, float, int], object], failed: Failed
    ) -> None:
        self.name = name
        self._define, self._put, self._failed = define, put, failed
        self._series: int | None = None
        self._sum: int | float = 0
        self._lock = threading.RLock()

    def add(self, n: Any = 1, step: Any = None) -> None:  # noqa: ANN401 - any value
        """Increase the sum by `n` >= 0. After this call returns, the new sum survives a kill."""
        try:
            at = step_of(step)
            increment = _increment(n)
            with self._lock:
                if self._series is None:
                    self._series = self._define()
                float(self._sum + increment)  # raises outside the range of a double, before the sum changes
                self._sum += increment
                # Read the clock first: an addition by a signal handler in between has a later time and a larger sum.
                self._put(now(), at, float(self._sum), self._series)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(self.name, n, error, lambda late: self.add(late, step))

    def after_fork(self) -> None:
        """Restart from 0 in a forked child, with a new lock, because a thread of the parent may hold the old one."""
        self._lock = threading.RLock()
        self._sum = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return NullHandle, (self.name,)


def _increment(n: object) -> int | float:
    increment = int(n) if isinstance(n, int) else number(n)
    if not (math.isfinite(increment) and increment >= 0):
        raise BadValueError(f"{increment}, but a counter only grows")
    return increment
