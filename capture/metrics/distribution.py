"""Distribution: arrays folded into one histogram per interval, in a slot that is whole at any moment."""

import threading
from typing import Any

import numpy as np

from ranklake.capture.common.arrays import Array
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import BadValueError, DeviceValueError, text
from ranklake.capture.histogram import Histogram, histogram_of, histogram_of_one, merge
from ranklake.capture.lanes.double_buffer import BufferedSlot, DoubleBuffer, Field
from ranklake.capture.metrics.handles import Define, Failed, NullHandle, step_of


class _Current(threading.local):
    """The row that a thread folds into."""

    cell: BufferedSlot | None = None
    state = Histogram()
    until_ns = 0
    busy = False


class Distribution:
    """One metric's distribution: ``grads = run.histogram("grad/abs")``, then ``grads.record(array)``.

    Parameters
    ----------
    twin
        Of the lane ``histograms``.
    define, failed
        See `handles`.
    every_ns
        Length of an interval. It begins with its first values; a file that is sealed ends it early.
    """

    __slots__ = ("_current", "_define", "_every_ns", "_failed", "_max_buckets", "_series", "_twin", "name")

    def __init__(
        self, name: str, twin: DoubleBuffer, define: Define, every_ns: int, max_buckets: int, failed: Failed
    ) -> None:
        self.name = name
        self._twin, self._define, self._failed = twin, define, failed
        self._every_ns, self._max_buckets = every_ns, max_buckets
        self._series: int | None = None
        self._current = _Current()

    def record(self, values: Any = None, step: Any = None) -> None:  # noqa: ANN401 - whatever training has
        """Fold in a number, or all those of an array or tensor; once this has returned, they survive the process."""
        try:
            at = step_of(step)
            if values.__class__ is float:
                histogram = histogram_of_one(values)
            else:
                histogram = histogram_of(floats(values), self._max_buckets)
            if not histogram.empty:
                self._record(histogram, at)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(self.name, values, error, lambda late: self.record(late, step))

    def _record(self, histogram: Histogram, step: int) -> None:
        moment = now()
        current = self._current
        if current.busy:  # a signal handler, or a destructor, within the lines below: it gets a row of its own
            self._begin(histogram, step, moment)
            return
        current.busy = True
        try:
            if current.cell is not None and moment < current.until_ns:
                state = merge(current.state, histogram, self._max_buckets)
                if current.cell.write(_fields(state, step, moment)):
                    current.state = state
                    return
            current.cell = None
            current.cell = self._begin(histogram, step, moment)
            current.state, current.until_ns = histogram, moment + self._every_ns
        finally:
            current.busy = False

    def _begin(self, histogram: Histogram, step: int, moment: int) -> BufferedSlot | None:
        if self._series is None:
            self._series = self._define()
        return self._twin.begin(moment, self._series, _fields(histogram, step, moment))

    def after_fork(self) -> None:
        """In a forked child: the rows are the parent's."""
        self._current = _Current()

    def __reduce__(self) -> tuple[Any, ...]:
        return NullHandle, (self.name, "distributions")


def _fields(state: Histogram, step: int, moment: int) -> tuple[Field, ...]:
    return (
        moment,
        step,
        state.zero_count,
        state.nan_count,
        state.infinite_count,
        state.sum,
        state.min,
        state.max,
        state.scale,
        state.positive.offset,
        state.negative.offset,
        0,
        state.positive.counts.tobytes(),
        state.negative.counts.tobytes(),
    )


def floats(values: Any) -> Array:  # noqa: ANN401 - whatever training has
    """Return real numbers as a new float64 array: another thread may be writing into the given one.

    Raises
    ------
    BadValueError
        They are not real numbers in main memory, dense.
    DeviceValueError
        They are on a device.
    """
    try:
        where = getattr(values, "device", None)
        device = text(getattr(where, "type", None) or getattr(where, "platform", "cpu"))  # torch's word, jax's word
        if device == "cpu":
            if hasattr(values, "detach") and not values.is_complex():  # numpy has no bfloat16
                values = values.detach().double().numpy()
            given = np.asarray(values)
            real = given.dtype.kind in "biuf"
    except Exception as error:
        raise BadValueError(type(values).__name__) from error
    if device != "cpu":
        raise DeviceValueError(device)
    if not real:
        raise BadValueError(f"{type(values).__name__} of {given.dtype}")
    with np.errstate(over="ignore"):
        return np.array(given, np.float64)
