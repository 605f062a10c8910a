"""Checks of the columns of one row against each other."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges, columns_text
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    import pyarrow as pa


def _equal_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where both are equal."""
    import pyarrow.compute as pc

    del ranges
    left, other = (table.column(name) for name in check.columns)
    return pc.equal(left, other)


EQUAL = CheckKind(
    name="equal",
    wrong=lambda check: f"{check.columns[0]} is not {check.columns[1]}",
    needs=(("columns",),),
    own_columns=True,
    pair=True,
    types=frozenset({"string", "bool", "int32", "int64", "timestamp", "date"}),
    dimension="consistency",
    passes=_equal_passes,
)
"""``equal``: two columns hold the same, where both hold something."""


def _at_most_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the smaller is no greater."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    small, large = (table.column(name) for name in check.columns)
    if check.tolerance:
        large = pc.add(pc.cast(large, pa.float64()), check.tolerance)
    return pc.less_equal(small, large)


AT_MOST = CheckKind(
    name="at_most",
    wrong=lambda check: f"{check.columns[0]} greater than {check.columns[1]}",
    needs=(("columns",),),
    own_columns=True,
    pair=True,
    types=NUMBERS | {"timestamp", "date"},
    dimension="consistency",
    passes=_at_most_passes,
)
"""``at_most``: the first of two columns is no greater than the second plus `tolerance`."""


def _exactly_one_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where one column has a value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    there = [pc.cast(pc.is_valid(table.column(name)), pa.int32()) for name in check.columns]
    total = there[0]
    for column in there[1:]:
        total = pc.add(total, column)
    return pc.equal(total, 1)


def _exactly_one_one_is_full(check: Check, table: "pa.Table") -> bool:
    columns = [table.column(name) for name in check.columns]
    empty = sum(column.null_count == len(column) for column in columns)
    return empty == len(columns) - 1 and any(column.null_count == 0 for column in columns)


EXACTLY_ONE = CheckKind(
    name="exactly_one",
    wrong=lambda check: f"not exactly one of {columns_text(check)}",
    needs=(("columns",),),
    own_columns=True,
    null_passes=False,
    dimension="completeness",
    passes=_exactly_one_passes,
    cleared=_exactly_one_one_is_full,
)
"""``exactly_one``: of some columns one has a value and the others are NULL."""
