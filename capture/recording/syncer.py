"""Syncer: the thread that syncs recorded rows to disk, and prefaults pages ahead of the writers.

It has a thread of its own because it has a time limit that sealing, which may take seconds, must not break: a power
failure costs what `Settings.sync_every_s` says.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.spool.files import sync_file, sync_folder
from ranklake.capture.spool.stream import Stream

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
