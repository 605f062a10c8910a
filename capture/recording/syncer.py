"""Syncer: a thread that syncs recorded rows to disk, and one that prepares files ahead of the writers.

Syncing has a separate thread, because it must happen every `sync_every_s`, while sealing may take several seconds. A
power failure then loses at most the rows of this time.
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
    """Prepares spare files for the lanes of one recorder, and checks the disk budget.

    Parameters
    ----------
    press
        Called when the budget is nearly used up.
    """

    def __init__(self, recorder: Recorder, press: Callable[[], None]) -> None:
        self._recorder, self._press = recorder, press
        self._wanted: queue.SimpleQueue[None] = queue.SimpleQueue()  # signal handlers may put to it
        self._stopping = False
        self._next_spare = 0.0
        self._thread = threading.Thread(target=self._run, name="ranklake-spare", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` if the system cannot start one."""
        self._thread.start()
        for lane in self._recorder.slots.values():
            lane.wake = self._wake

    def stop(self, timeout_s: float) -> None:
        """Stop the thread; the recorder must be closed."""
        self._stopping = True
        self._wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def make_room(self) -> None:
        """On a full disk, delete spare files and create none for a while, so that sealing has space to work."""
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
        """Return the seconds until the next round, if no lane wakes the thread before; longer with enough space."""
        is_hungry = any(lane.is_hungry for lane in self._recorder.slots.values())
        may_prepare = time.monotonic() >= self._next_spare
        return _ROOMY_EVERY_S if self._recorder.budget.is_roomy and may_prepare and not is_hungry else _EVERY_S

    def _round(self) -> None:
        recorder = self._recorder
        if recorder.stream is not None:
            with contextlib.suppress(FileNotFoundError):  # a deleted folder, which the sealer handles
                recorder.budget.look(recorder.stream.folder)
            if any(recorder.budget.excess_bytes(SLOT_LANES[lane]) for _, lane in EVICTABLE):
                self._press()
        may_prepare = time.monotonic() >= self._next_spare
        for lane in recorder.slots.values():
            if may_prepare or lane.is_hungry:
                lane.prepare()


_SHARE: Final = 0.8  # of `sync_every_s` between syncs; the rest is for the disk


class Syncer:
    """Syncs the lanes of one recorder.

    Parameters
    ----------
    make_room
        Called when the disk is full.

    Attributes
    ----------
    forked
        Whether this process may have forked children that record.
    """

    def __init__(self, recorder: Recorder, make_room: Callable[[], None]) -> None:
        self._recorder, self._make_room = recorder, make_room
        self._every_s = _SHARE * recorder.settings.sync_every_s
        self._stopping = threading.Event()
        self.forked = False
        self._thread = threading.Thread(target=self._run, name="ranklake-sync", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` if the system cannot start one."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop the thread; the recorder must be closed."""
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
    """Sync the rows of forked children, which start no threads, to disk. Raises `OSError`."""
    for folder in stream.folder.parent.glob(f"r{stream.name.rank:05d}-*"):
        if folder != stream.folder:
            with contextlib.suppress(FileNotFoundError):  # adopted and deleted meanwhile
                for path in folder.iterdir():
                    sync_file(path)
                sync_folder(folder)
