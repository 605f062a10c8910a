"""``in_set``: a value is one of `values`."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges, named
from ranklake.lake.contracts.model import TYPES, Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the column has one of the values, or none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    values = table.column(check.columns[0])
    known = pc.is_in(values, value_set=pa.array(check.values).cast(values.type))
    return pc.or_(known, pc.is_null(values))


KIND = CheckKind(
    name="in_set",
    wrong=lambda check: f"{named(check)} not one of {', '.join(map(str, check.values))}",
    needs=(("values",),),
    types=frozenset(TYPES) - {"int64_list"},
    rule=lambda check: {"metric": "invalidValues", "mustBe": 0, "arguments": {"validValues": list(check.values)}},
    passes=passes,
)
