"""Background: work of a run that must not delay training, done in order by a thread of its own."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ranklake.capture.common.gaps import LOGGER

_JOIN_S: Final = 2.0


class Background:
    """A queue of jobs and the thread that does them, which is there while there are any.

    Notes
    -----
    A job is called with a function that says whether to give up; it then writes down what it has, and returns. A
    forked child has no such thread: what is given there is done at once, and what its parent has to do is left to it.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._jobs: deque[tuple[Callable[[Callable[[], bool]], None], threading.Event]] = deque()
        self._lock = threading.RLock()  # a signal's handler may write a checkpoint in the middle of this
        self._thread: threading.Thread | None = None
        self._stopping = False

    def submit(self, job: Callable[[Callable[[], bool]], None]) -> threading.Event:
        """Have a job done; the event is set when it is. Raises `RuntimeError` where no thread can be started."""
        done = threading.Event()
        if os.getpid() != self._pid:
            job(lambda: False)
            done.set()
            return done
        with self._lock:
            self._jobs.append((job, done))
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="ranklake-background", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread can be started
                    self._jobs.pop()
                    raise
                self._thread = thread
        return done

    def drain(self, timeout_s: float) -> None:
        """Wait until all is done that was submitted so far."""
        deadline = time.monotonic() + timeout_s
        if os.getpid() == self._pid:
            for _, done in list(self._jobs):
                done.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Have what is left given up: each job still writes down that it was."""
        self._stopping = True
        thread = self._thread
        if thread is not None and os.getpid() == self._pid and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job, done = self._jobs[0]
            try:
                job(lambda: self._stopping)
            except Exception as error:  # noqa: BLE001 - the next job's turn must come
                LOGGER.warning("ranklake: in the background: %s: %s", type(error).__name__, error)
            finally:
                done.set()
                self._jobs.popleft()
