"""Self-metrics: the agent's metrics as telemetry rows, in its own run beside those of the ranks."""

import time
from typing import Final

from ranklake.capture.node.agent_metrics import COUNTERS, GAUGES, AgentMetrics
from ranklake.capture.training.run import Run

EVERY_S: Final = 60.0


class SelfMetrics:
    """Keeps the figures in a run, by one thread.

    Parameters
    ----------
    every_s
        Least time between two entries.
    """

    def __init__(self, run: Run, *, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._next = 0.0
        self._values = [
            (figure, run.scalar(name, kind=kind))
            for kind, family in (("gauge", GAUGES), ("counter", COUNTERS))
            for name, (figure, _, _) in family.items()
        ]

    def note(self, figures: AgentMetrics) -> None:
        """Record the figures, if the last entry is old enough. Nothing is raised."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        for figure, scalar in self._values:
            scalar.add(getattr(figures, figure))
