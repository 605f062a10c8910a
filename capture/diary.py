"""Diary: the agent's figures as telemetry rows, in a run of its own beside those of the ranks."""

import re
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ranklake.capture.figures import COUNTERS, GAUGES, Figures
from ranklake.capture.start import start

JOB: Final = "ranklake-agent"


class Diary:
    """A run named ``ranklake-agent-<host>-<time of its start>``: each start of an agent is a run of its own.

    Its segments are sealed like a rank's and wait for the agent like a rank's, so the books of ``ranklake status``
    hold for them, too.

    Parameters
    ----------
    every_s
        Least time between two entries.
    """

    def __init__(
        self, root: Path, spool: str, storage_options: Mapping[str, Any] | None = None, *, every_s: float = 60.0
    ) -> None:
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64]
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        self._run = start(
            job=JOB,
            run=f"{JOB}-{host}-{began}",
            rank=0,
            world_size=1,
            attempt=0,
            spool=spool,
            local_dir=root,
            storage_options=storage_options,
        )
        self._every_s = every_s
        self._next = 0.0
        self._values = [
            (figure, self._run.scalar(name, kind=kind))
            for kind, family in (("gauge", GAUGES), ("counter", COUNTERS))
            for name, (figure, _, _) in family.items()
        ]

    def note(self, figures: Figures) -> None:
        """Record the figures, if the last entry is old enough. Nothing is raised."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        for figure, scalar in self._values:
            scalar.add(getattr(figures, figure))

    def close(self, timeout_s: float) -> None:
        """Seal what was recorded; the next agent uploads it."""
        self._run.close(timeout_s)
