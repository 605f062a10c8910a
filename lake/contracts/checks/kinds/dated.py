"""``dated``: a captured row lies in the partition of its own UTC date. It follows from the envelope."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the first column's UTC date is the second's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    moment, day = (table.column(name) for name in check.columns)
    there = moment.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
    return pc.equal(there, day)


KIND = CheckKind(
    name="dated",
    wrong=lambda _: "ts is not of the partition's date",
    written=False,
    types=frozenset({"timestamp", "date"}),
    dimension="consistency",
    passes=passes,
)
