"""Constants: columns with the same value in all rows of a segment, which are stored in its footer instead.

`ranklake.lake.ingest.footer_columns` reads footers that are not trusted; this module handles our own segments.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranklake.lake.contracts.arrow import ARROW_TYPES, statistics_columns
from ranklake.lake.contracts.model import Contract
from ranklake.segments.segment import CONSTANT_CHARACTERS, REFUSED

_BITS: Final = {"int32": np.uint32, "int64": np.uint64, "float32": np.uint32, "float64": np.uint64}
"""Numbers are compared by their bits: 0.0 differs from -0.0."""


@lru_cache(maxsize=64)
def _candidates(contract: Contract) -> dict[str, str]:
    """Return the types of the columns whose values a footer may contain: those with statistics in the Delta log."""
    allowed = {column.name: column.type for column in contract.columns if column.name in statistics_columns(contract)}
    kinds = {"string", "bool", *_BITS}
    return {name: kind for name, kind in allowed.items() if name not in {"slot", "ts"} and kind in kinds}


def constants_in(table: pa.Table, contract: Contract) -> dict[str, dict[str, Any]]:
    """Return the constants of some rows in the footer's form: ``{type: {column: value}}``.

    Parameters
    ----------
    table
        Rows of a segment under the contract.
    """
    constants: dict[str, dict[str, Any]] = {}
    if not len(table) or REFUSED in table.column_names:
        return constants
    candidates = _candidates(contract)
    for name in table.column_names:
        kind = candidates.get(name)
        column = table[name]
        value = None if kind is None or column.null_count else _constant(column, kind)
        if kind is not None and value is not None:
            constants.setdefault(kind, {})[name] = value
    return constants


def _constant(column: pa.ChunkedArray, kind: str) -> Any:  # noqa: ANN401 - any type of column
    """Return the value of all rows; None if values differ, or a footer cannot contain the value."""
    if kind in _BITS:
        value = column[0].as_py()
        bits = [_bits(chunk, kind) for chunk in column.chunks if len(chunk)]
        return value if isfinite(value) and all((part == bits[0][0]).all() for part in bits) else None
    values = column.unique()
    value = values[0].as_py() if len(values) == 1 else None
    return None if isinstance(value, str) and len(value) > CONSTANT_CHARACTERS else value


def constant_columns(constants: Mapping[str, Mapping[str, Any]], rows: int) -> dict[str, pa.Array]:
    """Return the columns of a footer's constants, repeated for all rows."""
    return {
        name: pa.repeat(pa.scalar(value, ARROW_TYPES[kind]), rows)
        for kind, values in constants.items()
        for name, value in values.items()
    }


def _bits(chunk: pa.Array, kind: str) -> npt.NDArray[Any]:
    """Return the bits of numbers without NULL, read from their buffer because `to_numpy` would import pandas."""
    bits = np.dtype(_BITS[kind])
    return np.frombuffer(chunk.buffers()[1], bits, len(chunk), chunk.offset * bits.itemsize)
