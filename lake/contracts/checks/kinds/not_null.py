"""``not_null``: a column has a value in each row."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges, named
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the column has a value."""
    import pyarrow.compute as pc

    del ranges
    return pc.is_valid(table.column(check.columns[0]))


def _full(check: Check, table: "pa.Table") -> bool:
    return all(table.column(name).null_count == 0 for name in check.columns)


KIND = CheckKind(
    name="not_null",
    wrong=lambda check: f"{named(check)} is NULL",
    null_passes=False,
    dimension="completeness",
    rule=lambda _: {"metric": "nullValues", "mustBe": 0},
    passes=passes,
    cleared=_full,
)
