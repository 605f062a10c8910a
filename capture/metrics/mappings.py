"""Mappings: several values logged at one moment, written in one slot if their names were seen before.

A loop logs the same names again and again. Which metrics they are, and by which packer they are written, is looked up
once: a `RowEncoder`. See decision 007 for the slots.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from ranklake.capture.common.gaps import RefusedError
from ranklake.capture.common.layouts import ABSENT, ROW_WIDTH, SCALARS, row_packer
from ranklake.capture.common.values import BadValueError, DeviceValueError, number
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.series.series import Series

Pack = Callable[..., None]
Pick = Callable[[Mapping[Any, Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """How mappings with the same names, sixteen at most, are written in one go.

    Attributes
    ----------
    width
        Values in the slot.
    pick
        Returns a mapping's values in the order of the slot; raises `KeyError` if a name is missing.
    """

    width: int
    pick: Pick
    lane: AnyLane
    pack: Pack
    number: int


_MOST_ENCODERS: Final = 1000
_BY_SLOT: Final = 4 * ROW_WIDTH  # a wider mapping is rare enough to go value by value
_pack_scalar: Final = SCALARS.packer.pack_into


class Mappings:
    """The kinds of mappings that one run has seen.

    Attributes
    ----------
    recent
        The encoder of the latest mapping of so many values: what the fast way tries first.
    logger
        The fast way in C, which keeps recent ones itself; None for that in Python.
    """

    def __init__(self, series: Series, scalars: AnyLane, rows: AnyLane) -> None:
        self._series = series
        self._scalars, self._rows = scalars, rows
        self._encoders: dict[tuple[object, ...], tuple[RowEncoder, ...]] = {}
        self.recent: dict[int, RowEncoder] = {}
        self.logger: Any = None

    def learn(self, names: tuple[object, ...], series: tuple[int, ...]) -> None:
        """Keep how a mapping with these names is written, if that is worth it and there are not too many already."""
        if not 0 < len(names) <= _BY_SLOT or len(self._encoders) >= _MOST_ENCODERS:
            return
        encoders: list[RowEncoder] = []
        for at in range(0, len(names), ROW_WIDTH):
            target = self._target(series[at : at + ROW_WIDTH])
            if target is None:
                return
            some = names[at : at + ROW_WIDTH]
            encoders.append(RowEncoder(len(some), _picker(some), *target))
        self._encoders[names] = tuple(encoders)
        self._remember(names, tuple(encoders))

    def write_known(self, moment: int, step: object, values: dict[Any, object]) -> bool:
        """Write a mapping whose names are known; False, and nothing is written, if they are not or a value is odd.

        Parameters
        ----------
        moment
            Monotonic ns.
        step
            Its number, or ABSENT.
        """
        encoders = self._encoders.get(tuple(values))
        if encoders is None or type(step) is not int or not ABSENT <= step < -ABSENT:
            return False
        try:
            numbers = {name: number(value) for name, value in values.items()}
        except (BadValueError, DeviceValueError):
            return False
        for one in encoders:
            one.lane.put(one.pack, moment, step, *one.pick(numbers), one.number, rows=one.width)
        self._remember(tuple(values), encoders)
        return True

    def write(self, moment: int, step: int, values: dict[int, float]) -> None:
        """Write values by metric number: several to a slot where that is worth it."""
        series = tuple(values)
        if 1 < len(series) <= _BY_SLOT:
            for at in range(0, len(series), ROW_WIDTH):
                part = series[at : at + ROW_WIDTH]
                target = self._target(part)
                if target is None:
                    break
                lane, pack, schema = target
                lane.put(pack, moment, step, *(values.pop(one) for one in part), schema, rows=len(part))
        for one, value in values.items():
            self._scalars.put(_pack_scalar, moment, step, value, one)

    def _remember(self, names: tuple[object, ...], encoders: tuple[RowEncoder, ...]) -> None:
        """Have mappings with these names written by the fast way from here on."""
        if self.logger is not None:
            with contextlib.suppress(TypeError):  # names that are texts, and something more
                self.logger.learn(names, self._scalars, self._rows, tuple(one.number for one in encoders))
        elif len(encoders) == 1:
            self.recent[len(names)] = encoders[0]

    def _target(self, series: tuple[int, ...]) -> tuple[AnyLane, Pack, int] | None:
        """Return where values of these metrics go in one slot, by which packer and number; None if nowhere."""
        if len(series) == 1:
            return self._scalars, _pack_scalar, series[0]
        try:
            return self._rows, row_packer(len(series)).pack_into, self._series.schema(series)
        except RefusedError:  # too many kinds of mappings
            return None


def _picker(names: tuple[Any, ...]) -> Pick:
    if len(names) > 1:
        return itemgetter(*names)
    (name,) = names
    return lambda values: (values[name],)
