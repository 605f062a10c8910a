"""Checks rows against their contract, column by column, and converts rejected rows to text and back."""

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

Verdict = tuple[str, str, pa.ChunkedArray]
"""Check id, description of the fault, and a mask that is true where a row fails."""
_IMPLIED: Final = ("required", "finite", "json")  # implied checks that rows must pass to be stored


def reject_reasons(contract: Contract, table: pa.Table) -> pa.Array:
    """Return for each row NULL if it passes, else ``check_id: fault`` of the first check that fails.

    The implied checks come first: required columns that are NULL (``required``), floats that are NaN or infinite
    (``finite``), invalid JSON (``json``). The contract's row checks with ``on_fail: quarantine`` follow in their order.
    Checks of columns that the table lacks are skipped; a segment lacks ``date``. Reasons contain no value of the row,
    because readers of ``rejects`` may not be allowed to see it. Rows that an importer refused keep the importer's
    reason, from the column `ranklake.segments.segment.REFUSED`.

    Parameters
    ----------
    table
        Rows with the contract's types, as `ranklake.lake.contracts.arrow.conform` returns them. Text may be
        dictionary-encoded, and a column without any value may have Arrow's type null.
    """
    has_reasons = REFUSED in table.column_names
    reasons: pa.Array | pa.ChunkedArray = table[REFUSED] if has_reasons else pa.nulls(table.num_rows, pa.string())
    for check_id, fault, failed in verdicts(contract, table):
        if pc.any(failed).as_py():
            is_first = pc.and_(failed, pc.is_null(reasons))
            reasons = pc.if_else(is_first, pa.scalar(f"{check_id}: {fault}"), reasons)
    return reasons.combine_chunks() if isinstance(reasons, pa.ChunkedArray) else reasons


def verdicts(contract: Contract, table: pa.Table) -> Iterator[Verdict]:
    """Yield a verdict for each check that may quarantine a row. Masks have no NULL.

    Checks that cannot fail, as column statistics show, are skipped.
    """
    present = set(table.column_names)
    for check_id, check in _quarantine_checks(contract):
        if present.issuperset(check.columns) and not cannot_fail(check, table):
            yield check_id, _reason(check), failures(check, _convert_columns(contract, table, check.columns))


@cache
def _quarantine_checks(contract: Contract) -> tuple[tuple[str, Check], ...]:
    """Return the checks that quarantine rows, each with the id that reasons contain, in the order of the reasons."""
    implied = list(implied_by_columns(contract))
    first = [(code, check) for code in _IMPLIED for check in implied if check.id.startswith(f"{code}:")]
    return (*first, *((check.id, check) for check in contract.all_checks() if check.quarantines))


def _reason(check: Check) -> str:
    # Stored reasons have this text, and a replay must produce equal reasons.
    return f"{check.columns[0]} is no JSON that can be parsed" if check.kind == "json" else fault_text(check)


def _convert_columns(contract: Contract, table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Return some columns cast to the contract's types: dictionaries to text, null columns to their type."""
    schema = arrow_schema(contract)
    return pa.table({name: table.column(name).cast(schema.field(name).type) for name in names})


_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def row_texts(rows: pa.Table) -> list[str]:
    """Return each row as a JSON object, with times in ISO 8601 and non-finite floats as text."""
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
    """Parse a text of `row_texts` to values with the contract's types. None if the text is no row of the contract."""
    schema = arrow_schema(contract)
    try:
        parsed = json.loads(text or "")
        if not isinstance(parsed, dict) or not set(parsed) <= set(schema.names):
            return None
        values = {name: _value(value, schema.field(name).type) for name, value in parsed.items()}
        if values.get("date") is None and values.get("ts") is not None:
            values["date"] = values["ts"].date()  # rows of segments have no date
        pa.Table.from_pylist([values], schema=schema)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None
    return values


def _value(value: Any, type_: pa.DataType) -> Any:  # noqa: ANN401 - any JSON value
    if value is None:
        return None
    if pa.types.is_timestamp(type_):
        return _moment(value)
    if pa.types.is_date(type_):
        return date.fromisoformat(value)
    return float(value) if pa.types.is_floating(type_) else value


def _moment(text: str) -> datetime:
    """Parse a time in ISO 8601, or in µs since 1970 if it is outside the years of ISO 8601. Raises `OverflowError`."""
    return _EPOCH + timedelta(microseconds=int(text)) if text.lstrip("-").isdigit() else datetime.fromisoformat(text)
