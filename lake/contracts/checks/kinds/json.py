"""``json``: a text is JSON that can be parsed. It follows from the column's format."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges
from ranklake.lake.contracts.json_text import is_json
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the text parses. Each distinct text is parsed once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    column = table.column(check.columns[0])
    plain = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
    bad = [text for text in pc.unique(plain).to_pylist() if text is not None and not is_json(text)]
    return pc.invert(pc.is_in(plain, value_set=pa.array(bad, pa.string())))


KIND = CheckKind(
    name="json",
    wrong=lambda check: f"{check.columns[0]} is not JSON",
    written=False,
    types=frozenset({"string"}),
    passes=passes,
)
