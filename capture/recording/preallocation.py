"""Preallocation: the thread that prepares the next file of each lane before its writers need it.

A writer that finds no next file makes one itself, and faults its pages in one by one. So this thread waits for nothing
that takes long: syncing, which may wait for the disk for a second, has another.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from ranklake.capture.common.layouts import SLOT_LANES
from ranklake.capture.recording.budget import EVICTABLE
from ranklake.capture.recording.recorder import Recorder

NO_SPARE_FOR_S: Final = 30.0
_EVERY_S: Final = 1.0
_ROOMY_EVERY_S: Final = 5.0


class Preallocator:
    """Prepares the lanes of one recorder, and sees how much of the disk budget is left.

    Parameters
    ----------
    press
        Called when that is little.
    """

    def __init__(self, recorder: Recorder, press: Callable[[], None]) -> None:
        self._recorder, self._press = recorder, press
        self._wanted: queue.SimpleQueue[None] = queue.SimpleQueue()  # may be put to in a signal handler
        self._stopping = False
        self._next_spare = 0.0
        self._thread = threading.Thread(target=self._run, name="ranklake-spare", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` if the system gives none."""
        self._thread.start()
        for lane in self._recorder.slots.values():
            lane.wake = self._wake

    def stop(self, timeout_s: float) -> None:
        """Prepare no more and end the thread; the recorder is closed."""
        self._stopping = True
        self._wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def make_room(self) -> None:
        """Give up prepared files on a full disk for a while: sealing needs room to make room."""
        self._next_spare = time.monotonic() + NO_SPARE_FOR_S
        for lane in self._recorder.slots.values():
            lane.drop_spare()

    def _wake(self) -> None:
        self._wanted.put(None)

    def _run(self) -> None:
        while not self._stopping and self._recorder.gaps.attempt("preparing", self._round, self.make_room):
            with contextlib.suppress(queue.Empty):
                self._wanted.get(timeout=self._rest_s())

    def _rest_s(self) -> float:
        """Return how long nobody needs looking after but those that ask: seconds, while there is room of all kinds."""
        hungry = any(lane.is_hungry for lane in self._recorder.slots.values())
        may_prepare = time.monotonic() >= self._next_spare
        return _ROOMY_EVERY_S if self._recorder.budget.is_roomy and may_prepare and not hungry else _EVERY_S

    def _round(self) -> None:
        recorder = self._recorder
        if recorder.stream is not None:
            with contextlib.suppress(FileNotFoundError):  # it vanished: the sealer sees that
                recorder.budget.look(recorder.stream.folder)
            if any(recorder.budget.excess_bytes(SLOT_LANES[lane]) for _, lane in EVICTABLE):
                self._press()
        all_of_them = time.monotonic() >= self._next_spare
        for lane in recorder.slots.values():
            if all_of_them or lane.is_hungry:
                lane.prepare()
