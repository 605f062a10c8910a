"""Breaker: a circuit breaker that decides when to try the store again after a failure.

It has no effects; callers may set its clock and random numbers.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

FAILURES_TO_OPEN: Final = 5
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The state of a breaker, from which another process can continue.

    Attributes
    ----------
    failures
        Consecutive failures.
    is_open
        Whether only a single probe may be sent.
    wait_s
        Seconds until the next attempt is allowed.
    away_s
        Seconds since the first of the consecutive failures; 0 if the last attempt succeeded.
    """

    failures: int = 0
    is_open: bool = False
    wait_s: float = 0.0
    away_s: float = 0.0

    def later(self, passed_s: float) -> Self:
        """Return the state after `passed_s` seconds without a request."""
        away_s = self.away_s + passed_s if self.failures else 0.0
        return replace(self, wait_s=max(0.0, self.wait_s - passed_s), away_s=away_s)


class Breaker:
    """Backoff with full jitter, and a circuit breaker.

    After the n-th consecutive failure, the next attempt is allowed after a random time of 0 to min(60, 2^(n-1))
    seconds, so that ten thousand ranks do not return at the same moment. After five failures, or one answer that asks
    for less traffic, the breaker opens: the wait is at least half of this time, and then a single probe is allowed. Its
    success closes the breaker; its failure starts another wait.

    Parameters
    ----------
    clock
        Monotonic seconds.
    dice
        Random numbers from 0 to 1.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, dice: Callable[[], float] = random.random) -> None:
        self._clock, self._dice = clock, dice
        self._lock = threading.Lock()
        self._failures = 0
        self._open = False
        self._probing = False
        self._not_before = 0.0
        self._away_since = 0.0

    @classmethod
    def from_state(cls, state: BreakerState) -> Self:
        """Return a breaker with a stored state."""
        breaker = cls()
        breaker._failures, breaker._open = state.failures, state.is_open
        breaker._not_before = breaker._clock() + state.wait_s
        breaker._away_since = breaker._clock() - state.away_s
        return breaker

    def snapshot(self) -> BreakerState:
        """Return the current state, without a running probe."""
        with self._lock:
            now = self._clock()
            away_s = now - self._away_since if self._failures else 0.0
            return BreakerState(self._failures, self._open, max(0.0, self._not_before - now), away_s)

    @property
    def state(self) -> str:
        """``closed``, ``open``, or ``half-open`` during a probe."""
        with self._lock:
            if not self._open:
                return "closed"
            return "half-open" if self._probing else "open"

    def wait_s(self) -> float:
        """Return 0 if the caller may try now, and must then report the result; else the seconds until the next call."""
        with self._lock:
            left = self._not_before - self._clock()
            if left > 0:
                return left
            if self._open:
                if self._probing:
                    return FIRST_WAIT_S
                self._probing = True
            return 0.0

    def left_s(self) -> float:
        """Return the seconds until the next attempt is allowed, without starting a probe."""
        with self._lock:
            return max(0.0, self._not_before - self._clock())

    def succeeded(self) -> None:
        """Report a success."""
        with self._lock:
            self._failures, self._open, self._probing, self._not_before = 0, False, False, 0.0

    def failed(self, *, throttled: bool = False) -> None:
        """Report a failure; `throttled` if the store reported too many requests (429, 503)."""
        with self._lock:
            self._away_since = self._away_since if self._failures else self._clock()
            self._failures += 1
            self._probing = False
            longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._failures - 1, 10))
            self._open = self._open or throttled or self._failures >= FAILURES_TO_OPEN
            if throttled:
                longest = max(longest, LONGEST_WAIT_S / 4)
            floor = longest / 2 if self._open else 0.0
            self._not_before = self._clock() + floor + self._dice() * (longest - floor)
