"""Rows as JSON text, as `rejects` keeps them, and back.

Times are ISO 8601, or microseconds since 1970 where the year has not four digits; a number that JSON lacks is "nan",
"inf" or "-inf".
"""

import json
import math
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def row_texts(rows: pa.Table) -> list[str]:
    """Return each row as a JSON object."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            moments = rows[column.name].cast(pa.int64()).to_pylist()
            texts = [None if moment is None else _iso(moment) for moment in moments]
            rows = rows.set_column(place, column.name, pa.array(texts, pa.string()))
    return [json.dumps({name: _jsonable(value) for name, value in row.items()}) for row in rows.to_pylist()]


def _iso(moment_us: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=moment_us)).isoformat()
    except OverflowError:
        return str(moment_us)


def _jsonable(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.isoformat() if isinstance(value, date) else value


def row_values(contract: "Contract", text: str | None) -> dict[str, Any] | None:
    """Return a row's values under the contract's types; None where it is not one."""
    schema = arrow_schema(contract)
    try:
        parsed = json.loads(text or "")
        if not isinstance(parsed, dict) or not set(parsed) <= set(schema.names):
            return None
        values = {name: _value(value, schema.field(name).type) for name, value in parsed.items()}
        if values.get("date") is None and values.get("ts") is not None:
            values["date"] = values["ts"].date()  # a segment's row has none
        pa.Table.from_pylist([values], schema=schema)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None
    return values


def _value(value: Any, type_: pa.DataType) -> Any:  # noqa: ANN401 - whatever JSON has
    if value is None:
        return None
    if pa.types.is_timestamp(type_):
        return _moment(value)
    if pa.types.is_date(type_):
        return date.fromisoformat(value)
    return float(value) if pa.types.is_floating(type_) else value


def _moment(text: str) -> datetime:
    """Return a time that is ISO 8601, or µs since 1970 where its year has not four digits. Raises `OverflowError`."""
    return _EPOCH + timedelta(microseconds=int(text)) if text.lstrip("-").isdigit() else datetime.fromisoformat(text)
