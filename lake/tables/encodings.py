"""How each column of a contract is written: chosen by measuring.

| columns                                  | encoding                 | because                                       |
|---|---|---|
| whose row it is (rank, incarnation, …)   | as they are              | long runs of one value: zstd alone does them  |
| other whole numbers, times               | differences, bit-packed  | they climb                                    |
| text                                     | dictionary               | it repeats                                    |
| floats                                   | split by byte            | exponents repeat, the rest is noise           |
| readings of a driver that repeat         | dictionary               | few distinct values in no order               |
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.delta import statistics_columns

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

_RUNS: Final = frozenset({"attempt", "rank", "incarnation", "segment"})
_READINGS: Final = frozenset({"gpu_samples", "host_samples"})
"""Tables whose numbers are readings of counters and sensors, in the resolution of a driver."""
_SAMPLE_ROWS: Final = 8192
"""Looked at to see whether readings repeat. Temperatures do; what a counter has come to does not, and would fill its
dictionary until the writer gives it up."""
_BLOOM: Final = frozenset({"trace_id", "request_id"})
"""Columns that people look up single values of, and that no order of rows brings together."""
_LEVEL_OF_DOUBLES: Final = 3
"""zstd, whose default is 1: level 3 saves 5 % on floats of 64 bits, and nothing elsewhere for a third more time."""


def writer_options(contract: "Contract", rows: pa.Table, group_rows: int) -> dict[str, Any]:
    """Return Parquet writer options for columns of a contract.

    Parameters
    ----------
    rows
        What is about to be written; text may be dictionary-typed.
    group_rows
        Rows of a row group.

    Minima and maxima are kept of the contract's statistics columns, of text only where the rows are sorted by it: of
    other text each row group has the whole range, and finding it costs as much as writing it. Of floats none are kept
    where one is NaN: Parquet leaves it out of both, and readers take it for a value between them, or for the only one.
    """
    schema = rows.schema
    encoding: dict[str, str] = {}
    dictionaries = []
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        whole = pa.types.is_integer(kind) or pa.types.is_timestamp(kind)
        number = whole or pa.types.is_floating(kind)
        reading = number and contract.table in _READINGS and field.name not in _RUNS | {"slot", "ts", "step"}
        if pa.types.is_string(kind) or (reading and _repeats(rows[field.name])):
            dictionaries.append(field.name)
        elif field.name in _RUNS:
            encoding[field.name] = "PLAIN"
        elif whole:
            encoding[field.name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_floating(kind):
            encoding[field.name] = "BYTE_STREAM_SPLIT"
    doubles = {field.name: _LEVEL_OF_DOUBLES for field in schema if field.type == pa.float64()}
    return {
        "compression": "zstd",
        "compression_level": doubles or None,
        "use_dictionary": dictionaries,
        "column_encoding": encoding,
        "write_statistics": [
            name for name in schema.names if name in _has_extremes(contract) and not _has_nan(rows[name])
        ],
        "write_page_index": True,
        "write_page_checksum": True,
        "bloom_filter_options": {name: {"ndv": group_rows, "fpp": 0.01} for name in schema.names if name in _BLOOM},
        "store_schema": False,
    }


@lru_cache(maxsize=256)
def _has_extremes(contract: "Contract") -> frozenset[str]:
    """Return the columns whose minima and maxima a file keeps, unless one of the values is NaN."""
    kept = map(contract.column, statistics_columns(contract))
    return frozenset(one.name for one in kept if one.type != "string" or one.name in contract.sort)


def _repeats(column: pa.ChunkedArray) -> bool:
    sample = column.slice(0, _SAMPLE_ROWS)
    return bool(2 * pc.count_distinct(sample).as_py() <= len(sample) - sample.null_count)


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Say whether one of its values is no number."""
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())
