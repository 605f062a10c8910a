"""Stretches of a series in which something holds."""

from typing import Any, NamedTuple

import numpy as np

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Episode(NamedTuple):
    """A stretch of a series.

    Attributes
    ----------
    first, last
        Places of its first and last value that it holds of.
    length
        How many such values are in it.
    """

    first: int
    last: int
    length: int


def episodes(holds: Mask, gap: int = 1) -> list[Episode]:
    """Return the stretches in which something holds, those no more than `gap` places apart as one.

    >>> episodes(np.array([0, 1, 1, 0, 1, 0, 0, 1], bool), gap=2)
    [Episode(first=1, last=4, length=3), Episode(first=7, last=7, length=1)]
    """
    places = np.flatnonzero(holds)
    if not places.size:
        return []
    cuts = np.flatnonzero(np.diff(places) > gap) + 1
    return [Episode(int(part[0]), int(part[-1]), len(part)) for part in np.split(places, cuts)]
