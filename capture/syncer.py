"""Syncer: the thread that keeps pages ready in front of the writers and brings what they wrote to the disk.

It has a thread of its own because both have a time limit that sealing, which may take seconds, must not break: a
writer that fills its file finds the next one prepared, and a power failure costs what `Settings.sync_every_s` says.
"""

import contextlib
import errno
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from ranklake.capture.budget import EVICTABLE
from ranklake.capture.files import sync_file, sync_folder
from ranklake.capture.gaps import AFTER_CLOSE, RefusedError
from ranklake.capture.layouts import SLOT_LANES
from ranklake.capture.recorder import Recorder
from ranklake.capture.stream import Stream

NO_SPARE_FOR_S: Final = 30.0
_LONGEST_S: Final = 1.0
_SHARE: Final = 0.8  # of the time that a row may wait: the rest is for the disk


class Syncer:
    """Prepares and syncs the lanes of one recorder, and sees how much of the disk budget is left.

    Parameters
    ----------
    press
        Called when that is little.

    Attributes
    ----------
    forked
        Whether this process may have children who record.
    """

    def __init__(self, recorder: Recorder, press: Callable[[], None]) -> None:
        self._recorder, self._press = recorder, press
        self._every_s = _SHARE * recorder.settings.sync_every_s
        self._wanted: queue.SimpleQueue[None] = queue.SimpleQueue()  # may be put to in a signal handler
        self._stopping = False
        self.forked = False
        self._next_spare = self._next_sync = 0.0
        self._thread = threading.Thread(target=self._run, name="ranklake-sync", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` if the system gives none."""
        for lane in self._recorder.slots.values():
            lane.wake = self._wake
        self._thread.start()

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
        while not self._stopping:
            try:
                self._round()
            except RefusedError as refused:
                if refused.reason == AFTER_CLOSE:
                    return
            except OSError as error:  # the disk is full or away: the sealer sees that, too
                self._recorder.gaps.warn("syncing", f"syncing: {error}; trying again")
                if error.errno == errno.ENOSPC:
                    self.make_room()
            except Exception as error:  # noqa: BLE001 - a bug of ours
                self._recorder.gaps.warn("syncing", f"syncing failed: {type(error).__name__}: {error}")
            try:
                self._wanted.get(timeout=min(_LONGEST_S, max(0.01, self._next_sync - time.monotonic())))
            except queue.Empty:
                continue

    def _round(self) -> None:
        now = time.monotonic()
        recorder = self._recorder
        if recorder.stream is not None:
            with contextlib.suppress(FileNotFoundError):  # it vanished: the sealer sees that, too
                recorder.budget.look(recorder.stream.folder)
            if any(recorder.budget.excess_bytes(SLOT_LANES[lane]) for _, lane in EVICTABLE):
                self._press()
        if now >= self._next_spare:
            for lane in self._recorder.slots.values():
                lane.prepare()
        if now >= self._next_sync:
            self._next_sync = now + self._every_s
            recorder.sync()
            if self.forked and recorder.stream is not None:
                _sync_children(recorder.stream)


def _sync_children(stream: Stream) -> None:
    """Bring to the disk what forked children, who start no threads, have recorded. Raises `OSError`."""
    for folder in stream.folder.parent.glob(f"r{stream.name.rank:05d}-*"):
        if folder != stream.folder:
            with contextlib.suppress(FileNotFoundError):  # adopted and finished meanwhile
                for path in folder.iterdir():
                    sync_file(path)
                sync_folder(folder)
