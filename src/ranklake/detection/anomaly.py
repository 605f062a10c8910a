"""A streaming anomaly score of any series: without look-ahead, in bounded memory, with the same settings for all.

Each value has four errors:

- the distances of the last 4 values, and of the last 12, from the nearest stretch of the same length in the past (a
  discord distance, as in a matrix profile; Yeh et al. 2016);
- the distances of the value, and of the mean of the last 12, from the nearest one at about the same time on earlier
  days.

Each error becomes the probability that an earlier error of its kind is as large: by its rank, and in the tail by the
power law that fits the largest 2 % (Hill 1975). So an error twice as large as any before scores higher than one just
above the largest. The score is the mean of minus the decimal logarithms (Fisher's combination). A score of about 2.2
occurs once in 150 values.

Notes
-----
Compared on 28 labelled series of the Numenta Anomaly Benchmark. Half of them (drawn once, by seed) were used to choose,
the other half to confirm. Scores are at the best threshold over all series; 100 is perfect:

===============================================  ======
error, as tail probability, cool-down 200        all 28
===============================================  ======
difference to the last value                       50.9
difference to the median of the last 12            42.1
difference to the median of a day                  48.0
mean of 12 against the median of a day             51.4
spread of the last 24                              31.9
nearest value at the same time of a day            59.8
nearest mean of 12 at the same time of a day       64.6
nearest stretch of 4                               68.8
nearest stretch of 12                              65.3
nearest stretch of 24, of 48                 64.0, 58.2
largest of the stretches of 4 and 12, and both
of a day                                           68.6
mean of these four (this module)                   72.6
===============================================  ======

Without a cool-down the nearest stretch of 4 scores 60.6, with a cool-down of 600 values 59.1. The largest of several
probabilities is worse than their mean, since each has its own false alarms.

With a threshold chosen on other series, the score is 68.0 (mean of 300 random halves; a tenth of them is below 63.9),
68.4 with thirds, and 70.3 if one series is left out. Every threshold from 1.46 to 1.94 scores 65 or more on all 28
series, and every one up to 2.15 scores 64. Sixty normalizations were tried: tails, running maxima and quantiles of the
score's history, powers, caps and weights of the four errors, means and maxima of the last scores. If each half chose a
normalization and a threshold, the other half scored 66.8. Their gain is chance, so none is used.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float64]]
THRESHOLD: Final = 1.8
"""Least score of an anomaly if false alarms are harmless; use a higher threshold for alarms to people."""
_LEAST_DECAY: Final = 0.05
"""Lower bound of the tail's decay: equal errors would otherwise give an infinite power."""


@dataclass(frozen=True, slots=True)
class ScorerSettings:
    """Settings of a scorer; the defaults suit all series.

    Attributes
    ----------
    memory
        Number of values kept: two weeks at one value per five minutes.
    short, long
        Lengths of the two kinds of stretches, in values.
    days, slack
        Number of periods to look back for the same time, and its tolerance in values.
    burn_in
        Errors that are collected before the first score.
    tail_ratio, least_tail
        Share of the errors that are the tail, and how many it has at least.
    cooldown
        Number of values after a score during which only a higher score is reported.
    """

    memory: int = 4032
    short: int = 4
    long: int = 12
    days: int = 3
    slack: int = 12
    burn_in: int = 50
    tail_ratio: float = 0.02
    least_tail: int = 5
    cooldown: int = 200


class TailProbability:
    """Computes how improbable an error is, from earlier errors.

    Parameters
    ----------
    settings
        Its memory and its tail.
    """

    def __init__(self, settings: ScorerSettings) -> None:
        self._settings = settings
        self._sorted: list[float] = []
        self._recent: deque[float] = deque()

    def add(self, error: float) -> float:
        """Add an error; return minus the decimal logarithm of its probability, 0 while there are too few."""
        values, settings = self._sorted, self._settings
        count = len(values)
        surprise = self._surprise(error) if count >= settings.burn_in else 0.0
        if count == settings.memory:
            del values[bisect_left(values, self._recent.popleft())]
        insort(values, error)
        self._recent.append(error)
        return surprise

    def _surprise(self, error: float) -> float:
        values, count = self._sorted, len(self._sorted)
        size = max(self._settings.least_tail, int(self._settings.tail_ratio * count))
        limit = values[count - size - 1]
        if error <= limit or limit <= 0:
            return -math.log10((count - bisect_left(values, error) + 1) / (count + 1))
        decay = sum(math.log(value / limit) for value in values[count - size :]) / size
        return math.log10(count / size) + math.log10(error / limit) / max(decay, _LEAST_DECAY)


