"""``equal``: two columns hold the same, where both hold something."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where both are equal."""
    import pyarrow.compute as pc

    del ranges
    one, other = (table.column(name) for name in check.columns)
    return pc.equal(one, other)


KIND = CheckKind(
    name="equal",
    wrong=lambda check: f"{check.columns[0]} is not {check.columns[1]}",
    needs=(("columns",),),
    own_columns=True,
    pair=True,
    types=frozenset({"string", "bool", "int32", "int64", "timestamp", "date"}),
    dimension="consistency",
    passes=passes,
)
