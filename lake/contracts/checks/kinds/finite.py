"""``finite``: a float is neither NaN nor infinite. It follows from the column's type."""

import math
from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges
from ranklake.lake.contracts.model import FLOATS, Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the value is finite."""
    import pyarrow.compute as pc

    del ranges
    return pc.is_finite(table.column(check.columns[0]))


def _sum_is_finite(check: Check, table: "pa.Table") -> bool:
    """Say whether all values are finite; False where that is not sure. One that is not makes the sum so."""
    import pyarrow.compute as pc

    return math.isfinite(pc.sum(table.column(check.columns[0])).as_py())


KIND = CheckKind(
    name="finite",
    wrong=lambda check: f"{check.columns[0]} is NaN or infinite",
    written=False,
    types=FLOATS,
    passes=passes,
    cleared=_sum_is_finite,
)
