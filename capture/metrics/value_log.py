"""Value log: record the values of `run.log`. Some names go to the step's row; the others become metrics.

The fast path writes one slot. If it fails, because of a full file, a value that is not a number, or a new set of names,
the slow path converts the values that it can and counts the others as gaps.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Final

from ranklake.capture.common.gaps import AFTER_CLOSE, BAD_ARGUMENTS, BAD_NAME, BAD_STEP, BAD_VALUE, RefusedError
from ranklake.capture.common.layouts import (
    ABSENT,
    MARK,
    METRIC_OF,
    ROW_WIDTH,
    SCALARS,
    STEP_COUNTS,
    STEP_FLOATS,
    STEP_NAMES,
    row_packer,
)
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.native import MODULE
from ranklake.capture.common.values import PLAIN, BadValueError, DeviceValueError, integer, number, repr_of, text
from ranklake.capture.lanes.series import Series, check_name
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.metrics.scalar_writer import ScalarWriter
from ranklake.capture.steps.own_columns import OwnNumbers
from ranklake.capture.steps.progress import OpenStep

Pack = Callable[..., None]
Pick = Callable[[Mapping[Any, Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Writes up to sixteen values of mappings with the same names to one slot.

    Attributes
    ----------
    width
        Number of values in the slot.
    pick
        Returns a mapping's values in the order of the slot; raises `KeyError` if a name is missing.
    """

    width: int
    pick: Pick
    lane: AnyLane
    pack: Pack
    number: int


_MOST_ENCODERS: Final = 1000
_MOST_SLOT_VALUES: Final = 4 * ROW_WIDTH  # larger mappings are rare, so they are written value by value
_pack_scalar: Final = SCALARS.packer.pack_into


class Mappings:
    """The sets of names that one run has logged, with their encoders.

    Attributes
    ----------
    recent
        By number of values, the encoder of the latest mapping of this size, which the fast path tries first.
    logger
        The fast path in C, which has its own cache of recent encoders; None to use the path in Python.
    """

    def __init__(self, series: Series, scalars: AnyLane, rows: AnyLane) -> None:
        self._series = series
        self._scalars, self._rows = scalars, rows
        self._encoders: dict[tuple[object, ...], tuple[RowEncoder, ...]] = {}
        self.recent: dict[int, RowEncoder] = {}
        self.logger: Any = None

    def learn(self, names: tuple[object, ...], series: tuple[int, ...]) -> None:
        """Cache the encoders of a mapping with these names, unless it is too large or the cache is full."""
        if not 0 < len(names) <= _MOST_SLOT_VALUES or len(self._encoders) >= _MOST_ENCODERS:
            return
        encoders: list[RowEncoder] = []
        for at in range(0, len(names), ROW_WIDTH):
            target = self._target(series[at : at + ROW_WIDTH])
            if target is None:
                return
            chunk = names[at : at + ROW_WIDTH]
            encoders.append(RowEncoder(len(chunk), _picker(chunk), *target))
        self._encoders[names] = tuple(encoders)
        self._remember(names, tuple(encoders))

    def write_known(self, time_ns: int, step: object, values: dict[Any, object]) -> bool:
        """Write a mapping whose names have cached encoders. Otherwise, or for a bad value, write nothing.

        Parameters
        ----------
        time_ns
            Monotonic time in ns.
        step
            Number of the step, or ABSENT.

        Returns
        -------
        Whether the mapping was written.
        """
        encoders = self._encoders.get(tuple(values))
        if encoders is None or type(step) is not int or not ABSENT <= step < -ABSENT:
            return False
        try:
            numbers = {name: number(value) for name, value in values.items()}
        except (BadValueError, DeviceValueError):
            return False
        for encoder in encoders:
            encoder.lane.put(encoder.pack, time_ns, step, *encoder.pick(numbers), encoder.number, rows=encoder.width)
        self._remember(tuple(values), encoders)
        return True

    def write(self, time_ns: int, step: int, values: dict[int, float]) -> None:
        """Write values by metric number, several values per slot if possible."""
        series = tuple(values)
        if 1 < len(series) <= _MOST_SLOT_VALUES:
            for at in range(0, len(series), ROW_WIDTH):
                part = series[at : at + ROW_WIDTH]
                target = self._target(part)
                if target is None:
                    break
                lane, pack, schema = target
                lane.put(pack, time_ns, step, *(values.pop(name) for name in part), schema, rows=len(part))
        for name, value in values.items():
            self._scalars.put(_pack_scalar, time_ns, step, value, name)

    def _remember(self, names: tuple[object, ...], encoders: tuple[RowEncoder, ...]) -> None:
        """Use the fast path for mappings with these names from now on."""
        if self.logger is not None:
            with contextlib.suppress(TypeError):  # names of a subclass of str
                self.logger.learn(names, self._scalars, self._rows, tuple(encoder.number for encoder in encoders))
        elif len(encoders) == 1:
            self.recent[len(names)] = encoders[0]

    def _target(self, series: tuple[int, ...]) -> tuple[AnyLane, Pack, int] | None:
        """Return lane, packer and number for writing values of these metrics to one slot; None if not possible."""
        if len(series) == 1:
            return self._scalars, _pack_scalar, series[0]
        try:
            return self._rows, row_packer(len(series)).pack_into, self._series.schema(series)
        except RefusedError:  # too many different mappings
            return None


def _picker(names: tuple[Any, ...]) -> Pick:
    if len(names) > 1:
        return itemgetter(*names)
    (name,) = names
    return lambda values: (values[name],)


_STEP_FLOATS: Final = frozenset(STEP_FLOATS)
_TEXT: Final = frozenset({str})


