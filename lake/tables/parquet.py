"""Writes a Parquet file of a Delta table, verifies it, and describes it for an add action.

`DeltaTable.create_write_transaction` does not check its arguments. Therefore columns, number of rows, minima and maxima
for the add action are read back from the file's footer. Minima and maxima exist only for the contract's statistics
columns, and are never NaN.

The encoding of each column was chosen by measurements:

| columns                                  | encoding                 | reason                                        |
|---|---|---|
| identity of a row (rank, incarnation, …) | plain                    | long runs of one value, which zstd compresses |
| other whole numbers, times               | delta, bit-packed        | values increase                               |
| text                                     | dictionary               | values repeat                                 |
| floats                                   | byte stream split        | exponents repeat, other bytes are noise       |
| driver readings that repeat              | dictionary               | few distinct values in no order               |
"""

import hashlib
import json
import math
import os
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema, default_of, statistics_columns, with_default
from ranklake.lake.store.reachability import cannot_write
from ranklake.lake.tables.live_files import DataFile
from ranklake.lake.tables.order import Indices, sort_names, sort_order, take_rows

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store

ROW_GROUP_ROWS = 262_144
_DICTIONARY_BYTES = 2**20
_DAY_US = 86_400_000_000


class FileMismatchError(RanklakeError):
    """A written file does not contain the rows that its add action would describe."""


def append_files(store: "Store", contract: "Contract", rows: pa.Table, number: int) -> list[DataFile]:
    """Write rows, which must have `date`, as one new file per date, without a commit."""
    days = rows["date"].combine_chunks().dictionary_encode()
    return [
        write_partition(store, contract, rows.filter(pc.equal(days.indices, code)), day.as_py(), number)
        for code, day in enumerate(days.dictionary)
    ]


def write_days(store: "Store", contract: "Contract", rows: pa.Table, plan: int) -> list[DataFile]:
    """Write rows as one new file per UTC date of ``ts``; parameters and errors as for `write_partition`."""
    moments = rows["ts"].cast(pa.int64()).to_numpy()
    first = int(moments.min()) // _DAY_US
    if first == int(moments.max()) // _DAY_US:
        return [write_partition(store, contract, rows, _day(first), plan)]
    days = moments // _DAY_US
    order = np.argsort(days, kind="stable")
    ordered = rows.combine_chunks().take(pa.array(order))
    days_present, begins = np.unique(days[order], return_index=True)
    ends = [*begins[1:].tolist(), len(order)]
    return [
        write_partition(store, contract, ordered.slice(begin, end - begin), _day(day), plan)
        for day, begin, end in zip(days_present.tolist(), begins.tolist(), ends, strict=True)
    ]


def _day(number: int) -> date:
    return date(1970, 1, 1) + timedelta(days=number)


def write_partition(
    store: "Store", contract: "Contract", rows: pa.Table, day: date, plan: int, *, merged: str = ""
) -> DataFile:
    """Sort rows of one date as the contract defines, and write them as one new file of its table.

    The file's name contains the SHA-256 of its bytes. On return the file is complete and, on a local disk, synced.
    After an error a file without a commit may remain.

    Raises `FileMismatchError` if the file does not read back as written, and `LakeUnreachableError` if it cannot be
    written.

    Parameters
    ----------
    rows
        Rows of `day` with the contract's types; text may be dictionary-encoded. `date` and columns without values may
        be missing; they are not written, and readers return NULL. A column with a default gets it for missing values.
    plan
        Number of the plan. It is part of the file's name, so that orphans can be recognized.
    merged
        `files_digest` of the replaced files, if the new file contains exactly their rows.
    """
    body = _body_of(contract, rows)
    name = f"date={day.isoformat()}/p{plan:010d}-{uuid.uuid4().hex}"
    place = store.path("tables", contract.table, name)
    try:
        ending = f"{merged and '~'}{merged}.parquet"
        if store.is_local:
            digest, size_bytes = _write_local(place, ending, contract, body)
        else:
            digest, size_bytes = _write_remote(store, place, ending, contract, body)
    except OSError as error:
        raise cannot_write(f"{place}.parquet", error) from error
    path = f"{name}-{digest}{merged and '~'}{merged}.parquet"
    footer = _read_back(store, store.path("tables", contract.table, path), body)
    nulls = {name: body[name].null_count for name in body.column_names}
    return DataFile(contract.table, path, day, body.num_rows, size_bytes, statistics(contract, footer, nulls))


