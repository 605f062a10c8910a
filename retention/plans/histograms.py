"""Sums without rounding and base-2 exponential histograms, of many groups at once; two of either merge exactly.

Bucket i of scale s holds magnitudes in (2^(i/2^s), 2^((i+1)/2^s)], as in the table ``distributions``. All are counted
at one scale first; a histogram with too many buckets is brought to a coarser scale by adding up neighbours.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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


SCALE: Final = 4
"""Sixteen buckets an octave: a value is known to within 4.4 %."""
MOST: Final = 160
"""Buckets of one sign."""

_STEPS: Final = 2**SCALE
_BOUNDS: Final = 2.0 ** (np.arange(_STEPS + 1) / _STEPS - 1)
_FEW: Final = 1 << 23


@dataclass(frozen=True, slots=True)
class Counts:
    """How many values of each group lie in each bucket: a row per group, sign and bucket that has any.

    Attributes
    ----------
    group, bucket, count
        Alike in length; a bucket is that of `SCALE`.
    negative
        Whether the values are below zero.
    """

    group: Indices
    negative: npt.NDArray[np.bool_]
    bucket: Indices
    count: Indices


def buckets(magnitudes: npt.NDArray[np.float64]) -> Indices:
    """Return the bucket of each number above zero."""
    mantissa, exponent = np.frexp(magnitudes)
    within = np.searchsorted(_BOUNDS, mantissa, side="left")
    bucket: Indices = _STEPS * (exponent.astype(np.int64) - 1) + within - 1
    return bucket


def count_values(group: Indices, values: npt.NDArray[np.float64], groups: int) -> Counts:
    """Count finite values that are not zero, each of a group from 0 to below `groups`."""
    parts = []
    for negative in (False, True):
        chosen = values < 0 if negative else values > 0
        if not chosen.any():
            continue
        of, bucket = group[chosen], buckets(np.abs(values[chosen]))
        parts.append(_of_sign(of, bucket, groups, negative=negative))
    return concatenate(parts)


def _of_sign(group: Indices, bucket: Indices, groups: int, *, negative: bool) -> Counts:
    low = int(bucket.min())
    span = int(bucket.max()) - low + 1
    codes = group * span + (bucket - low)
    if groups * span <= _FEW:
        counts = np.bincount(codes)
        there = np.flatnonzero(counts)
        counts = counts[there]
    else:
        there, counts = np.unique(codes, return_counts=True)
    return Counts(there // span, np.full(len(there), negative), there % span + low, counts.astype(np.int64))


def concatenate(batches: list[Counts]) -> Counts:
    """Return counts of several batches one after another."""
    empty = Counts(np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, np.int64), np.zeros(0, np.int64))
    parts = [empty, *batches]
    return Counts(
        np.concatenate([one.group for one in parts]),
        np.concatenate([one.negative for one in parts]),
        np.concatenate([one.bucket for one in parts]),
        np.concatenate([one.count for one in parts]),
    )


def histogram_columns(counts: Counts, groups: int) -> dict[str, pa.Array]:
    """Return the histograms of groups 0 to below `groups` as columns of the table ``downsampled``."""
    scale = np.full(groups, SCALE, np.int64)
    merged = _merge(counts)
    while len(merged.group):
        wide = _too_wide(merged, groups)
        if not wide.any():
            break
        scale[wide] -= 1
        merged = _merge(Counts(merged.group, merged.negative, merged.bucket >> wide[merged.group], merged.count))
    columns = {"scale": pa.array(scale, pa.int32())}
    for name, negative in (("positive", False), ("negative", True)):
        of = merged.negative == negative
        offset, lists = _bucket_lists(merged.group[of], merged.bucket[of], merged.count[of], groups)
        columns |= {f"{name}_offset": offset, f"{name}_counts": lists}
    return columns


def _merge(counts: Counts) -> Counts:
    """Return counts sorted by group, sign and bucket, each there once."""
    order = np.lexsort((counts.bucket, counts.negative, counts.group))
    group, negative, bucket = counts.group[order], counts.negative[order], counts.bucket[order]
    if not len(group):
        return counts
    new = (group[1:] != group[:-1]) | (negative[1:] != negative[:-1]) | (bucket[1:] != bucket[:-1])
    starts = np.flatnonzero(np.append(True, new))
    return Counts(group[starts], negative[starts], bucket[starts], np.add.reduceat(counts.count[order], starts))


def _too_wide(counts: Counts, groups: int) -> npt.NDArray[np.bool_]:
    wide = np.zeros(groups, bool)
    for negative in (False, True):
        of = counts.negative == negative
        group, bucket = counts.group[of], counts.bucket[of]
        if len(group):
            starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
            ends = np.append(starts[1:], len(group)) - 1
            wide[group[starts]] |= bucket[ends] - bucket[starts] >= MOST
    return wide


def _bucket_lists(group: Indices, bucket: Indices, count: Indices, groups: int) -> tuple[pa.Array, pa.Array]:
    """Return the first bucket of each group, and counts from there on; NULL where it has none of that sign."""
    first, length = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    if len(group):
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        ends = np.append(starts[1:], len(group)) - 1
        first[group[starts]] = bucket[starts]
        length[group[starts]] = bucket[ends] - bucket[starts] + 1
    offsets = np.append(0, np.cumsum(length))
    dense = np.zeros(int(offsets[-1]), np.int64)
    dense[offsets[group] + bucket - first[group]] = count
    none = length == 0
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(dense), mask=pa.array(none))
    return pa.array(first, pa.int32(), mask=none), lists
