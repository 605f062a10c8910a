"""Steady growth of a series to its end, and when it reaches a limit."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float64]]
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