def _read_back(store: "Store", full: str, body: pa.Table) -> pq.FileMetaData:
    """Return the footer of a written file. Raises `FileMismatchError` or `LakeUnreachableError`."""
    try:
        with store.fs.open(full, "rb") as source:
            written = pq.ParquetFile(source)
            if written.metadata.num_rows == body.num_rows and _same_columns(written.schema_arrow, body.schema):
                return written.metadata
    except OSError as error:
        if error.errno is not None:  # of the disk or the store; Parquet's own errors have no number
            raise cannot_write(full, error) from error
    except pa.ArrowInvalid:
        pass  # invalid Parquet
    raise FileMismatchError("a data file does not read back as written", where=full, hint="check the storage")


def _write_local(place: str, ending: str, contract: "Contract", body: pa.Table) -> tuple[str, int]:
    """Encode a file to disk, then rename it with its digest. Returns digest and size in bytes.

    Raises `OSError`. If the process is killed, a file without a digest in its name remains.
    """
    os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120 - fsspec paths are strings
    scratch = f"{place}{ending}"
    # Arrow's file is faster than fsspec's, which would handle each page in Python.
    with pa.OSFile(scratch, "wb") as sink:
        _encode(sink, contract, body)
        size_bytes = int(sink.tell())
    with open(scratch, "rb") as file:  # noqa: PTH123 - likewise
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.rename(scratch, f"{place}-{digest}{ending}")  # noqa: PTH104 - likewise
        os.fsync(file.fileno())  # a power cut must not lose a file that a commit names
    return digest, size_bytes


def _write_remote(store: "Store", place: str, ending: str, contract: "Contract", body: pa.Table) -> tuple[str, int]:
    """Encode a file in memory and upload it, as objects cannot be renamed. Otherwise as `_write_local`."""
    sink = pa.BufferOutputStream()
    _encode(sink, contract, body)
    data = sink.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    with store.fs.open(f"{place}-{digest}{ending}", "wb") as target:
        target.write(memoryview(data))
    return digest, len(data)


def _encode(sink: pa.NativeFile, contract: "Contract", body: pa.Table) -> None:
    options = writer_options(contract, body, min(body.num_rows, ROW_GROUP_ROWS))
    with pq.ParquetWriter(sink, body.schema, **options) as writer:
        for group in _groups(contract, body):
            writer.write_table(group, row_group_size=ROW_GROUP_ROWS)


def _body_of(contract: "Contract", rows: pa.Table) -> pa.Table:
    """Return the columns to write, cast to the contract's types; dictionaries of text are kept."""
    fields, columns = [], []
    for field in arrow_schema(contract):
        if field.name == "date":  # it is part of the path
            continue
        column = rows[field.name] if field.name in rows.column_names else None
        if column is not None and field.nullable and column.null_count == rows.num_rows > 0:
            column = None
        if default_of(field) is not None and (column is None or column.null_count):
            column = with_default(None if column is None else column.cast(field.type), field, rows.num_rows)
        if column is None:
            continue
        column = trim_dictionary(column) if pa.types.is_dictionary(column.type) else column.cast(field.type)
        fields.append(pa.field(field.name, column.type, field.nullable))
        columns.append(column)
    return pa.table(columns, schema=pa.schema(fields))


