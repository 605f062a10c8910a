"""Rate limits: how many requests a name may make, as buckets of tokens that refill."""

import threading
import time
from typing import Final

from ranklake.errors import RanklakeError

_MOST_NAMES: Final = 10_000


class BusyError(RanklakeError):
    """A name makes more requests than its limit."""


class RateLimit:
    """A bucket of requests for each name.

    Parameters
    ----------
    burst
        Requests that may come at once.
    per_s
        Requests by which a bucket refills each second.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, name: str) -> bool:
        """Take a request from a name's bucket; False if it is empty."""
        with self._lock:
            now = time.monotonic()
            left, filled_at_s = self._left.pop(name, (self._burst, now))
            left = min(self._burst, left + (now - filled_at_s) * self._per_s)
            if len(self._left) >= _MOST_NAMES:  # forget the least recent: clients may have many addresses
                del self._left[next(iter(self._left))]
            self._left[name] = max(left - 1, 0.0) if left >= 1 else left, now
            return left >= 1
