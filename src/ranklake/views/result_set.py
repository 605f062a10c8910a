"""Arrow tables as text: aligned for people, CSV and JSON for machines."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.tables.parquet import trim_dictionaries
from ranklake.printable import printable
from ranklake.views.json_output import json_text, moment_json
from ranklake.views.table import TextColumn, table_lines

_MARKUP: Final = re.compile(r"[\\`|\[\]*]")


def as_table(rows: pa.Table) -> str:
    """Return an aligned table: numbers to the right, floats with six significant digits, NULL as NULL.

    Control characters are escaped: a cell is one line, and cannot move the cursor.
    """
    names = [printable(name) for name in rows.column_names]
    heads = [TextColumn(name, is_right=to_right) for name, to_right in zip(names, _is_right(rows), strict=True)]
    lines = table_lines(heads, _cells(rows), gap=" | ", rule="-+-")
    return "\n".join([*lines, _count_text(rows)])


def as_vertical(rows: pa.Table) -> str:
    """Return each row as a block with one line per column, for rows wider than a terminal."""
    names = [printable(name) for name in rows.column_names]
    widest = max(map(len, names), default=0)
    lines = []
    for number, cells in enumerate(_cells(rows), start=1):
        lines.append(f"-[ row {number:,} ]".ljust(widest + 3, "-"))
        lines += [f"{name.ljust(widest)} | {cell}".rstrip() for name, cell in zip(names, cells, strict=True)]
    return "\n".join([*lines, _count_text(rows)])


def as_markdown(rows: pa.Table) -> str:
    """Return a Markdown table, whose cells are text: what would be markup in them is escaped."""
    names = [_escape_markup(printable(name)) for name in rows.column_names]
    rules = ["---:" if to_right else "---" for to_right in _is_right(rows)]
    body = ([_escape_markup(cell) for cell in cells] for cells in _cells(rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rules, *body))


def as_json(rows: pa.Table) -> str:
    """Return a JSON list of objects, one per line. Times are ISO 8601; NaN and infinities are null."""
    names = rows.column_names
    body = ",\n".join(json_text(dict(zip(names, row, strict=True))) for row in plain_rows(rows))
    return f"[{body}]"


def as_csv(rows: pa.Table) -> str:
    """Return CSV with a header; NULL is an empty cell, times are ISO 8601."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(rows.column_names)
    writer.writerows(plain_rows(rows))
    return sink.getvalue().rstrip("\n")


def as_parquet(rows: pa.Table) -> bytes:
    """Return a Parquet file, whose dictionaries hold only values of these rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(trim_dictionaries(rows), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _is_right(rows: pa.Table) -> list[bool]:
    """Whether each column is aligned to the right: columns of numbers are."""
    return [
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        for kind in rows.schema.types
    ]


def _cells(rows: pa.Table) -> Iterator[tuple[str, ...]]:
    return zip(*([_cell(value) for value in column.to_pylist()] for column in rows.columns), strict=True)


def _count_text(rows: pa.Table) -> str:
    return f"({rows.num_rows:,} row{'' if rows.num_rows == 1 else 's'})"


def _escape_markup(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", text).replace("&", "&amp;").replace("<", "&lt;")


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


def plain_rows(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield rows as JSON values: times as ISO 8601, NaN and infinities as None."""
    for batch in rows.to_batches():
        yield from zip(*([plain(value) for value in column.to_pylist()] for column in batch.columns), strict=True)


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever Arrow holds
    """Return a value as a JSON value."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    convert = _JSON.get(type(value))
    return value if convert is None else convert(value)


_JSON: Mapping[type, Callable[[Any], Any]] = {
    datetime: moment_json,
    date: date.isoformat,
    timedelta: timedelta.total_seconds,
    Decimal: lambda value: int(value) if value == value.to_integral_value() else float(value),
    bytes: bytes.hex,
}
