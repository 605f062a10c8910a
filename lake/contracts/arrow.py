"""Arrow schemas and Delta table properties from contracts; casts tables to these schemas."""

import json
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute as pc

from ranklake.lake.contracts.errors import ContractMismatchError
from ranklake.lake.contracts.model import Column, Contract

ARROW_TYPES: Final = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "decimal": pa.decimal128(38, 9),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "int64_list": pa.list_(pa.int64()),
}

_TEXT_BYTES: Final = 24
_REJECTED_BYTES: Final = 1024
"""Additional size of a row of ``rejects``, which contains a complete row as text."""

_NUMBERS: Final = (pa.types.is_integer, pa.types.is_floating)
_SOURCES: Final = (  # kind of target, kinds of source that may be cast to it
    (pa.types.is_string, (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    (pa.types.is_integer, _NUMBERS),
    (pa.types.is_floating, _NUMBERS),
    (pa.types.is_decimal, (pa.types.is_decimal, pa.types.is_integer)),
    (pa.types.is_timestamp, (pa.types.is_timestamp,)),
    (pa.types.is_date, (pa.types.is_date,)),
    (pa.types.is_list, (pa.types.is_list, pa.types.is_large_list)),
)


@lru_cache(maxsize=256)
def arrow_schema(contract: Contract, *, segment: bool = False) -> pa.Schema:
    """Return the Arrow schema of a table, or with ``segment`` that of its segments, which lack ``date``.

    Field metadata: ``id``, ``class``, ``doc``; ``unit``, ``mask`` and ``default`` (JSON) if the column has them. Schema
    metadata: ``table``, ``version``.
    """
    columns = contract.segment_columns if segment else contract.columns
    metadata = {"table": contract.table, "version": str(contract.version)}
    return pa.schema([_field(column) for column in columns], metadata=metadata)


def row_bytes(contract: Contract) -> int:
    """Estimate the memory of one row of a table, in bytes."""
    widths = (
        _TEXT_BYTES if _is_variable_size(field.type) else max(1, field.type.bit_width // 8)
        for field in arrow_schema(contract)
    )
    return sum(widths) + (_REJECTED_BYTES if contract.table == "rejects" else 0)


def _is_variable_size(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_list(kind))


def conform(table: pa.Table, contract: Contract, *, segment: bool = False) -> pa.Table:
    """Cast a table to the contract's schema: exactly its columns, with its order, types and metadata.

    Missing nullable columns are filled with NULL. Casts are safe: no overflow, no lost fraction or time, no text parsed
    as number. NULL in required columns is kept; `ranklake.lake.contracts.edge.reject_reasons` reports it row by row.

    Raises
    ------
    ContractMismatchError
        A required column is missing, a column is unknown or repeated, or a column cannot be cast. Lists all problems.
    """
    schema = arrow_schema(contract, segment=segment)
    problems = [f"unknown column {name!r}" for name in table.column_names if name not in schema.names]
    repeated = {name for name in table.column_names if table.column_names.count(name) > 1}
    problems += [f"column {name!r} appears twice" for name in sorted(repeated)]
    arrays: list[pa.ChunkedArray | pa.Array] = []
    for field in schema:
        if field.name in repeated:
            continue
        if field.name not in table.column_names:
            if not field.nullable:
                problems.append(f"required column {field.name!r} is missing")
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        values = table.column(field.name)
        try:
            arrays.append(_cast(values, field.type))
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            type_ = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
            problems.append(f"column {field.name!r} is {type_} and does not fit {field.type} ({reason})")
    if problems:
        raise ContractMismatchError(contract.table, tuple(problems))
    return pa.table(arrays, schema=schema)


def default_of(field: pa.Field) -> pa.Scalar | None:
    """Return the default of a field of `arrow_schema`; None if it has none."""
    default = (field.metadata or {}).get(b"default")
    return None if default is None else _default(default, field.type)


@lru_cache(maxsize=256)
def _default(raw: bytes, type_: pa.DataType) -> pa.Scalar:
    value = json.loads(raw)
    if pa.types.is_dictionary(type_):
        return pa.scalar(value, type_.value_type)
    parse = next((parse for is_type, parse in _PARSERS if is_type(type_)), None)
    return pa.scalar(value if parse is None else parse(value), type_)


def with_default(values: pa.ChunkedArray | None, field: pa.Field, rows: int) -> pa.ChunkedArray:
    """Return a column with missing values replaced by the field's default; NULL if the field has none.

    Parameters
    ----------
    values
        The column, of the field's type; None if the column is missing.
    rows
        Length of the column.
    """
    default = default_of(field)
    if default is None:
        return pa.chunked_array([pa.nulls(rows, field.type)]) if values is None else values
    if values is None or values.null_count == rows:
        return pa.chunked_array([pa.repeat(default, rows)]).cast(field.type)
    if not values.null_count:
        return values
    if pa.types.is_dictionary(field.type):
        return values.cast(field.type.value_type).fill_null(default).dictionary_encode()
    return values.fill_null(default)


def _field(column: Column) -> pa.Field:
    facts = {"id": str(column.id), "class": column.class_, "doc": column.doc}
    if column.unit is not None:
        facts["unit"] = column.unit
    if column.mask is not None:
        facts["mask"] = column.mask
    if column.default is not None:
        facts["default"] = json.dumps(column.default)
    return pa.field(column.name, ARROW_TYPES[column.type], nullable=not column.required, metadata=facts)


_PARSERS: Final = (  # types that JSON stores as text
    (pa.types.is_timestamp, datetime.fromisoformat),
    (pa.types.is_date, date.fromisoformat),
    (pa.types.is_decimal, Decimal),
)


def _cast(values: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    """Cast values without loss. Raises `pa.ArrowInvalid`."""
    if values.type == to:
        return values
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not _is_castable(values.type, to):
        raise pa.ArrowInvalid("another kind of value")
    if pa.types.is_floating(values.type) and to == pa.float32():
        return _narrow(values)
    return values.cast(to)


def _is_castable(source: pa.DataType, to: pa.DataType) -> bool:
    """Whether one type may be cast to another: never text to a number, nor a number to a time."""
    sources = next((sources for is_target, sources in _SOURCES if is_target(to)), ())
    if pa.types.is_timestamp(to) and pa.types.is_timestamp(source) and source.tz is None:
        return False
    return pa.types.is_null(source) or any(is_source(source) for is_source in sources)


def _narrow(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return float64 values as float32. Rounding is accepted; a finite number that becomes infinite is an error."""
    narrow = values.cast(pa.float32())
    if pc.any(pc.and_(pc.is_finite(values), pc.invert(pc.is_finite(narrow)))).as_py():
        raise pa.ArrowInvalid("a number is too large")
    return narrow


def value_codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """Dictionary-encode a column: return the code of each row, and the values by code, with NULL last.

    >>> codes, values = value_codes(pa.chunked_array([[7, None], [None, 7]]))
    >>> codes.tolist(), values
    ([0, 1, 1, 0], [7, None])

    Arrow cannot unify dictionaries that contain NULL, so NULL is added after they are unified.
    """
    if pa.types.is_dictionary(column.type) and any(chunk.dictionary.null_count for chunk in column.chunks):
        column = column.cast(column.type.value_type)
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    chunks = encoded.unify_dictionaries().chunks
    values = [*chunks[0].dictionary.to_pylist(), None] if chunks else [None]
    parts = [pc.fill_null(chunk.indices.cast(pa.int64()), len(values) - 1).to_numpy() for chunk in chunks]
    return np.concatenate([np.empty(0, np.int64), *parts]), values


# Long enough to read a table as of last month, and to show how long upkeep has been late with removed files.
LOG_RETENTION: Final = "interval 30 days"
DELETED_FILE_RETENTION: Final = "interval 14 days"

CHECKPOINT_EVERY: Final = 20
"""Commits between checkpoints. Opening a table reads up to this many commit files after the last checkpoint."""

STATISTICS_PROPERTY: Final = "delta.dataSkippingStatsColumns"
TARGET_FILE_PROPERTY: Final = "delta.targetFileSize"
TARGET_FILE_BYTES: Final = 128 * 2**20
"""Size up to which small files are merged, unless the table's property `TARGET_FILE_PROPERTY` has another value."""


def statistics_columns(contract: Contract) -> tuple[str, ...]:
    """Return the columns whose minimum and maximum may be written to the Delta log.

    These are operational columns only: the log outlives the rows, so a personal value in it would survive its erasure.
    JSON text and lists are excluded because their order has no meaning, decimals because the log's JSON would round
    them, and partition columns because the path contains their values.
    """
    return tuple(
        column.name
        for column in contract.columns
        if column.class_ == "operational"
        and column.format != "json"
        and column.type not in {"int64_list", "decimal"}
        and column.name not in contract.partition
    )


def table_configuration(contract: Contract) -> dict[str, str]:
    """Return the Delta table properties of a table.

    Column mapping must stay off: with it, pyarrow readers silently return NULL. Deletion vectors are off because
    several readers do not support them.
    """
    return {
        "delta.checkpointInterval": str(CHECKPOINT_EVERY),
        STATISTICS_PROPERTY: ",".join(statistics_columns(contract)),
        "delta.deletedFileRetentionDuration": DELETED_FILE_RETENTION,
        "delta.enableDeletionVectors": "false",
        "delta.logRetentionDuration": LOG_RETENTION,
        TARGET_FILE_PROPERTY: str(TARGET_FILE_BYTES),
    }