def _groups(contract: "Contract", body: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in the contract's order, one row group at a time, without copying all rows at once."""
    order, settled = sort_order(body, sort_names(contract))
    if order is None:
        for at in range(0, body.num_rows, ROW_GROUP_ROWS):
            group = body.slice(at, ROW_GROUP_ROWS)
            yield group if body.num_rows <= ROW_GROUP_ROWS else _trim_large_dictionaries(group)
        return
    starts = range(0, body.num_rows, ROW_GROUP_ROWS)
    if _span_rows(order, starts) > 2 * body.num_rows:  # row groups would read many chunks repeatedly
        body = body.combine_chunks()
    for at in starts:
        chosen = order[at : at + ROW_GROUP_ROWS]
        low, high = int(chosen.min()), int(chosen.max()) + 1
        places = chosen - low
        columns = []
        for name, column in zip(body.column_names, body.columns, strict=True):
            if name in settled:
                columns.append(column.slice(at, len(chosen)))
            else:
                columns.append(take_rows(_combine_chunks(column.slice(low, high - low)), places))
        group = pa.table(columns, schema=body.schema)
        yield group if body.num_rows <= ROW_GROUP_ROWS else _trim_large_dictionaries(group)


def _span_rows(order: Indices, starts: range) -> int:
    """Return the number of rows between the first and the last row of each row group, summed over the groups."""
    groups = (order[at : at + ROW_GROUP_ROWS] for at in starts)
    return sum(int(group.max()) - int(group.min()) + 1 for group in groups)


def _trim_large_dictionaries(group: pa.Table) -> pa.Table:
    """Remove unused values from a row group's large dictionaries, because each row group stores its dictionaries."""
    for place, (field, column) in enumerate(zip(group.schema, group.columns, strict=True)):
        if not pa.types.is_dictionary(field.type) or column.nbytes <= _DICTIONARY_BYTES + 4 * len(column):
            continue
        group = group.set_column(place, field, trim_dictionary(column))
    return group


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _same_columns(written: pa.Schema, expected: pa.Schema) -> bool:
    """Whether a file has the expected columns. Dictionary-encoded text reads back as plain text."""
    plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in expected]
    return bool(written.names == expected.names and written.types == plain)


def trim_dictionaries(rows: pa.Table) -> pa.Table:
    """Remove values that no row uses from all dictionaries of a table."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(place, field, trim_dictionary(rows.column(place)))
    return rows


def trim_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary-encoded column with a single dictionary, without values that no row uses.

    Parquet's writer stops dictionary encoding when a chunk has another dictionary than the one before.

    >>> words = pa.chunked_array([pa.array(["ann", "bob"]).dictionary_encode()])
    >>> trim_dictionary(words.slice(1)).chunk(0).dictionary.to_pylist()
    ['bob']
    """
    column = column.unify_dictionaries()
    if not column.num_chunks:
        return column
    words = column.chunk(0).dictionary
    used = np.zeros(len(words), np.bool_)
    for chunk in column.chunks:
        used[chunk.indices.drop_null().to_numpy()] = True
    if used.all():
        return column
    kept, places = words.filter(pa.array(used)), pa.array(np.cumsum(used) - 1, pa.int32())
    return pa.chunked_array(
        [pa.DictionaryArray.from_arrays(pc.take(places, chunk.indices), kept) for chunk in column.chunks]
    )


STATISTIC_CHARACTERS = 64


