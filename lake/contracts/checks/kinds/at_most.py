"""``at_most``: the first of two columns is no greater than the second plus `tolerance`."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the smaller is no greater."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    small, large = (table.column(name) for name in check.columns)
    if check.tolerance:
        large = pc.add(pc.cast(large, pa.float64()), check.tolerance)
    return pc.less_equal(small, large)


KIND = CheckKind(
    name="at_most",
    wrong=lambda check: f"{check.columns[0]} greater than {check.columns[1]}",
    needs=(("columns",),),
    own_columns=True,
    pair=True,
    types=NUMBERS | {"timestamp", "date"},
    dimension="consistency",
    passes=passes,
)
