"""Rate limits: how often somebody may ask, as buckets that fill again."""

import threading
import time
from typing import Final

from ranklake.errors import RanklakeError

_MOST_NAMES: Final = 10_000


class BusyError(RanklakeError):
    """Somebody asks more often than they may."""


class RateLimit:
    """A bucket of requests for each name.

    Parameters
    ----------
    burst
        Requests that may come at once.
    per_s
        Requests that come back each second.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, name: str) -> bool:
        """Take one request of a name; whether there was one."""
        with self._lock:
            now = time.monotonic()
            left, at = self._left.pop(name, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._per_s)
            if len(self._left) >= _MOST_NAMES:  # the one that asked least recently; anybody may have many addresses
                del self._left[next(iter(self._left))]
            self._left[name] = max(left - 1, 0.0) if left >= 1 else left, now
            return left >= 1
