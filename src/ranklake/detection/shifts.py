"""Shifts and growth: changes of a series' level, and steady growth at its end.

Each window is compared with the values before it, back to the last change. The level moved if most of the window lies
outside the 10th to 90th percentile of those values, and the two medians differ by more than a least ratio. Only the
order of values counts, so no distribution is assumed. Half of the window outside is not enough: on shared machines a
busy minute reaches that. The change is placed where a cumulative sum of signs about the middle of both levels peaks
(Page 1954).
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ranklake.detection.baseline import recent_medians

Vector = np.ndarray[Any, np.dtype[np.float64]]
_LEVELS: Final = 64
"""Number of former levels that are measured at once."""


@dataclass(frozen=True, slots=True)
class ShiftLimits:
    """Thresholds for a change of level.

    Attributes
    ----------
    min_change
        Least distance between both medians, as a share of the one before.
    min_amount
        Least distance in the values' unit.
    window
        Least number of values at the new level.
    memory
        Number of values of the former level that are used.
    outer_ratio
        Share of former values that lie outside the usual range.
    most_ratio
        Least share of new values that lie outside the usual range.
    """

    min_change: float = 0.15
    min_amount: float = 0.0
    window: int = 40
    memory: int = 400
    outer_ratio: float = 0.1
    most_ratio: float = 0.7


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of level.

    Attributes
    ----------
    place
        Index of the first value of the new level.
    before, after
        Medians of both.
    """

    place: int
    before: float
    after: float


def shifts(values: Vector, limits: ShiftLimits = ShiftLimits()) -> list[Shift]:
    """Return the changes of level of finite values, in order.

    >>> shifts(np.r_[np.full(100, 1.0), np.full(100, 2.0)])
    [Shift(place=100, before=1.0, after=2.0)]
    """
    stride = max(1, limits.window // 5)
    ends, medians = recent_medians(values, limits.window, stride)
    begins = ends - limits.window
    every = -(-limits.window // stride)  # the former level changes slowly, so it is measured once per window
    result: list[Shift] = []
    since, at = 0, int(np.searchsorted(begins, limits.window))
    while at < len(ends):
        stop = min(len(ends), at + every * _LEVELS)
        levels = _levels_before(values, since, begins[at:stop:every], limits)
        low, before, high = np.repeat(levels, every, axis=0)[: stop - at].T
        least = np.maximum(limits.min_change * np.abs(before), limits.min_amount)
        for n in np.flatnonzero(np.abs(medians[at:stop] - before) >= least).tolist():
            begin, end, median = int(begins[at + n]), int(ends[at + n]), medians[at + n]
            is_beyond = values[begin:end] > high[n] if median > before[n] else values[begin:end] < low[n]
            if is_beyond.mean() < limits.most_ratio:
                continue
            middle = (before[n] + median) / 2
            place = _place(values, max(since, begin - limits.window), end, middle, is_up=median > before[n])
            after = float(np.median(values[place:end]))
            if abs(after - before[n]) < least[n]:
                continue
            result.append(Shift(place, float(before[n]), after))
            since = place
            stop = max(at + n + 1, int(np.searchsorted(begins, since + limits.window)))
            break
        at = stop
    return result


def _levels_before(
    values: Vector, since: int, begins: np.ndarray[Any, np.dtype[np.int64]], limits: ShiftLimits
) -> Vector:
    """Return, before each begin, the lower bound of the usual range, the middle and the upper bound, as rows."""
    levels = np.empty((len(begins), 3))
    is_full = begins - since >= limits.memory
    if is_full.any():
        past = np.lib.stride_tricks.sliding_window_view(values, limits.memory)[begins[is_full] - limits.memory]
        past.sort(axis=1)
        outer = int(limits.outer_ratio * limits.memory)
        levels[is_full] = past[:, [outer, limits.memory // 2, -1 - outer]]
    for place in np.flatnonzero(~is_full).tolist():
        past = np.sort(values[since : begins[place]])
        outer = int(limits.outer_ratio * len(past))
        levels[place] = past[[outer, len(past) // 2, -1 - outer]]
    return levels


def _place(values: Vector, begin: int, end: int, middle: float, *, is_up: bool) -> int:
    """Return the index that best separates values beyond the middle from values before it."""
    signs = np.where((values[begin:end] > middle) == is_up, 1, -1)
    gains = np.cumsum(signs[::-1])[::-1]
    return begin + int(np.argmax(gains))


_LEAST_BLOCKS: Final = 6
_MOST_BLOCKS: Final = 256


@dataclass(frozen=True, slots=True)
class Growth:
    """Steady growth of a series up to its end.

    Attributes
    ----------
    place
        Index of the first growing value.
    first, last
        Values of the fitted line there and at the end.
    per_s
        Rate of that line.
    explained_ratio
        Share of the blocks' variance that the fit explains.
    """

    place: int
    first: float
    last: float
    per_s: float
    explained_ratio: float

    def seconds_to(self, limit: float) -> float | None:
        """Return the time until a limit is reached at that rate; None if never."""
        return max(0.0, (limit - self.last) / self.per_s) if self.per_s > 0 else None


def growth(values: Vector, times_s: Vector, block: int = 32) -> Growth | None:
    """Fit a level followed by a rising line to a series, by least squares over all bends.

    Returns None if it does not grow, or has fewer than six blocks.

    Parameters
    ----------
    values, times_s
        Finite values and their times in s, of one length.
    block
        Number of values that are reduced to their median, against single peaks; larger for long series.
    """
    block = max(block, len(values) // _MOST_BLOCKS)
    count = len(values) // block
    if count < _LEAST_BLOCKS:
        return None
    skipped = len(values) - count * block
    levels = np.median(values[skipped:].reshape(count, block), axis=1)
    times = np.median(times_s[skipped:].reshape(count, block), axis=1)
    bends = np.arange(count - _LEAST_BLOCKS + 1)
    # a row for each bend: time since it, 0 before
    lines = np.maximum(0.0, times[None, :] - times[bends][:, None])
    lines -= lines.mean(axis=1, keepdims=True)
    apart = levels - levels.mean()
    squares = (lines**2).sum(axis=1)
    rates = np.divide(lines @ apart, squares, out=np.zeros(len(bends)), where=squares > 0)
    residuals = ((apart - rates[:, None] * lines) ** 2).sum(axis=1)
    total = float((apart**2).sum())
    best = int(np.argmin(residuals))
    if total <= 0 or rates[best] <= 0:
        return None
    fitted = levels.mean() + rates[best] * lines[best]
    place = skipped + best * block
    return Growth(place, float(fitted[best]), float(fitted[-1]), float(rates[best]), 1 - float(residuals[best]) / total)