class ValueLog:
    """Records the values that one run logs.

    Parameters
    ----------
    own
        Numbers that an overlay adds to a step's row; None if it adds none.

    Attributes
    ----------
    fast
        The fastest version of `log`: in C if that was built.
    """

    def __init__(self, scalars: ScalarWriter, mappings: Mappings, own: OwnNumbers | None = None) -> None:
        self._scalars, self._mappings = scalars, mappings
        self._sink, self._progress, self._device = scalars.sink, scalars.progress, scalars.device
        self._recent = mappings.recent
        self._own = own
        self._step_names = STEP_NAMES if own is None else STEP_NAMES | own.names
        self.fast: Callable[..., None] = self.log
        if MODULE is not None:
            mappings.logger = self.fast = MODULE.Logger(self._progress, self.log)

    def log(
        self, mapping: Mapping[Any, object] | None = None, *excess: object, step: object = None, **scalars: object
    ) -> None:
        """Record values by name, all with the same time; see `ranklake.capture.Run.log`."""
        time_ns = now()
        try:
            values: Any = scalars
            if mapping is not None:
                values = {**mapping, **scalars} if scalars else mapping
            if type(values) is dict and not excess:  # other mappings may have values for missing names
                encoder = self._recent[len(values)]  # a loop usually logs the same names
                numbers = encoder.pick(values)
                if PLAIN.issuperset(map(type, numbers)):  # converting other types may truncate or block
                    view, take = encoder.lane.pair
                    encoder.pack(
                        view,
                        take(),
                        time_ns,
                        self._progress.at if step is None else step,
                        *numbers,
                        encoder.number,
                        MARK,
                    )
                    return
        except Exception:  # noqa: BLE001, S110 - other names, a full file, a bad value: handled below
            pass
        try:
            if excess:
                self._sink.refuse("scalars", BAD_ARGUMENTS, repr_of(excess))
            values = {**mapping, **scalars} if mapping is not None else scalars
            named = values if _TEXT.issuperset(map(type, values)) else with_plain_names(self._sink, values)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._sink.refuse("scalars", BAD_ARGUMENTS, repr_of(error))
            return
        try:
            self._log_slowly(time_ns, named, step)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._sink.trouble("recording values", error, "scalars")

    def add(self, name: str, value: float, step: int) -> None:
        """Record one value whose number and step are in order already."""
        self._scalars.add(name, value, step)

    def _log_slowly(self, time_ns: int, scalars: dict[str, object], step: object) -> None:
        frame = self._progress.stack.top
        current = None if frame is None else frame.step
        if current is not None and current.start is None:  # the parent of a fork began it, and writes it
            current = None
        if current is not None and step is None and _STEP_FLOATS.issuperset(scalars) and current.fill(scalars):
            return
        if self._mappings.write_known(time_ns, self._progress.at if step is None else step, scalars):
            return
        try:
            at = self._progress.at if step is None else integer(step)
        except (BadValueError, DeviceValueError):
            self._sink.gaps.count(
                "scalars", AFTER_CLOSE if self._sink.is_closed else BAD_STEP, len(scalars), repr_of(step)
            )
            return
        if current is not None and at != current.number:
            current = None
        metric_values: dict[int, float] = {}
        for name, value in scalars.items():
            self._record_value(name, value, current, at, time_ns, metric_values)
        series = tuple(metric_values)
        self._mappings.write(time_ns, at, metric_values)
        if len(series) == len(scalars) and self._step_names.keys().isdisjoint(scalars):
            self._mappings.learn(tuple(scalars), series)

    def _record_value(
        self, name: str, value: object, current: OpenStep | None, at: int, time_ns: int, metric_values: dict[int, float]
    ) -> None:
        """Put one value into the step's row or into `metric_values`; defer values on a GPU, count bad ones."""
        scalars = self._scalars
        column = self._step_names.get(name)
        metric = name if column is None else METRIC_OF.get(column, column)
        try:
            if column is not None and current is not None:
                self._put_in_step(current, column, value)
            else:
                sampled = None if scalars.sampler is None else scalars.sampler.of(metric)
                if sampled is not None and scalars.sampler is not None:
                    scalars.sampler.take(sampled, number(value), at, time_ns)
                    return
                series = scalars.series.metric(metric)
                if series in metric_values:  # two names of the same metric
                    scalars.put(time_ns, at, number(value), series)
                else:
                    metric_values[series] = number(value)
        except DeviceValueError:
            self._device.defer(name, value, partial(self._deliver, metric, at, time_ns))
        except BadValueError as error:
            self._sink.refuse("scalars", BAD_VALUE, f"{text(name, 80)}={error}")
        except RefusedError as refused:
            self._sink.refuse("scalars", refused.reason, refused.detail)

    def _deliver(self, metric: str, step: int, time_ns: int, value: float) -> None:
        self._scalars.add(metric, value, step, time_ns)

    def _put_in_step(self, current: OpenStep, column: str, value: object) -> None:
        try:
            own = self._own
            if own is not None and column in own:
                current.put(column, own.value(column, value))
            else:
                current.put(column, integer(value) if column in STEP_COUNTS else number(value))
        except DeviceValueError:
            self._device.defer(column, value, lambda late: current.put_late(column, late))


def with_plain_names(sink: Sink, values: Mapping[Any, object]) -> dict[str, object]:
    """Return values by names of type str, not of a subclass. Values with a bad name are counted as gaps."""
    named: dict[str, object] = {}
    for name, value in values.items():
        try:
            plain_name = check_name(name)
        except RefusedError as refused:
            sink.refuse("scalars", refused.reason, refused.detail)
            continue
        if plain_name in named:
            sink.refuse("scalars", BAD_NAME, f"{plain_name} twice")
        else:
            named[plain_name] = value
    return named
