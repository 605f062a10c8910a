"""Steps: what all steps of one run have in common."""

from collections.abc import Callable
from typing import Final, Protocol

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.values import integer
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.steps.device_values import DeviceValues
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.own_numbers import OwnNumbers
from ranklake.capture.steps.spans import Spans
from ranklake.capture.steps.waits import Waits

_BEYOND: Final = 1 << 63


class Values(Protocol):
    """What takes the values of steps that go into no row: `ranklake.capture.metrics.value_log.ValueLog`.

    Attributes
    ----------
    fast
        Records values by name, in the step that runs.
    """

    fast: Callable[..., None]

    def add(self, name: str, value: float, step: int) -> None:
        """Record one value whose number and step are in order already."""


class Steps:
    """What all steps of one run have in common.

    Parameters
    ----------
    lane
        Their rows.
    own
        Where numbers that an overlay adds stand in a row; None where it adds none.
    """

    def __init__(
        self,
        spans: Spans,
        waits: Waits,
        device: DeviceValues,
        events: Events,
        values: Values,
        lane: AnyLane,
        own: OwnNumbers | None = None,
    ) -> None:
        self.sink, self.progress, self.stack = spans.sink, spans.progress, spans.progress.stack
        self.spans, self.waits, self.device = spans, waits, device
        self.events, self.values, self.lane, self.own = events, values, lane, own
        self.progress.on_again = self._tell_again

    def number(self, raw: object) -> int:
        """Return a step's number; None is one more than the last. Raises what `integer` raises."""
        if type(raw) is int and 0 <= raw < _BEYOND:
            return raw
        if raw is None:
            latest = self.progress.latest
            return 0 if latest == ABSENT else latest + 1
        whole = integer(raw)
        if whole < 0:
            self.sink.misuse("step below 0", f"step {whole} is below 0: its row will be refused when it is ingested")
        return whole

    def _tell_again(self, number: int) -> None:
        said = f"step {number} came again in this process, after others"
        hint = "number steps over all epochs, or leave the number out"
        self.sink.misuse("step again", f"{said}: rows of one step are there more than once; {hint}")
