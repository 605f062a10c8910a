"""Aggregate: values folded into one row of ``scalars`` per interval, as they arrive.

Each thread has a row of its own, so nothing is locked. The running mean and sum of squared distances are Welford's:
B. P. Welford, "Note on a method for calculating corrected sums of squares and products", Technometrics 4 (1962).
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
"""Values; finite ones; and of these least, greatest, mean, sum of squared distances from the mean."""

NOTHING_YET: Final[State] = (0, 0, 0.0, 0.0, 0.0, 0.0)


def fold(state: State, value: float) -> State:
    """Return the state with one more value. NaN and infinities are counted and change nothing else."""
    count, finite, least, greatest, mean, m2 = state
    if not math.isfinite(value):
        return count + 1, finite, least, greatest, mean, m2
    if not finite:
        return count + 1, 1, value, value, value, 0.0
    finite += 1
    off = value - mean
    mean += off / finite
    return count + 1, finite, min(least, value), max(greatest, value), mean, m2 + off * (value - mean)


class _Current(threading.local):
    """The row that a thread folds into."""

    cell: BufferedSlot | None = None
    state: State = NOTHING_YET
    until_ns = 0
    busy = False


class Aggregate:
    """One metric, folded: ``wait = run.aggregate("data/wait")``, then ``wait.add(seconds)`` as often as you like.

    Parameters
    ----------
    twin
        Of the lane ``intervals``.
    define, failed
        See `handles`.
    every_ns
        Length of an interval. It begins with its first value; a file that is sealed ends it early.
    """

    __slots__ = ("_current", "_define", "_every_ns", "_failed", "_series", "_twin", "name")

    def __init__(self, name: str, twin: DoubleBuffer, define: Define, every_ns: int, failed: Failed) -> None:
        self.name = name
        self._twin, self._define, self._every_ns, self._failed = twin, define, every_ns, failed
        self._series: int | None = None
        self._current = _Current()

    def add(self, value: Any = None, step: Any = None) -> None:  # noqa: ANN401 - whatever training has
        """Fold in a value; once this has returned, it survives the process."""
        try:
            at = ABSENT if step is None else step_of(step)
            self.take(value if value.__class__ is float else number(value), at)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(self.name, value, error, lambda late: self.add(late, step))

    def take(self, value: float, step: int) -> bool:
        """Fold in a number; False if its row finds no place, which is then counted. Raises what `define` does."""
        moment = now()
        current = self._current
        if current.busy:  # a signal handler, or a destructor, within the lines below: it gets a row of its own
            return self._begin(value, step, moment) is not None
        current.busy = True
        try:
            if current.cell is not None and moment < current.until_ns:
                state = fold(current.state, value)
                if current.cell.write((moment, step, *state, value)):
                    current.state = state
                    return True
            current.cell = None
            current.cell = self._begin(value, step, moment)
            current.state, current.until_ns = fold(NOTHING_YET, value), moment + self._every_ns
            return current.cell is not None
        finally:
            current.busy = False

    def _begin(self, value: float, step: int, moment: int) -> BufferedSlot | None:
        if self._series is None:
            self._series = self._define()
        return self._twin.begin(moment, self._series, (moment, step, *fold(NOTHING_YET, value), value))

    def after_fork(self) -> None:
        """In a forked child: the rows are the parent's."""
        self._current = _Current()

    def __reduce__(self) -> tuple[Any, ...]:
        return NullHandle, (self.name,)


class Counter:
    """One counter: ``read = run.counter("data/bytes_read")``, then ``read.add(len(block))``.

    Parameters
    ----------
    define, failed
        See `handles`.
    put
        Writes (moment, step, value, series).

    Notes
    -----
    The sum is the process's; all threads share it. A lock is held from the addition to the write, else a later row
    could show a smaller sum, which readers take for a restart. The sum is exact while it fits 53 bits.
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

    def add(self, n: Any = 1, step: Any = None) -> None:  # noqa: ANN401 - whatever training has
        """Grow by `n` >= 0; once this has returned, the new sum survives the process."""
        try:
            at = step_of(step)
            more = _growth(n)
            with self._lock:
                if self._series is None:
                    self._series = self._define()
                float(self._sum + more)  # raises, before anything is changed, if that is beyond a double's range
                self._sum += more
                # The clock first: what a signal handler adds in between has a later time and a greater sum.
                self._put(now(), at, float(self._sum), self._series)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(self.name, n, error, lambda late: self.add(late, step))

    def after_fork(self) -> None:
        """In a forked child, whose counts are its own, from nothing; a lost thread may hold the lock."""
        self._lock = threading.RLock()
        self._sum = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return NullHandle, (self.name,)


def _growth(n: object) -> int | float:
    more = int(n) if isinstance(n, int) else number(n)
    if not (math.isfinite(more) and more >= 0):
        raise BadValueError(f"{more}, and a counter only grows")
    return more
