"""Rows of distributions, as capture records values."""

from datetime import timedelta

import numpy as np
from rollup_inputs import NOON

from ranklake.capture.histogram import histogram_of


def histogram_row(values, slot=0, **more):
    """Return a row of ``distributions`` of values, as capture records them."""
    made = histogram_of(np.asarray(values, np.float64))
    return {
        "run": "r", "incarnation": 1, "slot": slot, "ts": NOON + timedelta(seconds=slot), "metric": "grads",
        "scale": made.scale, "count": made.count, "sum": made.sum, "min": made.min, "max": made.max,
        "zero_count": made.zero_count, "positive_offset": made.positive.offset,
        "positive_counts": made.positive.counts.tolist(), "negative_offset": made.negative.offset,
        "negative_counts": made.negative.counts.tolist(), **more,
    }  # fmt: skip
