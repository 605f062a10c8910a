"""Baselines of each value of a series, from earlier values only; and stretches in which a mask is true."""

from typing import Any, Final, NamedTuple

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float64]]
TO_DEVIATION = 1.4826
"""Standard deviation divided by median absolute deviation, of a normal distribution."""

_ROWS: Final = 2048
"""Number of windows that are sorted at once, so that a long series needs no more memory than its own."""


class Baseline(NamedTuple):
    """Median and robust deviation for each value of a series; NaN with too few earlier values."""

    median: Vector
    deviation: Vector


def row_medians(windows: Vector) -> Vector:
    """Sort each row of finite values in place, and return its median.

    Sorting short rows is vectorized, and several times faster than the partition of `numpy.median`.

    >>> row_medians(np.array([[3.0, 1, 2, 4], [7, 5, 5, 6]]))
    array([2.5, 5.5])
    """
    windows.sort(axis=1)
    half = windows.shape[1] // 2
    return windows[:, half].copy() if windows.shape[1] % 2 else (windows[:, half - 1] + windows[:, half]) / 2


def trailing(values: Vector, window: int, stride: int, least: int) -> Baseline:
    """Return the baseline of each value: of the `window` values before its block of `stride`.

    Parameters
    ----------
    values
        Finite.
    least
        Least number of values for a baseline.

    >>> trailing(np.array([1.0, 1, 1, 1, 9]), window=4, stride=2, least=2).median
    array([nan, nan,  1.,  1.,  1.])
    """
    count = len(values)
    starts = np.arange(0, count, stride)
    median, deviation = (np.full(len(starts), np.nan) for _ in range(2))
    is_full = starts >= window
    full = np.flatnonzero(is_full)
    for rows in np.split(full, range(_ROWS, len(full), _ROWS)) if len(full) else ():
        windows = np.lib.stride_tricks.sliding_window_view(values, window)[starts[rows] - window]
        median[rows] = row_medians(windows)
        windows -= median[rows][:, None]
        deviation[rows] = TO_DEVIATION * row_medians(np.abs(windows, out=windows))
    for place in np.flatnonzero(~is_full & (starts >= least)):
        before = values[: starts[place]]
        median[place] = np.median(before)
        deviation[place] = TO_DEVIATION * np.median(np.abs(before - median[place]))
    blocks = np.arange(count) // stride
    return Baseline(median[blocks], deviation[blocks])


def recent_medians(values: Vector, window: int, stride: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Vector]:
    """Return the ends of windows (the place after each, every `stride` places) and the medians in them."""
    if len(values) < window:
        return np.zeros(0, np.int64), np.zeros(0)
    windows = np.lib.stride_tricks.sliding_window_view(values, window)[::stride]
    medians = [row_medians(windows[first : first + _ROWS].copy()) for first in range(0, len(windows), _ROWS)]
    return np.arange(len(windows)) * stride + window, np.concatenate(medians)


Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Episode(NamedTuple):
    """A stretch of a series.

    Attributes
    ----------
    first, last
        Indices of its first and last true value.
    length
        Number of true values in it.
    """

    first: int
    last: int
    length: int


def episodes(holds: Mask, gap: int = 1) -> list[Episode]:
    """Return the stretches of true values; those at most `gap` apart are merged.

    >>> episodes(np.array([0, 1, 1, 0, 1, 0, 0, 1], bool), gap=2)
    [Episode(first=1, last=4, length=3), Episode(first=7, last=7, length=1)]
    """
    places = np.flatnonzero(holds)
    if not places.size:
        return []
    cuts = np.flatnonzero(np.diff(places) > gap) + 1
    return [Episode(int(part[0]), int(part[-1]), len(part)) for part in np.split(places, cuts)]
