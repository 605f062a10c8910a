"""Counter: a handle that only grows. Each addition writes the sum so far, so the last row has the total."""

import math
import threading
from collections.abc import Callable
from typing import Any

from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import BadValueError, number
from ranklake.capture.metrics.handles import Define, Failed, Unrecorded, step_of


class Counter:
    """One counter: ``read = run.counter("data/bytes_read")``, then ``read.add(len(block))``.

    Parameters
    ----------
    define, failed
        See `handles`.
    put
        Writes (moment, step, value, series).

    Notes
    -----
    The sum is the process's; all threads share it. A lock is held from the addition to the write, else a later row
    could show a smaller sum, which readers take for a restart. The sum is exact while it fits 53 bits.
    """

    __slots__ = ("_define", "_failed", "_lock", "_put", "_series", "_sum", "name")

    def __init__(
        self, name: str, define: Define, put: Callable[[int, int, float, int], object], failed: Failed
    ) -> None:
        self.name = name
        self._define, self._put, self._failed = define, put, failed
        self._series: int | None = None
        self._sum: int | float = 0
        self._lock = threading.RLock()

    def add(self, n: Any = 1, step: Any = None) -> None:  # noqa: ANN401 - whatever training has
        """Grow by `n` >= 0; once this has returned, the new sum survives the process."""
        try:
            at = step_of(step)
            more = _growth(n)
            with self._lock:
                if self._series is None:
                    self._series = self._define()
                float(self._sum + more)  # raises, before anything is changed, if that is beyond a double's range
                self._sum += more
                # The clock first: what a signal handler adds in between has a later time and a greater sum.
                self._put(now(), at, float(self._sum), self._series)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._failed(self.name, n, error, lambda late: self.add(late, step))

    def after_fork(self) -> None:
        """In a forked child, whose counts are its own, from nothing; a lost thread may hold the lock."""
        self._lock = threading.RLock()
        self._sum = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Unrecorded, (self.name,)


def _growth(n: object) -> int | float:
    more = int(n) if isinstance(n, int) else number(n)
    if not (math.isfinite(more) and more >= 0):
        raise BadValueError(f"{more}, and a counter only grows")
    return more
