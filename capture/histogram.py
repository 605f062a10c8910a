"""Histogram: base-2 exponential buckets of whole arrays, as pure functions.

The data model is OpenTelemetry's (opentelemetry.io/docs/specs/otel/metrics/data-model, "ExponentialHistogram"): at a
scale s the bucket with index i holds magnitudes in (2^(i·2^-s), 2^((i+1)·2^-s)], and the next coarser scale has the
buckets of index i >> 1. So a histogram can be made coarser, and two histograms can be merged, without error.

The index of a value is computed once, at the finest scale, and shifted to coarser scales. So the bucket of a value
depends on the scale alone, and the sum of two histograms equals, count by count, the histogram of all their values.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ranklake.capture.common.arrays import Array

FINEST: Final = 20
MOST_BUCKETS: Final = 160
"""Buckets of each sign; OpenTelemetry's default."""
MOST_BINS: Final = 1 << 16
"""Most bins that `histogram_of_bins` accepts: a foreign histogram with more would take gigabytes."""
_PARTS_OF_BIN: Final = 8
_MOST_COUNTED: Final = 1 << 52


@dataclass(frozen=True, slots=True)
class Buckets:
    """Counts of the buckets of one sign, from index `offset` up. The first and the last bucket are not empty."""

    offset: int = 0
    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Buckets)
            and len(self.counts) == len(other.counts)
            and (not len(self.counts) or self.offset == other.offset)
            and bool((self.counts == other.counts).all())
        )

    __hash__ = None  # type: ignore[assignment]  # holds an array

    @property
    def ends(self) -> tuple[int, ...]:
        """The lowest and the highest index; empty if there are no buckets."""
        return (self.offset, self.offset + len(self.counts) - 1) if len(self.counts) else ()

    def coarser(self, by: int) -> "Buckets":
        """Return the buckets at a scale that is lower by `by`: 2^by neighbours become one bucket."""
        if not len(self.counts) or not by:
            return self
        indices = np.arange(self.offset, self.offset + len(self.counts), dtype=np.int64) >> by
        merged = np.zeros(int(indices[-1] - indices[0]) + 1, np.int64)
        np.add.at(merged, indices - indices[0], self.counts)
        return Buckets(int(indices[0]), merged)

    def plus(self, other: "Buckets") -> "Buckets":
        """Return the sum of two sets of buckets of the same scale."""
        if not len(self.counts) or not len(other.counts):
            return self if len(self.counts) else other
        low = min(self.offset, other.offset)
        counts = np.zeros(max(part.offset + len(part.counts) for part in (self, other)) - low, np.int64)
        for part in (self, other):
            counts[part.offset - low : part.offset - low + len(part.counts)] += part.counts
        return Buckets(low, counts)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution.

    Attributes
    ----------
    scale
        From -10 to 20; 20 if all buckets are empty.
    zero_count, nan_count, infinite_count
        Counts of zero, NaN and infinite values, which belong to no bucket.
    sum, min, max
        Of the finite values; 0 if there are none. The sum is infinite after an overflow, and NaN after a merge of
        infinite sums of opposite signs.
    """

    scale: int = FINEST
    zero_count: int = 0
    nan_count: int = 0
    infinite_count: int = 0
    sum: float = 0.0
    min: float = 0.0
    max: float = 0.0
    positive: Buckets = field(default_factory=Buckets)
    negative: Buckets = field(default_factory=Buckets)

    @property
    def count(self) -> int:
        """Number of finite values."""
        return self.zero_count + int(self.positive.counts.sum()) + int(self.negative.counts.sum())

    @property
    def any_finite(self) -> bool:
        """Whether the histogram has finite values."""
        return bool(self.zero_count or len(self.positive.counts) or len(self.negative.counts))

    @property
    def empty(self) -> bool:
        """Whether the histogram has no values at all, not even NaN or infinite ones."""
        return not (self.any_finite or self.nan_count or self.infinite_count)


def indices(magnitudes: Array) -> Array:
    """Return the index at the finest scale of each finite magnitude > 0.

    Exponent and mantissa are handled separately, so the index is exact for powers of two and correct for subnormals.
    Only the logarithm of the mantissa is rounded, by at most 2^-53; a bucket is 2^-20 wide.
    """
    mantissa, exponent = np.frexp(magnitudes)  # in [0.5, 1)
    within = np.ceil(np.log2(2.0 * mantissa) * (1 << FINEST)).astype(np.int64)
    whole: Array = (exponent.astype(np.int64) - 1) << FINEST
    index: Array = whole + within - 1  # a power of two is the upper bound of its bucket
    return index


def histogram_of(values: Array, max_buckets: int = MOST_BUCKETS) -> Histogram:
    """Return the histogram of float64 values of any shape, at the finest scale at which it fits `max_buckets` >= 4."""
    values = values.ravel()
    finite = values[np.isfinite(values)]
    nan_count = int(np.count_nonzero(np.isnan(values)))
    positive, negative = indices(finite[finite > 0]), indices(-finite[finite < 0])
    ends = [(int(side.min()), int(side.max())) for side in (positive, negative) if len(side)]
    by = _shift(ends, max_buckets)
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(finite.sum())
    if not math.isfinite(total):  # an intermediate sum may have overflowed although the final sum is finite
        total = math.fsum(finite * 2.0**-64) * 2.0**64
    return Histogram(
        scale=FINEST - by,
        zero_count=len(finite) - len(positive) - len(negative),
        nan_count=nan_count,
        infinite_count=len(values) - len(finite) - nan_count,
        sum=total,
        min=float(finite.min()) if len(finite) else 0.0,
        max=float(finite.max()) if len(finite) else 0.0,
        positive=_bucket_counts(positive >> by),
        negative=_bucket_counts(negative >> by),
    )


def histogram_of_bins(lows: Array, highs: Array, counts: Array, max_buckets: int = MOST_BUCKETS) -> Histogram | None:
    """Return the histogram of values that another tool counted in bins, as if spread evenly within each bin.

    None if the bins are invalid, empty, or more than `MOST_BINS`.

    Parameters
    ----------
    lows, highs
        Bounds of each bin.
    counts
        Number of values in each bin; fractions are rounded.
    """
    if not len(lows) == len(highs) == len(counts) <= MOST_BINS or not np.isfinite([lows, highs, counts]).all():
        return None
    if (lows > highs).any() or (counts < 0).any() or not 1 <= np.rint(counts).sum() < _MOST_COUNTED:
        return None
    counts = np.rint(counts).astype(np.int64)
    lows, highs, counts = lows[counts > 0], highs[counts > 0], counts[counts > 0]
    parts = np.where(highs > lows, np.minimum(counts, _PARTS_OF_BIN), 1)
    part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    lows, highs, counts, parts = (np.repeat(of_bin, parts) for of_bin in (lows, highs, counts, parts))
    share = (part + 0.5) / parts
    values = np.where(
        highs > lows, lows * (1 - share) + highs * share, lows
    )  # weighting the smallest float by half would give 0
    weights = counts // parts + (part < counts % parts)
    sides = [indices(sign * values[sign * values > 0]) for sign in (1, -1)]
    by = _shift([(int(side.min()), int(side.max())) for side in sides if len(side)], max_buckets)
    positive, negative = (
        _bucket_counts(side >> by, weights[sign * values > 0]) for sign, side in zip((1, -1), sides, strict=True)
    )
    return Histogram(
        scale=FINEST - by,
        zero_count=int(weights[values == 0].sum()),
        sum=float((values * weights).sum()),
        min=float(lows.min()),
        max=float(highs.max()),
        positive=positive,
        negative=negative,
    )


def histogram_of_one(value: float) -> Histogram:
    """Return the histogram of a single number: the same as `histogram_of`, but faster."""
    if not math.isfinite(value):
        return Histogram(nan_count=1) if math.isnan(value) else Histogram(infinite_count=1)
    if value == 0.0:
        return Histogram(zero_count=1)
    bucket = Buckets(int(indices(np.array([abs(value)]))[0]), np.ones(1, np.int64))
    positive, negative = (bucket, Buckets()) if value > 0 else (Buckets(), bucket)
    return Histogram(sum=value, min=value, max=value, positive=positive, negative=negative)


def merge(first: Histogram, other: Histogram, max_buckets: int = MOST_BUCKETS) -> Histogram:
    """Return the histogram of the values of both. Counts are exact; sums are added with float rounding."""
    scale = min(first.scale, other.scale)
    ends = [
        [end >> (part.scale - scale) for part in (first, other) for end in getattr(part, sign).ends]
        for sign in ("positive", "negative")
    ]
    # Both go to the final scale directly: at a finer one, two distant histograms would need billions of buckets.
    scale -= _shift([(min(end_indices), max(end_indices)) for end_indices in ends if end_indices], max_buckets)
    positive, negative = (
        getattr(first, sign).coarser(first.scale - scale).plus(getattr(other, sign).coarser(other.scale - scale))
        for sign in ("positive", "negative")
    )
    finite = [part for part in (first, other) if part.any_finite]
    return Histogram(
        scale=scale,
        zero_count=first.zero_count + other.zero_count,
        nan_count=first.nan_count + other.nan_count,
        infinite_count=first.infinite_count + other.infinite_count,
        sum=first.sum + other.sum,
        min=min((part.min for part in finite), default=0.0),
        max=max((part.max for part in finite), default=0.0),
        positive=positive,
        negative=negative,
    )


def _bucket_counts(bucket_indices: Array, weights: Array | None = None) -> Buckets:
    if not len(bucket_indices):
        return Buckets()
    low = int(bucket_indices.min())
    return Buckets(low, np.bincount(bucket_indices - low, weights).astype(np.int64))


def _shift(ends: list[tuple[int, int]], max_buckets: int) -> int:
    """Return how many scales coarser (lowest, highest) index ranges must be, so that each fits `max_buckets`."""
    by = 0
    while any((high >> by) - (low >> by) >= max_buckets for low, high in ends):
        by += 1
    return by
