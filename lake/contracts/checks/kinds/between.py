"""``between``: a value lies from `min` to `max`, both included; either end may be open.

Ends of timestamps and dates are ISO 8601 text.
"""

import datetime as dt
from typing import TYPE_CHECKING

from ranklake.lake.contracts.checks.kind import CheckKind, Ranges, ends, named
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    import pyarrow as pa


def passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the column's values lie in the range."""
    del ranges
    return within(table.column(check.columns[0]), check)


def within(values: "pa.ChunkedArray", check: Check) -> "pa.ChunkedArray":
    """Return where values lie between the check's ends, both included; NULL where the value is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.is_valid(values)
    if check.min is not None:
        found = pc.and_(found, pc.greater_equal(values, _end(check.min, values.type)))
    if check.max is not None:
        found = pc.and_(found, pc.less_equal(values, _end(check.max, values.type)))
    return pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))


def _end(value: object, of: "pa.DataType") -> "pa.Scalar":
    """Return one end of a range in the column's type; an end that an integer type cannot hold stays a float."""
    import pyarrow as pa

    if pa.types.is_timestamp(of):
        return pa.scalar(dt.datetime.fromisoformat(str(value)), of)
    if pa.types.is_date(of):
        return pa.scalar(dt.date.fromisoformat(str(value)), of)
    return pa.scalar(value)


def _extremes_pass(check: Check, table: "pa.Table") -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(check.columns[0])
    extremes = pc.min_max(column)
    found = within(pa.chunked_array([pa.array([extremes[end].cast(column.type) for end in ("min", "max")])]), check)
    return pc.all(pc.fill_null(found, fill_value=True)).as_py() is True


KIND = CheckKind(
    name="between",
    wrong=lambda check: f"{named(check)} outside {ends(check)}",
    needs=(("min", "max"),),
    types=NUMBERS | {"timestamp", "date"},
    passes=passes,
    cleared=_extremes_pass,
)
