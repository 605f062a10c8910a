"""Which rows of a table hold a value, in any column, at any depth."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.retention.traces.columns import has_text, holding

if TYPE_CHECKING:
    from ranklake.retention.traces.needles import Needles


def rows_holding(rows: pa.Table, sought: "Needles") -> pa.Array:
    """Return true where a row of a table holds a value in any column; no NULL."""
    found = pa.repeat(pa.scalar(value=False), rows.num_rows)
    for name in rows.column_names:
        if has_text(rows.schema.field(name).type) and rows.num_rows:
            chunks = rows[name].chunks
            found = pc.or_(found, pa.concat_arrays([_marks(chunk, sought) for chunk in chunks]))
            found = pc.or_(found, pa.concat_arrays([sought.short.rows(name, chunk) for chunk in chunks]))
    return found


def _marks(column: pa.Array, sought: "Needles") -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        return pc.fill_null(holding(column.dictionary, sought).take(column.indices), fill_value=False)
    if pa.types.is_nested(column.type):
        return pa.array([any(map(sought.count, _texts(value))) for value in column.to_pylist()], pa.bool_())
    return holding(column, sought)


def _texts(value: object) -> Iterator[bytes]:
    """Yield what texts there are in a value, as bytes."""
    if isinstance(value, str):
        yield value.encode()
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)
