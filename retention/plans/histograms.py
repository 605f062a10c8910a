"""Exact sums and base-2 exponential histograms of many groups of numbers. Results of batches merge exactly.

Bucket i of scale s counts magnitudes in (2^(i/2^s), 2^((i+1)/2^s)], as in the table ``distributions``. All values are
counted at one scale first. A histogram with too many buckets is converted to a coarser scale by adding up neighbours.

Exact sums use the error-free vector transformation of Rump, Ogita and Oishi (2008): a power of two, sigma, splits each
value into a leading part, whose sum has no rounding error, and a rest.
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

_HUGE = 2.0**900
"""Groups with a value this large are not split, since sigma would overflow. Each value is a part of the sum."""


def exact_sum_parts(values: Floats, starts: Indices) -> tuple[Indices, Floats]:
    """Return parts of sums: the index of a group, and a float. The parts of a group add up to its exact sum.

    Parameters
    ----------
    values
        Finite numbers, group after group.
    starts
        Index of the first value of each group; no group is empty.
    """
    groups: list[Indices] = []
    partials: list[Floats] = []
    index = np.arange(len(starts), dtype=np.int64)
    rest = values
    while len(rest):
        lengths = np.diff(np.append(starts, len(rest)))
        most = np.maximum.reduceat(np.abs(rest), starts)
        is_huge = most >= _HUGE
        if is_huge.any():
            rows = np.repeat(is_huge, lengths)
            groups.append(np.repeat(index, lengths)[rows])
            partials.append(rest[rows])
            rest, starts, index = _select_groups(rest, starts, index, ~is_huge)
            continue
        exponent = np.frexp(most)[1].astype(np.int64) + np.ceil(np.log2(lengths + 2)).astype(np.int64)
        sigma = np.repeat(np.ldexp(1.0, exponent), lengths)
        leading = (sigma + rest) - sigma
        sums = np.add.reduceat(leading, starts)
        has_sum = sums != 0
        groups.append(index[has_sum])
        partials.append(sums[has_sum])
        rest = rest - leading
        rest, starts, index = _select_groups(rest, starts, index, np.maximum.reduceat(np.abs(rest), starts) > 0)
    return np.concatenate([np.zeros(0, np.int64), *groups]), np.concatenate([np.zeros(0), *partials])


def round_sums(groups: Indices, partials: Floats, count: int) -> Floats:
    """Return the sums of groups from their parts, rounded once to the nearest float; NaN for a sum that overflows.

    Parameters
    ----------
    groups, partials
        Results of `exact_sum_parts`, in any order.
    count
        Number of groups; a group without parts has the sum 0.
    """
    order = np.argsort(groups, kind="stable")
    groups, values = groups[order], partials[order]
    sums = np.zeros(count)
    if not len(groups):
        return sums
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    lengths = np.diff(np.append(starts, len(groups)))
    single, pair = starts[lengths == 1], starts[lengths == 2]  # noqa: PLR2004 - the sum of two floats is rounded once
    sums[groups[single]] = values[single]
    with np.errstate(over="ignore"):
        sums[groups[pair]] = values[pair] + values[pair + 1]
    for begin, length in zip(starts[lengths > 2].tolist(), lengths[lengths > 2].tolist(), strict=True):  # noqa: PLR2004
        sums[groups[begin]] = _fsum(values[begin : begin + length])
    sums[~np.isfinite(sums)] = np.nan
    return sums


def _select_groups(
    values: Floats, starts: Indices, index: Indices, is_selected: npt.NDArray[np.bool_]
) -> tuple[Floats, Indices, Indices]:
    """Return values, starts and indices of the selected groups."""
    if is_selected.all():
        return values, starts, index
    lengths = np.diff(np.append(starts, len(values)))
    values = values[np.repeat(is_selected, lengths)]
    ends = np.cumsum(lengths[is_selected])
    return values, np.append(0, ends[:-1]).astype(np.int64)[: int(is_selected.sum())], index[is_selected]


def _fsum(values: Floats) -> float:
    try:
        return math.fsum(values.tolist())
    except OverflowError:  # an intermediate sum overflows; the result may not
        pass
    try:
        return float(sum(map(Fraction, values.tolist())))
    except OverflowError:
        return math.nan


SCALE: Final = 4
"""Scale at which values are counted: sixteen buckets per octave, so a bucket is 4.4 % wide."""
MOST: Final = 160
"""Most buckets of one sign in a histogram."""

_STEPS: Final = 2**SCALE
_BOUNDS: Final = 2.0 ** (np.arange(_STEPS + 1) / _STEPS - 1)
_MOST_BINS: Final = 1 << 23


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of values by group, sign and bucket, as parallel arrays without empty buckets.

    Attributes
    ----------
    group, bucket, count
        Number of the group, number of the bucket at `SCALE`, and number of values.
    negative
        Whether the values are below zero.
    """

    group: Indices
    negative: npt.NDArray[np.bool_]
    bucket: Indices
    count: Indices


