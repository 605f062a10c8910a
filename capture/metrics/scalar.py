"""Scalar: the handle of one metric, and the fastest way to write its values."""

import time
from collections.abc import Callable
from typing import Any, Final

from ranklake.capture.common.gaps import NOWHERE, Gaps
from ranklake.capture.common.layouts import ABSENT, MARK, SCALARS
from ranklake.capture.common.native import MODULE
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.metrics.handles import Unrecorded

_pack_scalar: Final = SCALARS.packer.pack_into


class Scalar:
    """One metric, looked up once: ``loss = run.scalar("train/loss")``, then ``loss.add(value, step)``.

    Attributes
    ----------
    add
        Records a value. Called with the value and, if it belongs to one, its step.
    """

    __slots__ = ("add", "name")

    def __init__(self, name: str, add: Callable[..., None]) -> None:
        self.name = name
        self.add = add

    def __reduce__(self) -> tuple[Any, ...]:
        return (no_scalar, (self.name, None)) if self.add is _nothing else (no_scalar, (self.name,))


def no_scalar(name: str, idle: Gaps | None = NOWHERE) -> Scalar:
    """Return the handle of a run that records nothing; see `ranklake.capture.metrics.handles.Unrecorded`."""
    return Scalar(name, _nothing if idle is None else Unrecorded(name, "scalars", idle).add)


def _nothing(*_: object, **__: object) -> None:
    """Do what a user wants who has switched recording off."""


def adder(lane: AnyLane, series: int, slow: Callable[..., None]) -> Callable[..., None]:
    """Return what writes (value, step) into one slot; what is not that plain goes to `slow`.

    Parameters
    ----------
    series
        Number of the metric.
    """
    if MODULE is not None:
        made: Callable[..., None] = MODULE.Adder(lane, series, slow)
        return made
    pack, clock, mark = _pack_scalar, time.monotonic_ns, MARK

    def add(value: Any, step: Any = ABSENT) -> None:  # noqa: ANN401 - whatever training has
        try:
            if value.__class__ is float:
                view, take = lane.pair
                pack(view, take(), clock(), step, value, series, mark)
                return
        except Exception:  # noqa: BLE001, S110 - the file is full or cut, or the step is no int
            pass
        slow(value, step)

    return add
