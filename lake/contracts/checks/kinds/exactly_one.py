"""``exactly_one``: of some columns one has a value and the others are NULL."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges, named
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where one column has a value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    there = [pc.cast(pc.is_valid(table.column(name)), pa.int32()) for name in check.columns]
    total = there[0]
    for one in there[1:]:
        total = pc.add(total, one)
    return pc.equal(total, 1)


def _one_is_full(check: Check, table: "pa.Table") -> bool:
    columns = [table.column(name) for name in check.columns]
    empty = sum(column.null_count == len(column) for column in columns)
    return empty == len(columns) - 1 and any(column.null_count == 0 for column in columns)


KIND = CheckKind(
    name="exactly_one",
    wrong=lambda check: f"not exactly one of {named(check)}",
    needs=(("columns",),),
    own_columns=True,
    null_passes=False,
    dimension="completeness",
    passes=passes,
    cleared=_one_is_full,
)
