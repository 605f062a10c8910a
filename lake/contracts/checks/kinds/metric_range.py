"""``metric_range``: a value lies in the range that the metric registry gives. It follows from the registry."""

import math
from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    import pyarrow as pa


def metric_ends(metrics: "pa.Array | pa.ChunkedArray", ranges: Ranges) -> "tuple[pa.Array, pa.Array]":
    """Return the least and the greatest valid value of each of some metrics; NULL for those without a range."""
    import pyarrow as pa
    import pyarrow.compute as pc

    which = pc.index_in(metrics, value_set=pa.array(list(ranges), pa.string()))
    low = pa.array([-math.inf if low is None else low for low, _ in ranges.values()], pa.float64())
    high = pa.array([math.inf if high is None else high for _, high in ranges.values()], pa.float64())
    return pc.take(low, which), pc.take(high, which)


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the value is neither below nor above its metric's range; what has no range is not judged."""
    import pyarrow.compute as pc

    metric, value = (table.column(name) for name in check.columns)
    low, high = metric_ends(metric, ranges)
    return pc.invert(pc.or_(pc.less(value, low), pc.greater(value, high)))


def _has_range(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    import pyarrow as pa
    import pyarrow.compute as pc

    metric, value = (table.column(name) for name in check.columns)
    return pc.and_(pc.is_in(metric, value_set=pa.array(list(ranges), pa.string())), pc.is_valid(value))


KIND = CheckKind(
    name="metric_range",
    wrong=lambda _: "value outside the range that the metric registry gives",
    written=False,
    passes=passes,
    judged=_has_range,
)