def statistics(contract: "Contract", footer: pq.FileMetaData, nulls: Mapping[str, int]) -> str:
    """Return Delta statistics of the contract's statistics columns as JSON.

    Minimum and maximum are omitted for long text: truncated values would be wrong, as some readers use them to answer
    MIN and MAX. They are also omitted for text by which rows are not sorted, as no file could be skipped by them.

    Parameters
    ----------
    footer
        Footer of the file.
    nulls
        Number of NULLs of each written column. A column that is not written has only NULL.
    """
    names = statistics_columns(contract)
    extremes = _extremes(footer, set(names))
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for name in names:
        if name not in extremes:
            continue
        least, most = extremes[name]
        if isinstance(least, float) and not (math.isfinite(least) and math.isfinite(most)):
            continue  # JSON has no infinity
        if isinstance(least, bool) or (isinstance(most, str) and max(len(least), len(most)) > STATISTIC_CHARACTERS):
            continue
        low[name], high[name] = _statistics_value(least), _statistics_value(most)
    counts = {name: nulls.get(name, footer.num_rows) for name in names}
    return json.dumps(
        {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": counts}, allow_nan=False
    )


def _extremes(footer: pq.FileMetaData, names: set[str]) -> dict[str, tuple[Any, Any]]:
    """Return (minimum, maximum) of columns. Omits a column if a row group has values but no statistics for it."""
    extremes: dict[str, list[tuple[Any, Any]]] = {}
    lacking: set[str] = set()
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for index in range(footer.num_columns):
            column = group.column(index)
            name = column.path_in_schema
            if name not in names:
                continue
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                if statistics is None or statistics.null_count != group.num_rows:
                    lacking.add(name)
                continue
            try:
                extremes.setdefault(name, []).append((statistics.min, statistics.max))
            except (OverflowError, ValueError):  # a time outside Python's range
                lacking.add(name)
    return {
        name: (min(low for low, _ in pairs), max(high for _, high in pairs))
        for name, pairs in extremes.items()
        if name not in lacking
    }


def _statistics_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return value


_RUNS: Final = frozenset({"attempt", "rank", "incarnation", "segment"})
_READINGS: Final = frozenset({"gpu_samples", "host_samples"})
"""Tables with readings of counters and sensors, in the resolution of a driver."""
_SAMPLE_ROWS: Final = 8192
"""Number of rows that are examined for repeating readings. Temperatures repeat. Values of a counter do not; they would
fill a dictionary until the writer abandons it."""
_BLOOM: Final = frozenset({"trace_id", "request_id"})
"""Columns with a Bloom filter: people look up single values, which are scattered over all files."""
_LEVEL_OF_DOUBLES: Final = 3
"""zstd level for 64-bit floats, where it saves 5 %. For other columns it would take a third more time and save nothing,
so they use the default, 1."""


def writer_options(contract: "Contract", rows: pa.Table, group_rows: int) -> dict[str, Any]:
    """Return Parquet writer options for columns of a contract.

    Minima and maxima are written for the contract's statistics columns. For text they are written only if rows are
    sorted by it: otherwise each row group has nearly the whole range, and computing it takes as long as writing. For
    floats they are omitted if any value is NaN: Parquet ignores NaN in both, so readers would skip files wrongly.

    Parameters
    ----------
    rows
        The rows to write; text may be dictionary-encoded.
    group_rows
        Rows of a row group.
    """
    schema = rows.schema
    encoding: dict[str, str] = {}
    dictionaries = []
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        is_integer = pa.types.is_integer(kind) or pa.types.is_timestamp(kind)
        is_number = is_integer or pa.types.is_floating(kind)
        is_reading = is_number and contract.table in _READINGS and field.name not in _RUNS | {"slot", "ts", "step"}
        if pa.types.is_string(kind) or (is_reading and _has_repeats(rows[field.name])):
            dictionaries.append(field.name)
        elif field.name in _RUNS:
            encoding[field.name] = "PLAIN"
        elif is_integer:
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
            name for name in schema.names if name in _min_max_columns(contract) and not _has_nan(rows[name])
        ],
        "write_page_index": True,
        "write_page_checksum": True,
        "bloom_filter_options": {name: {"ndv": group_rows, "fpp": 0.01} for name in schema.names if name in _BLOOM},
        "store_schema": False,
    }


@lru_cache(maxsize=256)
def _min_max_columns(contract: "Contract") -> frozenset[str]:
    """Return the columns whose minima and maxima are written, unless a value is NaN."""
    columns = map(contract.column, statistics_columns(contract))
    return frozenset(column.name for column in columns if column.type != "string" or column.name in contract.sort)


def _has_repeats(column: pa.ChunkedArray) -> bool:
    sample = column.slice(0, _SAMPLE_ROWS)
    return bool(2 * pc.count_distinct(sample).as_py() <= len(sample) - sample.null_count)


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Whether the column is a float and any value is NaN."""
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())