class AnomalyScorer:
    """Scores the values of one series one by one.

    Parameters
    ----------
    period
        Number of values in a day or another period; 0 for none: then only stretches are scored.
    settings
        The same for all series.
    """

    def __init__(self, period: int = 0, settings: ScorerSettings = ScorerSettings()) -> None:
        self._settings = settings
        # keep only lags within the memory
        lags = [period * day + slip for day in range(1, settings.days + 1) for slip in self._lag_offsets(period)]
        self._lags = np.array([lag for lag in lags if settings.long < lag <= settings.memory], dtype=np.int64) - 1
        self._values = np.full(settings.memory + 1, np.nan)
        self._means = np.full(settings.memory + 1, np.nan)
        self._squares = np.full((settings.long, settings.memory), np.nan)
        self._tails = [TailProbability(settings) for _ in range(4)]
        self._count = 0
        self._last = math.nan
        self._scores: deque[tuple[int, float]] = deque()

    def _lag_offsets(self, period: int) -> Iterable[int]:
        return range(-self._settings.slack, self._settings.slack + 1) if period else ()

    def add(self, value: float) -> float:
        """Add a value; return its score, at least 0. A value that is not finite is replaced by the one before it."""
        if not math.isfinite(value):
            value = self._last
        if not math.isfinite(value):
            return 0.0
        self._last = value
        errors = self._errors(value)
        surprises = [tail.add(error) for tail, error in zip(self._tails, errors, strict=True) if math.isfinite(error)]
        self._count += 1
        # an error that cannot be computed yet counts as 0 in the mean: a few errors must not outvote all
        return self._apply_cooldown(sum(surprises) / self._terms)

    @property
    def _terms(self) -> int:
        return 4 if self._lags.size else 2

    def _errors(self, value: float) -> tuple[float, float, float, float]:
        settings, place = self._settings, self._count % self._settings.long
        past = self._values[:-1]  # the latest first: index n is n + 1 values ago
        self._squares[place] = (value - past) ** 2
        recent = [(place - back) % settings.long for back in range(settings.short)]
        short = self._nearest_distance(self._squares[recent].sum(axis=0), settings.short)
        long = self._nearest_distance(self._squares.sum(axis=0), settings.long)
        mean = self._recent_mean(value)
        at_time = _least(np.abs(value - past[self._lags]))
        mean_at_time = _least(np.abs(mean - self._means[self._lags]))
        for remembered, newest in ((self._values, value), (self._means, mean)):
            remembered[1:] = remembered[:-1]
            remembered[0] = newest
        return short, long, at_time, mean_at_time

    def _recent_mean(self, value: float) -> float:
        recent = np.concatenate([[value], self._values[: self._settings.long - 1]])
        recent[self._count + 1 :] = 0  # before that, there were no values
        return float(recent.sum() / min(self._count + 1, len(recent)))

    def _nearest_distance(self, sums: Vector, length: int) -> float:
        """Return the root of the least mean square, over lags at which two stretches do not overlap."""
        return math.sqrt(_least(sums[length:]) / length)

    def _apply_cooldown(self, score: float) -> float:
        scores, now = self._scores, self._count
        while scores and scores[0][0] < now - self._settings.cooldown:
            scores.popleft()
        is_highest = not scores or scores[0][1] < score
        while scores and scores[-1][1] <= score:
            scores.pop()
        scores.append((now, score))
        return score if is_highest else 0.0


def _least(values: Vector) -> float:
    return float(np.fmin.reduce(values, initial=np.nan))


def period_of(times: Iterable[int], cycle_us: int = 86_400_000_000) -> int:
    """Return how many values a cycle has, by the median interval of times in µs; 0 where it does not have 8.

    >>> period_of(range(0, 10_000_000_000, 300_000_000))
    288
    """
    intervals = np.diff(np.fromiter(times, dtype=np.int64))
    intervals = intervals[intervals > 0]
    if not intervals.size:
        return 0
    count = round(cycle_us / float(np.median(intervals)))
    return count if count >= 8 else 0  # noqa: PLR2004 - fewer are no day


def scores(values: Iterable[float], period: int = 0, settings: ScorerSettings = ScorerSettings()) -> Vector:
    """Return the scores of a whole series, each by the values before it alone."""
    scorer = AnomalyScorer(period, settings)
    return np.array([scorer.add(value) for value in values])
