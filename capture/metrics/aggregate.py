"""Aggregate: values folded into one row of ``scalars`` per interval, as they arrive.

Each thread has a row of its own, so nothing is locked. The running mean and sum of squared distances are Welford's:
B. P. Welford, "Note on a method for calculating corrected sums of squares and products", Technometrics 4 (1962).
"""

import math
import threading
from typing import Any, Final

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import number
from ranklake.capture.lanes.double_buffer import BufferedSlot, DoubleBuffer
from ranklake.capture.metrics.handles import Define, Failed, Unrecorded, step_of

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
        return Unrecorded, (self.name,)
