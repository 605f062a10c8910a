"""``length``: a text has from `min` to `max` characters, both included; either end may be open."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges, ends, named
from ranklake.lake.contracts.checks.kinds.between import within
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the text is neither too short nor too long."""
    import pyarrow.compute as pc

    del ranges
    return within(pc.utf8_length(table.column(check.columns[0])), check)


KIND = CheckKind(
    name="length",
    wrong=lambda check: f"length of {named(check)} outside {ends(check)}",
    needs=(("min", "max"),),
    types=frozenset({"string"}),
    passes=passes,
)
