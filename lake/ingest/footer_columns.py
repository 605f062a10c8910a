"""Columns that have one value in all rows of a segment and are stored in its footer: identity and constants."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranklake.lake.contracts.arrow import ARROW_TYPES
from ranklake.segments.segment import CONSTANT_CHARACTERS, IDENTITY, REFUSED, REFUSED_ROW, SegmentFooter

MOST_CONSTANTS: Final = 1_000
_IDENTITY_TYPES: Final = {"run": "string", "attempt": "int32", "rank": "int32", "incarnation": "int64"} | {
    "segment": "int32"
}
_OWN: Final = frozenset({*IDENTITY, "slot", "ts", REFUSED, REFUSED_ROW})
"""Columns that a footer must not have as constants: they are in the identity, or rows are checked by them."""
_NUMPY_TYPES: Final[dict[str, type[np.generic]]] = {
    "bool": np.bool_,
    "int32": np.int32,
    "int64": np.int64,
    "float32": np.float32,
    "float64": np.float64,
}
_MOST: Final = {"float32": float(np.finfo(np.float32).max), "float64": float(np.finfo(np.float64).max)}
_WHOLE: Final = {"int32": range(-(2**31), 2**31), "int64": range(-(2**63), 2**63)}


def constants_fault(constants: object) -> str | None:
    """Return what is wrong with the constants of a footer, as a clause without any value; None if they are valid."""
    if not isinstance(constants, dict) or not all(isinstance(values, dict) for values in constants.values()):
        return "is no object of objects"
    if not constants.keys() <= {"string", *_NUMPY_TYPES}:
        return "has a type that no constant has"
    names = [name for values in constants.values() for name in values]
    if len(names) > MOST_CONSTANTS:
        return f"has more than {MOST_CONSTANTS} columns"
    if len(set(names)) < len(names) or not _OWN.isdisjoint(names):
        return "has a column twice, or one that is said otherwise"
    sound = all(_is_of(value, kind) for kind, values in constants.items() for value in values.values())
    return None if sound else "has a value that is not of its type"


def _is_of(value: object, kind: str) -> bool:
    if kind == "string":
        return type(value) is str and len(value) <= CONSTANT_CHARACTERS
    if kind == "bool":
        return type(value) is bool
    if kind in _MOST:
        return type(value) is float and abs(value) <= _MOST[kind]  # NaN is not
    return type(value) is int and value in _WHOLE[kind]


def constant_names(footer: SegmentFooter) -> list[str]:
    """Return the names of the columns that a footer has as constants."""
    return [name for values in footer.constants.values() for name in values]


def with_mixed_constants(tables: Sequence[pa.Table], footers: Sequence[SegmentFooter]) -> list[pa.Table]:
    """Add to each segment's rows those of its constants that are columns in the file of another segment."""
    types = {field.name: field.type for table in tables for field in table.schema}
    return [_with_constants_among(types, table, footer) for table, footer in zip(tables, footers, strict=True)]


def _with_constants_among(types: dict[str, pa.DataType], rows: pa.Table, footer: SegmentFooter) -> pa.Table:
    for kind, values in footer.constants.items():
        for name in values.keys() & types.keys():
            column = _column(kind, [values[name]], [rows.num_rows])
            is_plain_text = kind == "string" and not pa.types.is_dictionary(types[name])
            rows = rows.append_column(name, column.cast(pa.string()) if is_plain_text else column)
    return rows


def with_footer_columns(rows: pa.Table, footers: Sequence[SegmentFooter], counts: Sequence[int]) -> pa.Table:
    """Add the identity and constants from footers as columns, unless the rows have the column.

    Parameters
    ----------
    rows
        Rows of several segments, in their order.
    counts
        Number of rows of each footer's segment.
    """
    present = set(rows.column_names)
    for name in IDENTITY:
        if name not in present and not (name == "rank" and any(footer.ranks for footer in footers)):
            column = _column(_IDENTITY_TYPES[name], [getattr(footer, name) for footer in footers], counts)
            rows = rows.append_column(pa.field(name, column.type, nullable=False), column)
    constants = {(kind, name) for footer in footers for kind, values in footer.constants.items() for name in values}
    for kind, name in sorted(constants):
        if name not in present:
            values = [footer.constants.get(kind, {}).get(name) for footer in footers]
            rows = rows.append_column(name, _column(kind, values, counts))
    return rows


def _column(kind: str, values: Sequence[Any], counts: Sequence[int]) -> pa.Array:
    """Return a column with `counts[i]` times the value i; NULL for None. Text is dictionary-encoded."""
    is_none = [value is None for value in values]
    null_mask = np.repeat(is_none, counts) if any(is_none) else None
    if kind == "string":
        texts = dict.fromkeys(value for value in values if value is not None)
        indexes = {text: index for index, text in enumerate(texts)}
        repeated = _repeat([0 if value is None else indexes[value] for value in values], np.int32, counts)
        return pa.DictionaryArray.from_arrays(pa.array(repeated, mask=null_mask), pa.array(indexes, pa.string()))
    repeated = _repeat([0 if value is None else value for value in values], _NUMPY_TYPES[kind], counts)
    return pa.array(repeated, ARROW_TYPES[kind], mask=null_mask)


def _repeat(values: Sequence[Any], kind: type[np.generic], counts: Sequence[int]) -> npt.NDArray[Any]:
    return np.repeat(np.array(values, kind), counts)
