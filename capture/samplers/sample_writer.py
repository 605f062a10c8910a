"""Sample writer: writes the samplers' rows into a run, within a time limit. The caller sets the ticks."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ranklake.capture.common.gaps import LOGGER
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.metrics.meter import Meter
from ranklake.capture.samplers.sample import Row, Sampler, Value
from ranklake.capture.steps.events import Events

if TYPE_CHECKING:
    from ranklake.capture.metrics.scalar import Scalar


class SampleWriter:
    """Writes what the samplers of one process give.

    Parameters
    ----------
    sink, events, meter
        Of the run that the rows go to.
    samplers
        Asked at each tick.

    Notes
    -----
    Times are monotonic, so a wall clock that is set back moves nothing.
    """

    def __init__(self, sink: Sink, events: Events, meter: Meter, samplers: Sequence[Sampler]) -> None:
        self._sink, self._events, self._meter = sink, events, meter
        self._samplers = list(samplers)
        self._failed: set[str] = set()
        self._scalars: dict[str, Scalar] = {}

    def tick(self) -> None:
        """Ask each sampler once and write down what it gives. Nothing is raised."""
        for sampler in self._samplers:
            now_ns = time.monotonic_ns()
            try:
                for sample in sampler.sample(now_ns):
                    if isinstance(sample, Row):
                        with self._sink.recording(sample.table):
                            self._sink.record(sample.table, sample.columns, sample.at_ns)
                    else:
                        self._add(sample)
            except Exception as error:  # noqa: BLE001 - a bug of ours must cost this sampler's row and no other
                self._tell(type(sampler).__name__, error)

    def _add(self, value: Value) -> None:
        scalar = self._scalars.get(value.metric)
        if scalar is None:
            scalar = self._scalars[value.metric] = self._meter.scalar(value.metric, value.kind)
        scalar.add(value.value)

    def close(self) -> None:
        """Close the samplers."""
        for sampler in self._samplers:
            try:
                sampler.close()
            except Exception as error:  # noqa: BLE001 - the next one's turn must come
                self._tell(type(sampler).__name__, error)

    def _tell(self, name: str, error: Exception) -> None:
        if name not in self._failed:
            self._failed.add(name)
            LOGGER.warning("ranklake: %s failed: %s: %s", name, type(error).__name__, error)
            message = f"{name} failed: {type(error).__name__}: {error}"
            self._events.add(
                "sampler_failed", message=message, severity="error", sampler=name, error=type(error).__name__
            )
