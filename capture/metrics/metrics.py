"""Metrics: values by name, from a mapping or through a handle that was looked up once.

The fast ways write one slot. Whatever goes wrong in them (a full file, a value that is no number, a new set of names)
ends in the slow ways, which put right what can be and count the rest.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.gaps import (
    AFTER_CLOSE,
    BAD_ARGUMENTS,
    BAD_NAME,
    BAD_STEP,
    BAD_VALUE,
    DEVICE_VALUE,
    NOT_STARTED,
    UNEXPECTED,
    Gaps,
    RefusedError,
)
from ranklake.capture.common.layouts import ABSENT, MARK, SCALARS, STEP_FLOATS
from ranklake.capture.common.native import MODULE
from ranklake.capture.common.ratios import checked_ratio
from ranklake.capture.common.values import PLAIN, BadValueError, DeviceValueError, integer, number, repr_of, text
from ranklake.capture.metrics.deferred import Deferred
from ranklake.capture.metrics.handles import BadStepError, Unrecorded, step_of
from ranklake.capture.metrics.mappings import Mappings, Plan
from ranklake.capture.metrics.meters import Meters
from ranklake.capture.metrics.policies import MISUSES
from ranklake.capture.metrics.sampling import Sampler
from ranklake.capture.metrics.scalar import Scalar, adder, no_scalar
from ranklake.capture.metrics.series import checked
from ranklake.capture.steps.phases import now
from ranklake.capture.steps.stack import Stack
from ranklake.capture.steps.steps import METRIC_OF, STEP_COUNTS, STEP_NAMES, Step

if TYPE_CHECKING:
    from ranklake.capture.metrics.aggregate import Aggregate
    from ranklake.capture.metrics.counter import Counter
    from ranklake.capture.metrics.distribution import Distribution
    from ranklake.capture.recording.recorder import Recorder

_STEP_FLOATS: Final = frozenset(STEP_FLOATS)
_TEXT: Final = frozenset({str})
_BEYOND: Final = 1 << 63
_pack_scalar: Final = SCALARS.packer.pack_into


class Metrics:
    """The part of a run that records values.

    Parameters
    ----------
    recorder
        None for a run that records nothing.
    idle
        Counts what such a run is given; None where it is the user's wish that nothing is recorded.

    Attributes
    ----------
    stack
        The innermost open step or phase of each thread.
    current
        The step that runs, in whichever thread.
    sampler
        None while no metric is sampled.
    """

    def __init__(self, recorder: "Recorder | None", idle: Gaps | None = None) -> None:
        self._recorder, self._idle = recorder, idle
        self._gaps = (idle or Gaps()) if recorder is None else recorder.gaps
        self._closed = False
        self._latest = self._at = ABSENT
        self._recent: dict[int, Plan] = {}
        self._deferred = Deferred()
        self.stack = Stack()
        self.current: Step | None = None
        self._meters: Meters | None = None
        self.sampler: Sampler | None = None
        if recorder is not None:
            self._scalars = recorder.slots["scalars"]
            self._mappings = Mappings(recorder)
            self._recent = self._mappings.recent
            self._meters = Meters(recorder, self)
            recorder.misuses.counted = self._count_misuses
            if recorder.settings.sampling:
                self.sampler = Sampler(recorder, self, self._meters.failed("scalars"))
            if MODULE is not None:
                self._mappings.logger = self.__dict__["log"] = MODULE.Logger(self, self.log)

    def scalar(self, name: object, kind: object = None, unit: object = None, *_: object, keep: object = None) -> Scalar:
        """Return a handle for one metric: the fastest way to record values.

        Parameters
        ----------
        kind
            ``gauge``, ``counter``, ``delta`` or ``ratio``: how values combine. By default what the registry says of
            the metric, and gauge if it says nothing.
        unit
            What the values are in, in the registry's letters. None stands for what the registry says.
        keep
            Share of the values to keep, from 0 to 1; by default what the setting ``sampling`` says. See
            `ranklake.capture.metrics.sampling`.
        """
        recorder = self._recorder
        if recorder is None:
            return no_scalar(text(name, 80), self._idle)
        if keep is not None or self.sampler is not None:
            sampled = self._sample(recorder, name, kind, unit, keep)
            if sampled is not None:
                return Scalar(text(name, 80), sampled)
        try:
            series = recorder.series.metric(name, kind, unit)
        except RefusedError:  # a bad name, or no stream to define it in: tried again, and counted, with each value
            return Scalar(text(name, 80), partial(self._add_unknown, name, kind, unit))
        plain = checked(name)
        slow = partial(self._add_slowly, plain, series)
        return Scalar(plain, adder(self._scalars, series, slow))

    def _sample(
        self, recorder: "Recorder", name: object, kind: object, unit: object, keep: object
    ) -> Callable[..., None] | None:
        """Return what takes values of a metric of which a share is kept; None if all of it is."""
        assert self._meters is not None
        ratio = self._gaps.lenient("keep", lambda given: checked_ratio(number(given)), keep, None)
        if self.sampler is None:
            if ratio is None:
                return None
            self.sampler = Sampler(recorder, self, self._meters.failed("scalars"))
        sampled = self.sampler.of(name, kind, unit, ratio)
        return None if sampled is None else partial(self.sampler.add, sampled)

    def counter(self, name: object, *_: object, unit: str | None = None) -> "Counter | Unrecorded":
        """Return a handle that only grows: ``read.add(len(block))`` records the sum so far.

        Parameters
        ----------
        unit
            What is counted, such as ``By`` for bytes. None stands for what the registry says.
        """
        if self._meters is None:
            return Unrecorded(text(name, 80), "scalars", self._idle)
        return self._meters.counter(name, unit)

    def aggregate(
        self, name: object, *_: object, every_s: object = 10.0, kind: object = None, unit: object = None
    ) -> "Aggregate | Unrecorded":
        """Return a handle whose values become one row per interval: count, least, greatest, mean, deviation, last.

        For what happens too often to keep each value. Each thread that uses the handle has rows of its own.

        Parameters
        ----------
        every_s
            Length of an interval; sealing ends it early, and a row never lacks a value that was added.
        kind, unit
            As for `scalar`.
        """
        if self._meters is None:
            return Unrecorded(text(name, 80), "scalars", self._idle)
        return self._meters.aggregate(name, every_s, kind, unit)

    def histogram(
        self, name: object, *_: object, every_s: object = 60.0, max_buckets: object = 160, unit: object = None
    ) -> "Distribution | Unrecorded":
        """Return a handle for whole distributions: ``grads.record(array)``; one row of ``distributions`` per interval.

        Parameters
        ----------
        every_s, unit
            As for `aggregate`.
        max_buckets
            Of each sign, 4 to 160: the resolution is the finest at which the interval's values fit into so many.
        """
        if self._meters is None:
            return Unrecorded(text(name, 80), "distributions", self._idle)
        return self._meters.histogram(name, every_s, max_buckets, unit)

    def _add_unknown(self, name: object, kind: object, unit: object, value: object = None, step: object = None) -> None:
        assert self._recorder is not None
        try:
            series = self._recorder.series.metric(name, kind, unit)
        except RefusedError as refused:
            self.refuse("scalars", refused.reason, refused.detail)
        else:
            self._add_slowly(checked(name), series, value, step)

    def _add_slowly(self, name: str, series: int, value: object = None, step: object = None) -> None:
        moment = now()
        try:
            # What adders have by default; as a number of the caller's own it means the same, as on the fast ways.
            at = ABSENT if step.__class__ is int and step == ABSENT else step_of(step)
        except BadStepError:
            self.refuse("scalars", BAD_STEP, repr_of(step))
            return
        try:
            self._scalars.put(_pack_scalar, moment, at, number(value), series)
        except DeviceValueError:
            self.defer(name, value, lambda late: self._put_scalar(moment, at, late, series))
        except BadValueError as error:
            self.refuse("scalars", BAD_VALUE, f"{name}={error}")
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("recording a value", error, "scalars")

    def _put_scalar(self, moment: int, step: int, value: float, series: int) -> None:
        self._scalars.put(_pack_scalar, moment, step, value, series)

    def log(
        self, mapping: Mapping[Any, object] | None = None, *excess: object, step: object = None, **scalars: object
    ) -> None:
        """Record values by name, all at one moment.

        Within a step, ``loss``, ``lr``, ``grad_norm``, ``tokens`` and ``samples`` go to the step's row; all else
        becomes metrics.

        Parameters
        ----------
        mapping
            Names to values, for names that are no identifiers, such as ``"eval/loss"``.
        step
            Step that the values belong to; by default the running one, or between steps the one that ended last.
        scalars
            Further names and values.
        """
        moment = now()
        try:
            values: Any = scalars
            if mapping is not None:
                values = {**mapping, **scalars} if scalars else mapping
            if type(values) is dict and not excess:  # others may answer for names that they do not have
                plan = self._recent[len(values)]  # a loop logs the same names again and again
                numbers = plan.pick(values)
                if PLAIN.issuperset(map(type, numbers)):  # others may convert by dropping a part, or by waiting
                    view, take = plan.lane.pair
                    plan.pack(view, take(), moment, self._at if step is None else step, *numbers, plan.number, MARK)
                    return
        except Exception:  # noqa: BLE001, S110 - other names, a full file, a value that is no number: see below
            pass
        if self._recorder is None and self._idle is None:
            return
        try:
            if excess:
                self.refuse("scalars", BAD_ARGUMENTS, repr_of(excess))
            given = {**mapping, **scalars} if mapping is not None else scalars
            named = given if _TEXT.issuperset(map(type, given)) else self._named(given)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.refuse("scalars", BAD_ARGUMENTS, repr_of(error))
            return
        if self._recorder is None:
            self._miss("scalars", len(named))
            return
        try:
            self._log_slowly(moment, named, step)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("recording values", error, "scalars")

    def _named(self, given: dict[Any, object]) -> dict[str, object]:
        """Return values by plain names, whose own code can no longer run; those without a name are counted."""
        named: dict[str, object] = {}
        for name, value in given.items():
            try:
                plain = checked(name)
            except RefusedError as refused:
                self.refuse("scalars", refused.reason, refused.detail)
                continue
            if plain in named:
                self.refuse("scalars", BAD_NAME, f"{plain} twice")
            else:
                named[plain] = value
        return named

    def _log_slowly(self, moment: int, scalars: dict[str, object], step: object) -> None:
        frame = self.stack.top
        current = None if frame is None else frame.step
        if current is not None and current.start is None:  # begun in the parent of a fork, which writes it
            current = None
        if current is not None and step is None and _STEP_FLOATS.issuperset(scalars) and current.fill(scalars):
            return
        if self._mappings.write_known(moment, self._at if step is None else step, scalars):
            return
        try:
            at = self._at if step is None else integer(step)
        except (BadValueError, DeviceValueError):
            self._gaps.count("scalars", AFTER_CLOSE if self._closed else BAD_STEP, len(scalars), repr_of(step))
            return
        if current is not None and at != current.number:
            current = None
        good: dict[int, float] = {}
        for name, value in scalars.items():
            self._sort_out(name, value, current, at, moment, good)
        series = tuple(good)
        self._mappings.write(moment, at, good)
        if len(series) == len(scalars) and STEP_NAMES.keys().isdisjoint(scalars):
            self._mappings.learn(tuple(scalars), series)

    def _sort_out(
        self, name: str, value: object, current: Step | None, at: int, moment: int, good: dict[int, float]
    ) -> None:
        """Put one value into the step's row or, by its series, into `good`; else send for it or count it."""
        assert self._recorder is not None
        column = STEP_NAMES.get(name)
        metric = name if column is None else METRIC_OF[column]
        try:
            if column is not None and current is not None:
                self._put_in_step(current, column, value)
            else:
                sampled = None if self.sampler is None else self.sampler.of(metric)
                if sampled is not None and self.sampler is not None:
                    self.sampler.take(sampled, number(value), at, moment)
                    return
                series = self._recorder.series.metric(metric)
                if series in good:  # two names of one metric
                    self._put_scalar(moment, at, number(value), series)
                else:
                    good[series] = number(value)
        except DeviceValueError:
            self.defer(name, value, partial(self._deliver, metric, at, moment))
        except BadValueError as error:
            self.refuse("scalars", BAD_VALUE, f"{text(name, 80)}={error}")
        except RefusedError as refused:
            self.refuse("scalars", refused.reason, refused.detail)

    def _deliver(self, metric: str, step: int, moment: int, value: float) -> None:
        self.add_metric(metric, value, step, moment)

    def _put_in_step(self, current: Step, column: str, value: object) -> None:
        try:
            current.put(column, integer(value) if column in STEP_COUNTS else number(value))
        except DeviceValueError:
            self.defer(column, value, lambda late: current.put_late(column, late))

    def add_metric(self, name: str, value: float, step: int, moment: int | None = None) -> None:
        """Record one value whose number and step are in order already."""
        if self._recorder is None:
            return
        moment = now() if moment is None else moment
        try:
            sampled = None if self.sampler is None else self.sampler.of(name)
            if sampled is not None and self.sampler is not None:
                self.sampler.take(sampled, value, step, moment)
                return
            series = self._recorder.series.metric(name)
        except RefusedError as refused:
            self.refuse("scalars", refused.reason, refused.detail)
            return
        self._put_scalar(moment, step, value, series)

    def defer(self, name: str, value: object, deliver: Callable[[Any], None], *, whole_for: str = "") -> None:
        """Have a device's number delivered once it has arrived; one that cannot be sent for is counted.

        Parameters
        ----------
        whole_for
            A table whose rows take tensors of any shape: then the whole of it is delivered.
        """
        table = whole_for or "scalars"
        try:
            if whole_for:
                sent = self._deferred.send_whole(value, deliver, table)
            else:
                sent = self._deferred.send(value, deliver)
        except BadValueError as error:
            self.refuse(table, BAD_VALUE, f"{text(name, 80)}={error}")
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self.refuse(table, DEVICE_VALUE, repr_of(error))
        else:
            if not sent:
                self.refuse(table, DEVICE_VALUE, text(name, 80))

    def step_number(self, raw: object) -> int:
        """Return a step's number; None is one more than the last. Raises what `integer` raises."""
        if type(raw) is int and 0 <= raw < _BEYOND:
            return raw
        if raw is None:
            return 0 if self._latest == ABSENT else self._latest + 1
        whole = integer(raw)
        if whole < 0:
            self.misuse("step below 0", f"step {whole} is below 0: its row will be refused when it is ingested")
        return whole

    def _count_misuses(self, count: int) -> None:
        if not self._closed and self._recorder is not None:
            with contextlib.suppress(RefusedError):
                self._put_scalar(now(), self._at, float(count), self._recorder.series.metric(MISUSES))

    def misuse(self, topic: str, line: str) -> None:
        """Tell, once by topic, of what is recorded otherwise than its caller may have meant; and count it."""
        if self._recorder is not None:
            self._recorder.misuses.tell(topic, line)

    def enter_step(self, step: Step) -> None:
        """Take note that a step begins: values logged from here on are its; values from devices may have arrived."""
        self.current = step
        self._at = step.number
        if step.number != ABSENT:
            self._latest = step.number
        if len(self._deferred):
            try:
                self._deferred.drain()
            except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
                self._give_up(repr_of(error))

    def leave_step(self, around: Step | None) -> None:
        """Take note that a step ends: what is logged now belongs to the step around it, or to the one that ended."""
        self.current = around
        self._at = self._latest if around is None else around.number

    def _miss(self, table: str, rows: int = 1) -> None:
        """Count rows of a run that was never started."""
        if self._idle is not None:
            self._idle.count(table, NOT_STARTED, rows, "a run that came by pickle, or could not begin, records nothing")

    def refuse(self, table: str, reason: str, detail: str = "") -> None:
        """Count a row that could not be recorded."""
        self._gaps.count(table, AFTER_CLOSE if self._closed else reason, 1, detail)

    def trouble(self, doing: str, error: BaseException, table: str = "") -> None:
        """Tell of an error of our own; if it cost a row of a table, count it."""
        if table:
            self._gaps.count(table, UNEXPECTED, 1, f"{doing}: {repr_of(error)}")
        else:
            self._gaps.warn(doing, f"{doing} failed: {repr_of(error)}")

    def drain_devices(self, timeout_s: float) -> None:
        """Record values that have arrived from a device; with a timeout, wait for the others and then give them up."""
        deadline = time.monotonic() + timeout_s
        try:
            self._deferred.drain()
            while len(self._deferred) and time.monotonic() < deadline:
                time.sleep(0.001)
                self._deferred.drain()
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self._give_up(repr_of(error))
        if timeout_s:
            self._give_up("did not arrive before the close")

    def expect(self, event: Any, host: Any, deliver: Callable[[float], None], table: str) -> bool:  # noqa: ANN401
        """Have a value delivered when its event has happened, see `Deferred.add`; False if too many are under way."""
        return self._deferred.add(event, host, deliver, table)

    def _give_up(self, why: str) -> None:
        for table, rows in self._deferred.give_up().items():
            self._gaps.count(table, DEVICE_VALUE, rows, why)
