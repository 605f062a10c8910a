"""Syncer: the thread that syncs recorded rows to disk, and prefaults pages ahead of the writers.

It has a thread of its own because it has a time limit that sealing, which may take seconds, must not break: a power
failure costs what `Settings.sync_every_s` says.
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
from ranklake.capture.spool.files import sync_file, sync_folder
from ranklake.capture.spool.stream import Stream

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
        """Return how long no lane needs attention unless it asks, in seconds, while there is room of all kinds."""
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


_SHARE: Final = 0.8  # of the time that a row may wait: the rest is for the disk


class Syncer:
    """Syncs the lanes of one recorder.

    Parameters
    ----------
    make_room
        Called when the disk is full.

    Attributes
    ----------
    forked
        Whether this process may have children who record.
    """

    def __init__(self, recorder: Recorder, make_room: Callable[[], None]) -> None:
        self._recorder, self._make_room = recorder, make_room
        self._every_s = _SHARE * recorder.settings.sync_every_s
        self._stopping = threading.Event()
        self.forked = False
        self._thread = threading.Thread(target=self._run, name="ranklake-sync", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` if the system gives none."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Sync no more and end the thread; the recorder is closed."""
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            if not self._recorder.gaps.attempt("syncing", self._round, self._make_room):
                return
            if self._stopping.wait(max(0.01, began + self._every_s - time.monotonic())):
                return

    def _round(self) -> None:
        self._recorder.sync()
        if self.forked and self._recorder.stream is not None:
            _sync_children(self._recorder.stream)


def _sync_children(stream: Stream) -> None:
    """Bring to the disk what forked children, who start no threads, have recorded. Raises `OSError`."""
    for folder in stream.folder.parent.glob(f"r{stream.name.rank:05d}-*"):
        if folder != stream.folder:
            with contextlib.suppress(FileNotFoundError):  # adopted and finished meanwhile
                for path in folder.iterdir():
                    sync_file(path)
                sync_folder(folder)
