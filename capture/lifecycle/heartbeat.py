"""Heartbeat: a sign of life of a rank that records nothing else.

Each segment of a rank says that it lived when its last row was written, so a rank that trains needs no heartbeat: one
in `MOST_SKIPPED` + 1 intervals is written all the same, for what it says of the rank. Where no step and no phase begins
in an interval there is one each, with the time since one did: so a rank that hangs beats on, and one that is dead does
not. Of 10,000 ranks that train, 100 write one in a minute.
"""

import time
from typing import Any, Final

from ranklake.capture.common.run_like import RunLike
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.progress import Progress

MOST_SKIPPED: Final = 9


def interval_s(settings: CaptureSettings) -> float:
    """Return how long a living rank may at most be unheard of, in s; 0 if it was not asked to beat.

    Nothing is heard of a rank between two sealings.
    """
    return max(settings.heartbeat_every_s, settings.seal_every_s) if settings.heartbeat_every_s else 0.0


class Heartbeat:
    """The heartbeat of one run, looked after by the sealer's thread, which calls `look` each second."""

    def __init__(self, run: RunLike, settings: CaptureSettings, events: Events, progress: Progress) -> None:
        self._run, self._settings, self._events, self._progress = run, settings, events, progress
        self._every_s = settings.heartbeat_every_s
        self._begun = progress.begun()
        self._moved_s = time.monotonic()
        self._due_s = self._moved_s + self._every_s
        self._beat_at, self._skipped = self._begun, 0

    def look(self) -> None:
        """Write a heartbeat if one is due."""
        now, begun = time.monotonic(), self._progress.begun()
        if begun != self._begun:
            self._begun, self._moved_s = begun, now
        if not self._every_s or now < self._due_s:
            return
        self._due_s = now + self._every_s
        moves, self._beat_at = begun != self._beat_at, begun
        if moves and self._skipped < MOST_SKIPPED:
            self._skipped += 1
            return
        self._skipped = 0
        self._events.add("heartbeat", step=self._progress.latest_step(), **self._facts(now))

    def _facts(self, now: float) -> dict[str, Any]:
        """Return what a heartbeat says: the interval, ranks in the run, spans begun, and how long ago the last was."""
        return {
            "interval_s": interval_s(self._settings),
            "world_size": self._run.world_size,
            "begun": self._begun,
            "still_s": round(now - self._moved_s, 3),
        }
