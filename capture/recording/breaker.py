"""Breaker: retries of uploads, a circuit breaker that says when to try the store again after it failed.

Pure except for its clock and random numbers, which callers may set.
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
    """How a breaker stands, for another process to go on from.

    Attributes
    ----------
    failures
        In a row.
    is_open
        Whether one probe at most may be sent.
    wait_s
        How long the store is left alone from now on.
    away_s
        Since when it failed each time, in seconds before now; 0 if the last try succeeded.
    """

    failures: int = 0
    is_open: bool = False
    wait_s: float = 0.0
    away_s: float = 0.0

    def later(self, passed_s: float) -> Self:
        """Return the state after some time without a request."""
        away_s = self.away_s + passed_s if self.failures else 0.0
        return replace(self, wait_s=max(0.0, self.wait_s - passed_s), away_s=away_s)


class Breaker:
    """Full-jitter backoff, and a circuit breaker on top.

    After the n-th failure in a row the store is left alone for a random time of 0 to min(60, 2^(n-1)) seconds, so
    that ten thousand ranks do not come back at once. After five, or one answer that asks for less traffic, the
    breaker is open: it waits at least half of that, and then lets one single probe through; its success closes the
    breaker, its failure starts another wait.

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
        """Return a breaker that stands like another one did."""
        breaker = cls()
        breaker._failures, breaker._open = state.failures, state.is_open
        breaker._not_before = breaker._clock() + state.wait_s
        breaker._away_since = breaker._clock() - state.away_s
        return breaker

    def snapshot(self) -> BreakerState:
        """Return how it stands now; a probe under way is not known of."""
        with self._lock:
            now = self._clock()
            away_s = now - self._away_since if self._failures else 0.0
            return BreakerState(self._failures, self._open, max(0.0, self._not_before - now), away_s)

    @property
    def state(self) -> str:
        """``closed``, ``open``, or ``half-open`` while a probe is under way."""
        with self._lock:
            if not self._open:
                return "closed"
            return "half-open" if self._probing else "open"

    def wait_s(self) -> float:
        """Return 0 if the caller may try now, and must then report how it went, else how long to wait before asking."""
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
        """Return how long the store is left alone from now on; asking takes no probe."""
        with self._lock:
            return max(0.0, self._not_before - self._clock())

    def succeeded(self) -> None:
        """Report a success."""
        with self._lock:
            self._failures, self._open, self._probing, self._not_before = 0, False, False, 0.0

    def failed(self, *, throttled: bool = False) -> None:
        """Report a failure; `throttled` if the store said that it is asked too much (429, 503)."""
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
