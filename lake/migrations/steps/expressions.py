"""Columns computed from others by SQL expressions, a row at a time."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.migrations.steps.step import MigrationError

if TYPE_CHECKING:
    from ranklake.lake.query.engine import DataFrame

Expressions = tuple[tuple[str, str], ...]
"""Name of a column, and the expression that it is; DataFusion's SQL."""

_PLAIN: Final = re.compile(r"\s*(Projection|TableScan|SubqueryAlias)\b")
_VALUE: Final = re.compile("'[^']*'")
"""What an error may quote of a row; it may be classified."""

_FICKLE: Final = re.compile(
    r"\b(?:(?:random|uuid|now|today|version)\s*\(|current_(?:date|time|timestamp)\b)", re.IGNORECASE
)


def computed(rows: pa.Table, names: tuple[str, ...], expressions: Expressions) -> list[pa.ChunkedArray]:
    """Return the values of expressions over some columns of rows; one that the rows lack is NULL.

    Raises `pyarrow.ArrowInvalid` where an expression fails on a value, and `MigrationError` where it is none of a row.
    """
    if not rows.num_rows:
        return [pa.chunked_array([pa.nulls(0)]) for _ in expressions]
    frame = _planned(pa.table({name: _column(rows, name) for name in names}), expressions)
    try:
        batches = frame.collect()
    except Exception as error:  # noqa: BLE001 - DataFusion raises nothing narrower
        raise pa.ArrowInvalid(_VALUE.sub("'…'", _said(error))) from None
    found = pa.Table.from_batches(batches)
    if found.num_rows != rows.num_rows:
        raise pa.ArrowInvalid("an expression gives another number of rows")
    return [values.cast(pa.string()) if pa.types.is_string_view(values.type) else values for values in found.columns]


def types_of(columns: Mapping[str, pa.DataType], expressions: Expressions) -> list[pa.DataType]:
    """Return the types of expressions over some columns. Raises `MigrationError` where one is none of a row."""
    return list(_planned(pa.schema(list(columns.items())).empty_table(), expressions).schema().types)


def _planned(rows: pa.Table, expressions: Expressions) -> "DataFrame":
    from ranklake.lake.query.engine import engine  # heavy, and few migrations compute anything

    ctx = engine(1)
    batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
    ctx.register_record_batches("rows", [batches])
    chosen = ", ".join(f'({text}) AS "{place}"' for place, (_, text) in enumerate(expressions))
    try:
        frame = ctx.sql(f"SELECT {chosen} FROM rows")  # noqa: S608 - a released migration's own text
        plan = frame.logical_plan().display_indent()
    except Exception as error:  # noqa: BLE001 - DataFusion raises nothing narrower
        raise MigrationError(f"no expression: {_said(error)}", hint="correct it") from None
    if not all(map(_PLAIN.match, plan.splitlines())) or any(_FICKLE.search(text) for _, text in expressions):
        what = "an expression looks at more than its row"
        raise MigrationError(what, hint="leave away aggregates, windows, subqueries, and what differs each time")
    return frame


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows)])
    values = rows[name]
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _said(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
