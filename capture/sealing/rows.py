"""Rows: shared parts of the readers of slots and frames, and the check of values against their metric's range.

Functions are pure, and vectorized over slots. Ranges and policies are in meta.frames, so every sealing of the same
slots, by any process, gives the same result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array, numbers, take_texts, truths
from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.lanes.policies import OUT_OF_RANGE_FLAG, set_edge_flag
from ranklake.capture.spool.clock import Anchor
from ranklake.capture.spool.meta import Meta, Metric

Columns = dict[str, pa.Array]

_DAY_NS: Final = 86_400 * 10**9
_BEFORE_NS: Final = _DAY_NS  # an event may begin before the first anchor: a forked child opens its stream late
_AFTER_NS: Final = 30 * _DAY_NS  # an event may be long after the last anchor: a forked child has only one anchor
FLAGS: Final = ("nan", "+inf", "-inf")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one file.

    Attributes
    ----------
    mono_ns
        Times of the rows on the monotonic clock.
    slots
        Slot numbers of the rows.
    columns
        Columns that the lane fills; others become NULL.
    damaged
        Number of rows that cannot be read.
    out_of_range
        Number of rows dropped because a value is outside its metric's range.
    times_repeat
        Whether sequences of times repeat, as for mappings.
    """

    mono_ns: Array
    slots: Array
    columns: Columns
    damaged: int
    out_of_range: int = 0
    times_repeat: bool = False

    def __len__(self) -> int:
        return len(self.mono_ns)

    def drop(self, dropped: Array) -> Self:
        """Return the rows without those that a range policy drops."""
        if not dropped.any():
            return self
        kept = ~dropped
        mask = truths(kept)
        columns = {name: column.filter(mask) for name, column in self.columns.items()}
        count = int(np.count_nonzero(dropped))
        return replace(self, mono_ns=self.mono_ns[kept], slots=self.slots[kept], columns=columns, out_of_range=count)


NO_ROWS: Final = Rows(np.empty(0, np.int64), np.empty(0, np.int64), {}, 0)


def plausible(start: Array, duration: Array | None, straight: Sequence[Anchor]) -> Array:
    """Return for each time, and duration, in monotonic ns, whether it is possible for an event of the process.

    Time 0 is impossible. A power failure may lose the page with a slot's beginning, so that its time is 0, but keep the
    next page with its mark.
    """
    good: Array = (start > 0) & (start >= straight[0][0] - _BEFORE_NS) & (start <= straight[-1][0] + _AFTER_NS)
    if duration is not None:
        good &= (duration >= 0) & (duration <= 2 * _AFTER_NS)
    return good


def integers(values: Array, type_: pa.DataType, absent: int = ABSENT) -> pa.Array:
    """Return integers as an array, with NULL for the value `absent`."""
    return numbers(values, type_, values == absent)


def flags(values: Array) -> Array:
    """Return 0 for finite values, else 1 + the index in `FLAGS`."""
    codes: Array = np.select([np.isnan(values), np.isposinf(values), np.isneginf(values)], [1, 2, 3], 0)
    return codes


def flag_texts(flagged: Array) -> pa.Array:
    """Return the texts of a flag column for codes from `flags`; NULL for finite values."""
    return take_texts(np.maximum(flagged - 1, 0), FLAGS, flagged == 0)


def series_columns(series: Array, meta: Meta) -> Columns:
    """Return metric, kind and weight of each row's series, all of which must be defined."""
    metric_numbers = sorted(meta.metrics)
    indices = np.searchsorted(np.array(metric_numbers, np.int64), series.astype(np.int64))
    metrics = [meta.metrics[number] for number in metric_numbers]
    weights = np.array([1.0 if metric.weight is None else metric.weight for metric in metrics])[indices]
    has_weight = np.array([metric.weight is not None for metric in metrics], bool)[indices]
    return {
        "metric": take_texts(indices, [metric.name for metric in metrics]),
        "kind": take_texts(indices, [metric.kind for metric in metrics]),
        "weight": numbers(weights, pa.float32(), ~has_weight),
    }


@dataclass(frozen=True, slots=True)
class RangeCheck:
    """Result of checking rows against ranges.

    Attributes
    ----------
    flags
        The column `edge_flag`.
    dropped
        True for rows that a policy drops.
    """

    flags: pa.Array
    dropped: Array


def check_ranges(series: Array, minimum: Array, maximum: Array, meta: Meta) -> RangeCheck:
    """Check the values of rows against the ranges of their metrics.

    Parameters
    ----------
    series
        Series numbers, all of which must be defined.
    minimum, maximum
        Minimum and maximum of each row's values; for a single value, both are the value. Values that are not finite are
        ignored here; `value_flag` reports them.
    """
    metric_numbers = sorted(meta.metrics)
    metrics = [meta.metrics[number] for number in metric_numbers]
    indices = np.searchsorted(np.array(metric_numbers, np.int64), series.astype(np.int64))
    low = np.array([-math.inf if metric.low is None else metric.low for metric in metrics])[indices]
    high = np.array([math.inf if metric.high is None else metric.high for metric in metrics])[indices]
    outside = ((minimum < low) & np.isfinite(minimum)) | ((maximum > high) & np.isfinite(maximum))
    drops = np.array([metric.outside == "drop" for metric in metrics], bool)[indices]
    texts = [text for metric in metrics for text in (metric.edge, _with_range(metric))]
    codes = 2 * indices + outside
    unflagged = np.array([text is None for text in texts], bool)
    return RangeCheck(take_texts(codes, texts, unflagged[codes] if len(codes) else None), outside & drops)


def _with_range(metric: Metric) -> str:
    flag = set_edge_flag(metric.outside, OUT_OF_RANGE_FLAG)
    return flag if metric.edge is None else f"{metric.edge},{flag}"
