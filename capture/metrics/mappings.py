"""Mappings: several values logged at one moment, written in one slot if their names were seen before.

A loop logs the same names again and again. Which metrics they are, and by which packer they are written, is looked up
once: a `Plan`. See decision 008 for the slots.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.gaps import RefusedError
from ranklake.capture.common.layouts import ABSENT, ROW_WIDTH, SCALARS, row_packer
from ranklake.capture.common.values import BadValueError, DeviceValueError, number
from ranklake.capture.lanes.shards import AnyLane

if TYPE_CHECKING:
    from ranklake.capture.recording.recorder import Recorder

Pack = Callable[..., None]
Pick = Callable[[Mapping[Any, Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Plan:
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


_MOST_PLANS: Final = 1000
_BY_SLOT: Final = 4 * ROW_WIDTH  # a wider mapping is rare enough to go value by value
_pack_scalar: Final = SCALARS.packer.pack_into


class Mappings:
    """The kinds of mappings that one run has seen.

    Attributes
    ----------
    recent
        The plan of the latest mapping of so many values: what the fast way tries first.
    logger
        The fast way in C, which keeps recent plans itself; None for that in Python.
    """

    def __init__(self, recorder: "Recorder") -> None:
        self._series = recorder.series
        self._scalars, self._rows = recorder.slots["scalars"], recorder.slots["rows"]
        self._plans: dict[tuple[object, ...], tuple[Plan, ...]] = {}
        self.recent: dict[int, Plan] = {}
        self.logger: Any = None

    def learn(self, names: tuple[object, ...], series: tuple[int, ...]) -> None:
        """Keep how a mapping with these names is written, if that is worth it and there are not too many already."""
        if not 0 < len(names) <= _BY_SLOT or len(self._plans) >= _MOST_PLANS:
            return
        plans: list[Plan] = []
        for at in range(0, len(names), ROW_WIDTH):
            target = self._target(series[at : at + ROW_WIDTH])
            if target is None:
                return
            some = names[at : at + ROW_WIDTH]
            plans.append(Plan(len(some), _picker(some), *target))
        self._plans[names] = tuple(plans)
        self._remember(names, tuple(plans))

    def write_known(self, moment: int, step: object, values: dict[Any, object]) -> bool:
        """Write a mapping whose names are known; False, and nothing is written, if they are not or a value is odd.

        Parameters
        ----------
        moment
            Monotonic ns.
        step
            Its number, or ABSENT.
        """
        plans = self._plans.get(tuple(values))
        if plans is None or type(step) is not int or not ABSENT <= step < -ABSENT:
            return False
        try:
            numbers = {name: number(value) for name, value in values.items()}
        except (BadValueError, DeviceValueError):
            return False
        for plan in plans:
            plan.lane.put(plan.pack, moment, step, *plan.pick(numbers), plan.number, rows=plan.width)
        self._remember(tuple(values), plans)
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

    def _remember(self, names: tuple[object, ...], plans: tuple[Plan, ...]) -> None:
        """Have mappings with these names written by the fast way from here on."""
        if self.logger is not None:
            with contextlib.suppress(TypeError):  # names that are texts, and something more
                self.logger.learn(names, self._scalars, self._rows, tuple(plan.number for plan in plans))
        elif len(plans) == 1:
            self.recent[len(names)] = plans[0]

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
