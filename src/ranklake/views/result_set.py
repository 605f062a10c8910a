"""Arrow tables as text: aligned for people, CSV and JSON for machines."""

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.printable import printable
from ranklake.views.json_output import json_text
from ranklake.views.table import TextColumn, table_lines


def as_table(rows: pa.Table) -> str:
    """Return an aligned table: numbers to the right, floats with six significant digits, NULL as NULL.

    Control characters stand as escapes: a cell is one line, and moves no cursor.
    """
    columns = [[_cell(value) for value in column.to_pylist()] for column in rows.columns]
    right = [
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        for kind in rows.schema.types
    ]
    names = [printable(name) for name in rows.column_names]
    heads = [TextColumn(name, is_right=to_right) for name, to_right in zip(names, right, strict=True)]
    lines = table_lines(heads, zip(*columns, strict=True), gap=" | ", rule="-+-")
    count = rows.num_rows
    return "\n".join([*lines, f"({count:,} row{'' if count == 1 else 's'})"])


def as_json(rows: pa.Table) -> str:
    """Return a JSON list of objects, a line each. Times are ISO 8601; what JSON has no number for is null."""
    body = ",\n".join(json_text(row) for row in _plain_rows(rows))
    return f"[{body}]"


def as_csv(rows: pa.Table) -> str:
    """Return CSV with a header; NULL is an empty cell, times are ISO 8601."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, fieldnames=rows.column_names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_plain_rows(rows))
    return sink.getvalue().rstrip("\n")


def as_parquet(rows: pa.Table) -> bytes:
    """Return a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _cell(value: Any) -> str:  # noqa: ANN401 - whatever Arrow holds
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").replace("+00:00", "Z")
    return printable(" ".join(str(value).split("\n")))


def _plain_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever Arrow holds, as JSON has it
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    convert = _JSON.get(type(value))
    return value if convert is None else convert(value)


_JSON: Mapping[type, Callable[[Any], Any]] = {
    datetime: lambda value: value.isoformat().replace("+00:00", "Z"),
    date: date.isoformat,
    timedelta: timedelta.total_seconds,
    Decimal: lambda value: int(value) if value == value.to_integral_value() else float(value),
    bytes: bytes.hex,
}
