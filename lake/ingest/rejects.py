"""Rows of the table ``rejects``: refused rows, whole, with the reason."""

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

REJECTED_ROWS: Final = 50_000
"""Rows to hand over at a time: each takes some kilobytes while it becomes text."""

_WHOSE: Final = ("run", "attempt", "rank", "incarnation", "segment", "slot")


def reject_rows(
    rows: pa.Table,
    reasons: pa.Array,
    digests: Sequence[str | None],
    source: str,
    target: "Contract",
    plan: int,
    when: datetime,
) -> pa.Table:
    """Return rows of the table ``rejects``; each refused row goes along whole as JSON, so that it can be replayed."""
    schema = arrow_schema(contract("rejects"))
    columns: dict[str, Any] = {
        name: rows[name] for name in ("run", "attempt", "rank", "incarnation", "segment", "slot")
    }
    columns["reason"] = reasons
    columns["row"] = _as_json(rows)
    columns["sha256"] = digests
    constants = {
        "plan": plan,
        "source": source,
        "table": target.table,
        "ts": when,
        "date": when.date(),
    }
    arrays = []
    for column in schema:
        if column.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[column.name], column.type), rows.num_rows))
        elif column.name in columns:
            values = columns[column.name]
            arrays.append(values.cast(column.type) if hasattr(values, "cast") else pa.array(values, column.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.type))
    return pa.table(arrays, schema=schema)


def _as_json(rows: pa.Table) -> list[str]:
    """Return each row as a JSON object.

    Times are ISO 8601, or microseconds since 1970 where the year has not four digits; a number that JSON lacks is
    "nan", "inf" or "-inf".
    """
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            moments = rows[column.name].cast(pa.int64()).to_pylist()
            texts = [None if moment is None else _iso(moment) for moment in moments]
            rows = rows.set_column(place, column.name, pa.array(texts, pa.string()))
    return [json.dumps({name: _jsonable(value) for name, value in row.items()}) for row in rows.to_pylist()]


def _iso(moment_us: int) -> str:
    try:
        return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment_us)).isoformat()
    except OverflowError:
        return str(moment_us)


def _jsonable(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.isoformat() if isinstance(value, date) else value
