"""Sums of floats without any rounding, for many groups at once, whatever the order of the values.

After Rump, Ogita and Oishi, "Accurate floating-point summation, part I" (SIAM J. Sci. Comput. 31, 2008): with sigma a
power of two well above all values of a group, ``q = (sigma + x) - sigma`` takes the leading bits of each x, such that
the sum of the q is exact; what is left, ``x - q``, is exact too, and the same is done with it until nothing is left. A
group's sum is then the sum of a few floats, its *parts*: parts of several batches are simply more values to add up.
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_BEYOND = 2.0**900
"""Values this large are parts by themselves: sigma would not be finite."""


def parts(values: Floats, starts: Indices) -> tuple[Indices, Floats]:
    """Return floats whose exact sums are those of the groups: the place of a group, and a part of its sum.

    Parameters
    ----------
    values
        Finite, one group's after another's.
    starts
        Where each group begins; none is empty.
    """
    groups: list[Indices] = []
    partials: list[Floats] = []
    place = np.arange(len(starts), dtype=np.int64)
    left = values
    while len(left):
        lengths = np.diff(np.append(starts, len(left)))
        most = np.maximum.reduceat(np.abs(left), starts)
        big = most >= _BEYOND
        if big.any():
            rows = np.repeat(big, lengths)
            groups.append(np.repeat(place, lengths)[rows])
            partials.append(left[rows])
            left, starts, place = _select_groups(left, starts, place, ~big)
            continue
        exponent = np.frexp(most)[1].astype(np.int64) + np.ceil(np.log2(lengths + 2)).astype(np.int64)
        sigma = np.repeat(np.ldexp(1.0, exponent), lengths)
        leading = (sigma + left) - sigma
        sums = np.add.reduceat(leading, starts)
        there = sums != 0
        groups.append(place[there])
        partials.append(sums[there])
        left = left - leading
        left, starts, place = _select_groups(left, starts, place, np.maximum.reduceat(np.abs(left), starts) > 0)
    return np.concatenate([np.zeros(0, np.int64), *groups]), np.concatenate([np.zeros(0), *partials])


def round_sums(groups: Indices, partials: Floats, count: int) -> Floats:
    """Return the sums of groups from their parts, rounded once to the nearest float; NaN where one is beyond floats.

    Parameters
    ----------
    groups, partials
        As from `parts`, in any order.
    count
        How many groups there are; one without parts sums up to 0.
    """
    order = np.argsort(groups, kind="stable")
    of, values = groups[order], partials[order]
    sums = np.zeros(count)
    if not len(of):
        return sums
    starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
    lengths = np.diff(np.append(starts, len(of)))
    single, pair = starts[lengths == 1], starts[lengths == 2]  # noqa: PLR2004 - the sum of two floats is rounded once
    sums[of[single]] = values[single]
    with np.errstate(over="ignore"):
        sums[of[pair]] = values[pair] + values[pair + 1]
    for begin, length in zip(starts[lengths > 2].tolist(), lengths[lengths > 2].tolist(), strict=True):  # noqa: PLR2004
        sums[of[begin]] = _fsum(values[begin : begin + length])
    sums[~np.isfinite(sums)] = np.nan
    return sums


def _select_groups(
    left: Floats, starts: Indices, place: Indices, kept: npt.NDArray[np.bool_]
) -> tuple[Floats, Indices, Indices]:
    """Return the values of some of the groups, where they begin now, and their places."""
    if kept.all():
        return left, starts, place
    lengths = np.diff(np.append(starts, len(left)))
    left = left[np.repeat(kept, lengths)]
    ends = np.cumsum(lengths[kept])
    return left, np.append(0, ends[:-1]).astype(np.int64)[: int(kept.sum())], place[kept]


def _fsum(values: Floats) -> float:
    try:
        return math.fsum(values.tolist())
    except OverflowError:  # perhaps only on the way
        pass
    try:
        return float(sum(map(Fraction, values.tolist())))
    except OverflowError:
        return math.nan
