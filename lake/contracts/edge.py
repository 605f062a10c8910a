"""Checks rows against their contract, a column at a time, when they arrive and once stored; refused rows as text."""

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.registry import cannot_fail, failures, fault_text, implied_by_columns
from ranklake.lake.contracts.model import Check, Contract
from ranklake.segments.segment import REFUSED

Verdict = tuple[str, str, pa.ChunkedArray]  # check id, what is wrong, true where a row fails
_IMPLIED: Final = ("required", "finite", "json")  # of what follows from columns, that which no row may come in with


def judge(contract: Contract, table: pa.Table) -> pa.Array:
    """Return for each row NULL if it is good, else ``check_id: what is wrong`` of the first thing that is.

    First come required columns that are NULL (``required``), floats that are NaN or infinite (``finite``) and text
    that should be JSON and is not (``json``), then the row checks of the contract that quarantine, in its order.
    Columns that the table lacks are not judged, so that a segment, which holds no ``date``, can be. Reasons hold no
    value of the row: those who read them may not see it. What an importer refused
    (`ranklake.segments.segment.REFUSED`) has its reason already.

    Parameters
    ----------
    contract, table
        The table has the contract's types, as `ranklake.lake.contracts.arrow.conform` gives it; text may also be
        dictionary-typed, and a column without any value of Arrow's type null.
    """
    refused = REFUSED in table.column_names
    reasons: pa.Array | pa.ChunkedArray = table[REFUSED] if refused else pa.nulls(table.num_rows, pa.string())
    for check_id, fault, failed in verdicts(contract, table):
        if pc.any(failed).as_py():
            fresh = pc.and_(failed, pc.is_null(reasons))
            reasons = pc.if_else(fresh, pa.scalar(f"{check_id}: {fault}"), reasons)
    return reasons.combine_chunks() if isinstance(reasons, pa.ChunkedArray) else reasons


def verdicts(contract: Contract, table: pa.Table) -> Iterator[Verdict]:
    """Yield (check id, what is wrong, rows that fail) of all that may send a row to quarantine; the mask has no NULL.

    What a look at the columns as wholes clears is not yielded.
    """
    present = set(table.column_names)
    for code, check in _arriving(contract):
        if present.issuperset(check.columns) and not cannot_fail(check, table):
            yield code, _reason(check), failures(check, _convert_columns(contract, table, check.columns))


@cache
def _arriving(contract: Contract) -> tuple[tuple[str, Check], ...]:
    """Return what rows are checked against on arrival, with the code of the reason, in the order of the reasons."""
    implied = list(implied_by_columns(contract))
    first = [(code, check) for code in _IMPLIED for check in implied if check.id.startswith(f"{code}:")]
    return (*first, *((check.id, check) for check in contract.all_checks() if check.quarantines))


def _reason(check: Check) -> str:
    # Stored reasons say it so, and a replay gives the same ones.
    return f"{check.columns[0]} is no JSON that can be parsed" if check.kind == "json" else fault_text(check)


def _convert_columns(contract: Contract, table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Return some columns with text as text, and columns without any value under the contract's types."""
    schema = arrow_schema(contract)
    return pa.table({name: table.column(name).cast(schema.field(name).type) for name in names})


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
