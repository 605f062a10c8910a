"""Distribution: combine arrays into one histogram per interval, in a slot that is complete at any moment."""

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
    """The current row of the calling thread."""

    slot: BufferedSlot | None = None
    state = Histogram()
    until_ns = 0
    busy = False


class Distribution:
    """The handle of a distribution: ``grads = run.histogram("grad/abs")``, then ``grads.record(array)``.

    Parameters
    ----------
    buffer
        Double buffer in the lane ``histograms``.
    define, failed
        See `ranklake.capture.metrics.handles`.
    every_ns
        Length of an interval. It begins with its first values; sealing the file ends it early.
    """

    __slots__ = ("_buffer", "_current", "_define", "_every_ns", "_failed", "_max_buckets", "_series", "name")

    def __init__(
        self, name: str, buffer: DoubleBuffer, define: Define, every_ns: int, max_buckets: int, failed: Failed
    ) -> None:
        self.name = name
        self._buffer, self._define, self._failed = buffer, define, failed
        self._every_ns, self._max_buckets = every_ns, max_buckets
        self._series: int | None = None
        self._current = _Current()

    def record(self, values: Any = None, step: Any = None) -> None:  # noqa: ANN401 - any value
        """Add a number, or all numbers of an array or tensor. After this call returns, they survive a kill."""
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
        time_ns = now()
        current = self._current
        if current.busy:  # called by a signal handler or destructor within the lines below: use a separate row
            self._begin(histogram, step, time_ns)
            return
        current.busy = True
        try:
            if current.slot is not None and time_ns < current.until_ns:
                state = merge(current.state, histogram, self._max_buckets)
                if current.slot.write(_fields(state, step, time_ns)):
                    current.state = state
                    return
            current.slot = None
            current.slot = self._begin(histogram, step, time_ns)
            current.state, current.until_ns = histogram, time_ns + self._every_ns
        finally:
            current.busy = False

    def _begin(self, histogram: Histogram, step: int, time_ns: int) -> BufferedSlot | None:
        if self._series is None:
            self._series = self._define()
        return self._buffer.begin(time_ns, self._series, _fields(histogram, step, time_ns))

    def after_fork(self) -> None:
        """Start a new row in a forked child, because the current row belongs to the parent."""
        self._current = _Current()

    def __reduce__(self) -> tuple[Any, ...]:
        return NullHandle, (self.name, "distributions")


def _fields(state: Histogram, step: int, time_ns: int) -> tuple[Field, ...]:
    return (
        time_ns,
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


def floats(values: Any) -> Array:  # noqa: ANN401 - any value
    """Return real numbers as a new float64 array. It is a copy, because another thread may write to the original.

    Raises
    ------
    BadValueError
        The values are not a dense array of real numbers.
    DeviceValueError
        The values are in the memory of a GPU.
    """
    try:
        place = getattr(values, "device", None)
        device = text(getattr(place, "type", None) or getattr(place, "platform", "cpu"))  # torch has type, jax platform
        if device == "cpu":
            if hasattr(values, "detach") and not values.is_complex():  # numpy has no bfloat16
                values = values.detach().double().numpy()
            array = np.asarray(values)
            real = array.dtype.kind in "biuf"
    except Exception as error:
        raise BadValueError(type(values).__name__) from error
    if device != "cpu":
        raise DeviceValueError(device)
    if not real:
        raise BadValueError(f"{type(values).__name__} of {array.dtype}")
    with np.errstate(over="ignore"):
        return np.array(array, np.float64)
