"""Rows: the common part of the readers of slots and frames, and the check of values against their metric's range.

Pure, and vectorised over slots. The definitions in meta.frames carry range and policy, so whoever seals the slots, and
however often, judges the same.
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
_BEFORE_NS: Final = _DAY_NS  # an event may have begun before the stream was opened: a child opens it at its first write
_AFTER_NS: Final = 30 * _DAY_NS  # and come long after the last anchor: a child has only its first
FLAGS: Final = ("nan", "+inf", "-inf")


@dataclass(frozen=True, slots=True)
class Rows:
    """What was read from one file.

    Attributes
    ----------
    mono_ns
        Times of the rows on the monotonic clock.
    slots
        Their positions.
    columns
        The contract's own columns that the lane fills; the others become NULL.
    damaged
        Rows that were there but cannot be read.
    out_of_range
        Rows that were left out by the policy for values out of their metric's range.
    times_repeat
        Whether stretches of rows have the times of the stretch before.
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
        """Return those that are not dropped for being out of range."""
        if not dropped.any():
            return self
        kept = ~dropped
        mask = truths(kept)
        columns = {name: column.filter(mask) for name, column in self.columns.items()}
        out = int(np.count_nonzero(dropped))
        return replace(self, mono_ns=self.mono_ns[kept], slots=self.slots[kept], columns=columns, out_of_range=out)


NO_ROWS: Final = Rows(np.empty(0, np.int64), np.empty(0, np.int64), {}, 0)


def plausible(start: Array, duration: Array | None, straight: Sequence[Anchor]) -> Array:
    """Say of each time, and duration, whether it lies where an event of the process can (monotonic ns).

    Nothing happens at 0: where a power failure took the page that a slot begins in, its time is 0, though the mark at
    its end, in the next page, is there.
    """
    good: Array = (start > 0) & (start >= straight[0][0] - _BEFORE_NS) & (start <= straight[-1][0] + _AFTER_NS)
    if duration is not None:
        good &= (duration >= 0) & (duration <= 2 * _AFTER_NS)
    return good


def integers(values: Array, type_: pa.DataType, absent: int = ABSENT) -> pa.Array:
    """Return whole numbers, NULL where they are `absent`."""
    return numbers(values, type_, values == absent)


def flags(values: Array) -> Array:
    """Return 0 for finite, else 1 + the index in `FLAGS`."""
    codes: Array = np.select([np.isnan(values), np.isposinf(values), np.isneginf(values)], [1, 2, 3], 0)
    return codes


def flag_texts(flagged: Array) -> pa.Array:
    """Return what `flags` found as the text of a flag column, NULL for finite values."""
    return take_texts(np.maximum(flagged - 1, 0), FLAGS, flagged == 0)


def series_columns(series: Array, meta: Meta) -> Columns:
    """Return what is known of each row's series, all of which are defined: metric, kind and weight."""
    known = sorted(meta.metrics)
    at = np.searchsorted(np.array(known, np.int64), series.astype(np.int64))
    metrics = [meta.metrics[number] for number in known]
    weights = np.array([1.0 if one.weight is None else one.weight for one in metrics])[at]
    weighed = np.array([one.weight is not None for one in metrics], bool)[at]
    return {
        "metric": take_texts(at, [one.name for one in metrics]),
        "kind": take_texts(at, [one.kind for one in metrics]),
        "weight": numbers(weights, pa.float32(), ~weighed),
    }


@dataclass(frozen=True, slots=True)
class RangeCheck:
    """What was noticed of rows.

    Attributes
    ----------
    flags
        The column `edge_flag`.
    dropped
        True for the rows that a policy drops.
    """

    flags: pa.Array
    dropped: Array


def check_ranges(series: Array, least: Array, greatest: Array, meta: Meta) -> RangeCheck:
    """Judge rows by the least and greatest of their values.

    Parameters
    ----------
    series
        All of which are defined.
    least, greatest
        Of single values both the value itself. What is not finite is in no range and out of none: `value_flag` reports
        it.
    """
    known = sorted(meta.metrics)
    metrics = [meta.metrics[number] for number in known]
    at = np.searchsorted(np.array(known, np.int64), series.astype(np.int64))
    low = np.array([-math.inf if one.low is None else one.low for one in metrics])[at]
    high = np.array([math.inf if one.high is None else one.high for one in metrics])[at]
    outside = ((least < low) & np.isfinite(least)) | ((greatest > high) & np.isfinite(greatest))
    drops = np.array([one.outside == "drop" for one in metrics], bool)[at]
    texts = [text for one in metrics for text in (one.edge, _with_range(one))]
    codes = 2 * at + outside
    unflagged = np.array([text is None for text in texts], bool)
    return RangeCheck(take_texts(codes, texts, unflagged[codes] if len(codes) else None), outside & drops)


def _with_range(metric: Metric) -> str:
    flag = set_edge_flag(metric.outside, OUT_OF_RANGE_FLAG)
    return flag if metric.edge is None else f"{metric.edge},{flag}"
