"""Limits: how many log records of one template are kept.

A template has a bucket of tokens: `burst` at first, `rate_per_s` more each second. A record that finds none is
suppressed: counted, and told by the next record of its template that is kept, or, when that is long in coming, by a
record of its own that stands for nothing else (`owed`). Of verbose records a share is kept, the same on every rank.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from ranklake.capture.common.ratios import checked_ratio, chosen, seed_of, threshold_of

MOST_TEMPLATES: Final = 2048
_S: Final = 1_000_000_000


@dataclass(slots=True)
class Bucket:
    """What is known of one template.

    Attributes
    ----------
    tokens, at_ns
        Records that may be kept, and when that was found out.
    suppressed
        Records that no kept one tells of yet.
    seen
        Verbose records so far.
    facts
        Of the last suppressed record: what a row about it says.
    """

    tokens: float
    at_ns: int
    seed: int
    suppressed: int = 0
    seen: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


class Limits:
    """The buckets of a run's templates; the least recently used give way when there are too many.

    Parameters
    ----------
    verbose
        Share of verbose records to keep, 0 to 1.

    Notes
    -----
    The lock is re-entrant for the sake of signal handlers, and held for no more than a look at one bucket.
    """

    def __init__(self, run: str, *, rate_per_s: float, burst: float, verbose: float) -> None:
        self._run, self._rate_per_s, self._burst = run, max(0.0, rate_per_s), max(1.0, burst)
        self._threshold = threshold_of(checked_ratio(verbose))
        self.weight = 1.0 / verbose if 0.0 < verbose < 1.0 else 1.0
        self._buckets: OrderedDict[object, Bucket] = OrderedDict()
        self._lock = threading.RLock()
        self._evicted: list[Bucket] = []

    def take(self, key: object, now_ns: int, facts: dict[str, Any], *, verbose: bool = False) -> int | None:
        """Ask whether a record is kept.

        Parameters
        ----------
        key
            Its template, and whose it is.
        facts
            What a row about suppressed records of the template says.

        Returns
        -------
        How many before it were suppressed; None if it is not kept.
        """
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._new(key, now_ns)
            else:
                self._buckets.move_to_end(key)
            if verbose:
                bucket.seen += 1
                if not chosen(bucket.seed, bucket.seen, self._threshold):
                    return None
            tokens = min(self._burst, bucket.tokens + (now_ns - bucket.at_ns) * self._rate_per_s / _S)
            bucket.at_ns = now_ns
            if tokens < 1.0:
                bucket.tokens, bucket.facts = tokens, facts
                bucket.suppressed += 1
                return None
            bucket.tokens = tokens - 1.0
            suppressed, bucket.suppressed = bucket.suppressed, 0
            return suppressed

    def owed(self, before_ns: int) -> list[Bucket]:
        """Return, and forget, counts that no kept record has told of, of templates last heard of before a time."""
        with self._lock:
            found, self._evicted = self._evicted, []
            for bucket in self._buckets.values():
                if bucket.suppressed and bucket.at_ns < before_ns:
                    found.append(Bucket(0.0, bucket.at_ns, 0, bucket.suppressed, 0, bucket.facts))
                    bucket.suppressed = 0
            return found

    def after_fork(self) -> None:
        """In a forked child: what was suppressed is the parent's to tell of; a lost thread may hold the lock."""
        self._lock = threading.RLock()
        self._evicted = []
        for bucket in self._buckets.values():
            bucket.suppressed = 0

    def _new(self, key: object, now_ns: int) -> Bucket:
        if len(self._buckets) >= MOST_TEMPLATES:
            _, oldest = self._buckets.popitem(last=False)
            if oldest.suppressed:
                self._evicted.append(oldest)
        bucket = self._buckets[key] = Bucket(self._burst, now_ns, seed_of(self._run, str(key)))
        return bucket
