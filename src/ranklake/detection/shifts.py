"""Shifts and growth: when a series' level moved, from what to what, and whether it grows steadily at its end.

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


@dataclass(frozen=True, slots=True)
class ShiftLimits:
    """When a level counts as moved.

    Attributes
    ----------
    min_change
        Least distance between both medians, as a share of the one before.
    min_amount
        The same in the values' unit.
    window
        Values that the new level lasts at least.
    memory
        Values of the level before that are looked at.
    outer_ratio
        Share of the values before that are further out than what counts as usual.
    most_ratio
        Share of the new level's values that are beyond what counts as usual.
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
        Of the first value of the new level.
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
    result: list[Shift] = []
    since, known_at = 0, -1
    before = low = high = np.nan
    for end, median in zip(ends.tolist(), medians.tolist(), strict=True):
        begin = end - limits.window
        if begin - since < limits.window:
            continue
        if known_at < 0 or begin - known_at >= limits.window:  # the level before moves slowly
            past = values[max(since, begin - limits.memory) : begin]
            past = np.sort(past)
            outer = int(limits.outer_ratio * len(past))
            low, before, high = (float(past[place]) for place in (outer, len(past) // 2, -1 - outer))
            known_at = begin
        least = max(limits.min_change * abs(before), limits.min_amount)
        if abs(median - before) < least:
            continue
        is_beyond = values[begin:end] > high if median > before else values[begin:end] < low
        if is_beyond.mean() < limits.most_ratio:
            continue
        place = _place(values, max(since, begin - limits.window), end, (before + median) / 2, is_up=median > before)
        after = float(np.median(values[place:end]))
        if abs(after - before) < least:
            continue
        result.append(Shift(place, before, after))
        since, known_at = place, -1
    return result


def _place(values: Vector, begin: int, end: int, middle: float, *, is_up: bool) -> int:
    """Return where values part: most of those from there on are beyond the middle, most of those before are not."""
    signs = np.where((values[begin:end] > middle) == is_up, 1, -1)
    gains = np.cumsum(signs[::-1])[::-1]
    return begin + int(np.argmax(gains))


_LEAST_BLOCKS: Final = 6
_MOST_BLOCKS: Final = 256


@dataclass(frozen=True, slots=True)
class Growth:
    """How a series grows at its end.

    Attributes
    ----------
    place
        Of the first value of what grows.
    first, last
        Its level there, and at the end, by the line that fits it.
    per_s
        Rate of that line.
    explained_ratio
        Share of the variance of the blocks' medians that a level and a line after it explain.
    """

    place: int
    first: float
    last: float
    per_s: float
    explained_ratio: float

    def seconds_to(self, limit: float) -> float | None:
        """Return how long it takes from the end to a limit at that rate; None if it never gets there."""
        return max(0.0, (limit - self.last) / self.per_s) if self.per_s > 0 else None


def growth(values: Vector, times_s: Vector, block: int = 32) -> Growth | None:
    """Return how the end of a series grows: a level, then a line upwards, fitted by least squares with the best bend.

    None if it does not, or is shorter than six blocks.

    Parameters
    ----------
    values, times_s
        Finite values and their times in s, of one length.
    block
        Values whose median counts as one: single peaks are no growth. Long series have larger ones.
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
    left = ((apart - rates[:, None] * lines) ** 2).sum(axis=1)
    total = float((apart**2).sum())
    best = int(np.argmin(left))
    if total <= 0 or rates[best] <= 0:
        return None
    fitted = levels.mean() + rates[best] * lines[best]
    place = skipped + best * block
    return Growth(place, float(fitted[best]), float(fitted[-1]), float(rates[best]), 1 - float(left[best]) / total)
