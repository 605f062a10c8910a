"""Changes of a series' level: when it moved, from what to what.

Each window is compared with the values before it, back to the last change. The level moved if most of the window lies
outside the 10th to 90th percentile of those values, and the two medians differ by more than a least ratio. Only the
order of values counts, so no distribution is assumed. Half of the window outside is not enough: on shared machines a
busy minute reaches that. The change is placed where a cumulative sum of signs about the middle of both levels peaks
(Page 1954).
"""

from dataclasses import dataclass
from typing import Any

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
