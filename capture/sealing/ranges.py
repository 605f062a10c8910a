"""Ranges: checks values against the range that the registry gives for their metric. Pure, and vectorised over rows.

The definitions in meta.frames carry range and policy, so whoever seals the slots, and however often, judges the same.
"""

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array, chosen
from ranklake.capture.series.policies import OUT_OF_RANGE_FLAG, marked
from ranklake.capture.spool.meta import Meta, Metric


@dataclass(frozen=True, slots=True)
class Judged:
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


def judge(series: Array, least: Array, greatest: Array, meta: Meta) -> Judged:
    """Judge rows by the least and greatest of their values.

    Parameters
    ----------
    series
        All of which are defined.
    least, greatest
        Of single values both the value itself. What is not finite is in no range and out of none: `value_flag` tells of
        it.
    """
    known = sorted(meta.metrics)
    found = [meta.metrics[number] for number in known]
    at = np.searchsorted(np.array(known, np.int64), series.astype(np.int64))
    low = np.array([-math.inf if one.low is None else one.low for one in found])[at]
    high = np.array([math.inf if one.high is None else one.high for one in found])[at]
    outside = ((least < low) & np.isfinite(least)) | ((greatest > high) & np.isfinite(greatest))
    drops = np.array([one.outside == "drop" for one in found], bool)[at]
    texts = [text for one in found for text in (one.edge, _with_range(one))]
    codes = 2 * at + outside
    unflagged = np.array([text is None for text in texts], bool)
    return Judged(chosen(codes, texts, unflagged[codes] if len(codes) else None), outside & drops)


def _with_range(metric: Metric) -> str:
    flag = marked(metric.outside, OUT_OF_RANGE_FLAG)
    return flag if metric.edge is None else f"{metric.edge},{flag}"
