"""Wake: an event that a thread sleeps on, and that a signal handler may set at any moment.

`threading.Event` has a lock: a handler that sets one while the thread that it interrupts does the same never returns.
A `queue.SimpleQueue` is made for that.
"""

import contextlib
import queue


class Wake:
    """Wakes one thread."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Wake it, or have it not fall asleep."""
        self._told.put(None)

    def wait(self, timeout_s: float) -> None:
        """Sleep until woken, or for so long; all wakings so far count as one."""
        with contextlib.suppress(queue.Empty):
            self._told.get(timeout=timeout_s)
            while True:
                self._told.get_nowait()