def buckets(magnitudes: npt.NDArray[np.float64]) -> Indices:
    """Return the bucket of each magnitude; all are above zero."""
    mantissa, exponent = np.frexp(magnitudes)
    within = np.searchsorted(_BOUNDS, mantissa, side="left")
    bucket: Indices = _STEPS * (exponent.astype(np.int64) - 1) + within - 1
    return bucket


def count_values(group: Indices, values: npt.NDArray[np.float64], groups: int) -> Counts:
    """Count finite values by bucket, except zeros. `group` is the group of each value, from 0 to below `groups`."""
    parts = []
    for negative in (False, True):
        is_selected = values < 0 if negative else values > 0
        if not is_selected.any():
            continue
        bucket = buckets(np.abs(values[is_selected]))
        parts.append(_count_sign(group[is_selected], bucket, groups, negative=negative))
    return concatenate(parts)


def _count_sign(group: Indices, bucket: Indices, groups: int, *, negative: bool) -> Counts:
    low = int(bucket.min())
    span = int(bucket.max()) - low + 1
    codes = group * span + (bucket - low)
    if groups * span <= _MOST_BINS:
        counts = np.bincount(codes)
        present = np.flatnonzero(counts)
        counts = counts[present]
    else:
        present, counts = np.unique(codes, return_counts=True)
    return Counts(present // span, np.full(len(present), negative), present % span + low, counts.astype(np.int64))


def concatenate(batches: list[Counts]) -> Counts:
    """Return the counts of several batches one after another, without adding up equal buckets."""
    empty = Counts(np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, np.int64), np.zeros(0, np.int64))
    parts = [empty, *batches]
    return Counts(
        np.concatenate([part.group for part in parts]),
        np.concatenate([part.negative for part in parts]),
        np.concatenate([part.bucket for part in parts]),
        np.concatenate([part.count for part in parts]),
    )


def histogram_columns(counts: Counts, groups: int) -> dict[str, pa.Array]:
    """Return the histograms of groups 0 to below `groups`, as columns of the table ``downsampled``."""
    scale = np.full(groups, SCALE, np.int64)
    merged = _merge(counts)
    while len(merged.group):
        is_wide = _wide_groups(merged, groups)
        if not is_wide.any():
            break
        scale[is_wide] -= 1
        merged = _merge(Counts(merged.group, merged.negative, merged.bucket >> is_wide[merged.group], merged.count))
    columns = {"scale": pa.array(scale, pa.int32())}
    for name, negative in (("positive", False), ("negative", True)):
        rows = merged.negative == negative
        offset, lists = _bucket_lists(merged.group[rows], merged.bucket[rows], merged.count[rows], groups)
        columns |= {f"{name}_offset": offset, f"{name}_counts": lists}
    return columns


def _merge(counts: Counts) -> Counts:
    """Return counts sorted by group, sign and bucket, with equal buckets added up."""
    order = np.lexsort((counts.bucket, counts.negative, counts.group))
    group, negative, bucket = counts.group[order], counts.negative[order], counts.bucket[order]
    if not len(group):
        return counts
    is_start = (group[1:] != group[:-1]) | (negative[1:] != negative[:-1]) | (bucket[1:] != bucket[:-1])
    starts = np.flatnonzero(np.append(True, is_start))
    return Counts(group[starts], negative[starts], bucket[starts], np.add.reduceat(counts.count[order], starts))


def _wide_groups(counts: Counts, groups: int) -> npt.NDArray[np.bool_]:
    """Return, for each group, whether its histogram has more than `MOST` buckets of one sign."""
    is_wide = np.zeros(groups, bool)
    for negative in (False, True):
        rows = counts.negative == negative
        group, bucket = counts.group[rows], counts.bucket[rows]
        if len(group):
            starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
            ends = np.append(starts[1:], len(group)) - 1
            is_wide[group[starts]] |= bucket[ends] - bucket[starts] >= MOST
    return is_wide


def _bucket_lists(group: Indices, bucket: Indices, count: Indices, groups: int) -> tuple[pa.Array, pa.Array]:
    """Return the first bucket of each group, and the counts from that bucket on; NULL for groups without values."""
    first, length = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    if len(group):
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        ends = np.append(starts[1:], len(group)) - 1
        first[group[starts]] = bucket[starts]
        length[group[starts]] = bucket[ends] - bucket[starts] + 1
    offsets = np.append(0, np.cumsum(length))
    dense = np.zeros(int(offsets[-1]), np.int64)
    dense[offsets[group] + bucket - first[group]] = count
    is_empty = length == 0
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(dense), mask=pa.array(is_empty))
    return pa.array(first, pa.int32(), mask=is_empty), lists
