"""Scalar writer: write single values to ``scalars``. Values on a GPU are fetched; bad values are counted as gaps."""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ranklake.capture.common.gaps import BAD_STEP, BAD_VALUE, NOWHERE, Gaps, RefusedError
from ranklake.capture.common.layouts import ABSENT, MARK, SCALARS
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.native import MODULE
from ranklake.capture.common.run_like import RunLike
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import BadValueError, DeviceValueError, number, repr_of
from ranklake.capture.lanes.policies import MISUSES
from ranklake.capture.lanes.series import Series, check_name
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.metrics.handles import BadStepError, Failed, NullHandle, step_of
from ranklake.capture.metrics.sampling import ValueSampler
from ranklake.capture.steps.device_values import DeviceValues
from ranklake.capture.steps.progress import Progress

_pack_scalar: Final = SCALARS.packer.pack_into


class ScalarWriter:
    """Writes the scalars of one run, one at a time.

    Parameters
    ----------
    run
        The run; its name seeds the sampling.

    Attributes
    ----------
    sampler
        None if no metric is sampled.
    """

    def __init__(
        self,
        run: RunLike,
        settings: CaptureSettings,
        sink: Sink,
        progress: Progress,
        device: DeviceValues,
        series: Series,
        lane: AnyLane,
    ) -> None:
        self.sink, self.progress, self.device, self.series, self.lane = sink, progress, device, series, lane
        self._run, self._settings = run, settings
        self.sampler: ValueSampler | None = None
        if settings.sampling:
            self.require_sampler()

    def require_sampler(self) -> ValueSampler:
        """Return the sampler; create it if there is none."""
        if self.sampler is None:
            failed = self.failed("scalars")
            self.sampler = ValueSampler(
                self._run, self._settings, self.sink.gaps, self.progress, self.series, self.lane, failed
            )
            self.progress.on_settled += (self.sampler.end_step,)
        return self.sampler

    def add(self, name: str, value: float, step: int = ABSENT, moment: int | None = None) -> None:
        """Record one value. `value` and `step` must be valid."""
        moment = now() if moment is None else moment
        try:
            sampled = None if self.sampler is None else self.sampler.of(name)
            if sampled is not None and self.sampler is not None:
                self.sampler.take(sampled, value, step, moment)
                return
            series = self.series.metric(name)
        except RefusedError as refused:
            self.sink.refuse("scalars", refused.reason, refused.detail)
            return
        self.put(moment, step, value, series)

    def put(self, moment: int, step: int, value: float, series: int) -> None:
        """Write one row."""
        self.lane.put(_pack_scalar, moment, step, value, series)

    def add_any(self, name: str, series: int, value: object = None, step: object = None) -> None:
        """Record any value passed to a handle: the slow path of `adder`."""
        moment = now()
        try:
            # The default of adders. If a caller passes this number, it means "no step", too, as on the fast paths.
            at = ABSENT if step.__class__ is int and step == ABSENT else step_of(step)
        except BadStepError:
            self.sink.refuse("scalars", BAD_STEP, repr_of(step))
            return
        try:
            self.put(moment, at, number(value), series)
        except DeviceValueError:
            self.device.defer(name, value, lambda late: self.put(moment, at, late, series))
        except BadValueError as error:
            self.sink.refuse("scalars", BAD_VALUE, f"{name}={error}")
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.sink.trouble("recording a value", error, "scalars")

    def add_unknown(self, name: object, kind: object, unit: object, value: object = None, step: object = None) -> None:
        """Record any value of a metric without a number so far."""
        try:
            series = self.series.metric(name, kind, unit)
        except RefusedError as refused:
            self.sink.refuse("scalars", refused.reason, refused.detail)
        else:
            self.add_any(check_name(name), series, value, step)

    def count_misuses(self, count: int) -> None:
        """Record the number of misuses so far as a metric."""
        if not self.sink.is_closed:
            with contextlib.suppress(RefusedError):
                self.put(now(), self.progress.at, float(count), self.series.metric(MISUSES))

    def failed(self, table: str) -> Failed:
        """Return the callback for values of a table that cannot be recorded directly; see `handles.Failed`."""
        return partial(self._failed, table)

    def _failed(self, table: str, name: str, value: object, error: Exception, late: Callable[[Any], None]) -> None:
        if isinstance(error, DeviceValueError):
            self.device.defer(name, value, late, whole_for="" if table == "scalars" else table)
        elif isinstance(error, BadStepError):
            self.sink.refuse(table, BAD_STEP, f"{name}: {error}")
        elif isinstance(error, BadValueError | OverflowError):
            self.sink.refuse(table, BAD_VALUE, f"{name}={error}")
        elif isinstance(error, RefusedError):
            self.sink.refuse(table, error.reason, error.detail)
        else:
            self.sink.trouble("recording a value", error, table)


class Scalar:
    """The handle of one metric: ``loss = run.scalar("train/loss")``, then ``loss.add(value, step)``.

    Attributes
    ----------
    add
        Records a value. Its arguments are the value and, optionally, the number of its step.
    """

    __slots__ = ("add", "name")

    def __init__(self, name: str, add: Callable[..., None]) -> None:
        self.name = name
        self.add = add

    def __reduce__(self) -> tuple[Any, ...]:
        return (no_scalar, (self.name, None)) if self.add is _discard else (no_scalar, (self.name,))


def no_scalar(name: str, idle: Gaps | None = NOWHERE) -> Scalar:
    """Return the handle of a run that records nothing; see `ranklake.capture.metrics.handles.NullHandle`."""
    return Scalar(name, _discard if idle is None else NullHandle(name, "scalars", idle).add)


def _discard(*_: object, **__: object) -> None:
    """Ignore a value, because the user disabled recording."""


def adder(lane: AnyLane, series: int, slow: Callable[..., None]) -> Callable[..., None]:
    """Return a function of (value, step) that writes a float to a slot, and passes other values to `slow`.

    Parameters
    ----------
    series
        Number of the metric.
    """
    if MODULE is not None:
        native_adder: Callable[..., None] = MODULE.Adder(lane, series, slow)
        return native_adder
    pack, clock, mark = _pack_scalar, time.monotonic_ns, MARK

    def add(value: Any, step: Any = ABSENT) -> None:  # noqa: ANN401 - any value
        try:
            if value.__class__ is float:
                view, take = lane.pair
                pack(view, take(), clock(), step, value, series, mark)
                return
        except Exception:  # noqa: BLE001, S110 - the file is full or cut, or the step is no int
            pass
        slow(value, step)

    return add
