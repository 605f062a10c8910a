"""Base-2 exponential histograms of many groups at once; two of them merge exactly.

Bucket i of scale s holds magnitudes in (2^(i/2^s), 2^((i+1)/2^s)], as in the table ``distributions``. All are counted
at one scale first; a histogram with too many buckets is brought to a coarser scale by adding up neighbours.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Indices = npt.NDArray[np.int64]

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
