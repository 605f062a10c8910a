"""Reads rows of Delta tables as Arrow, file by file, without a query engine.

For small lookups of the pipeline (keys, system tables, one partition). Users query with `ranklake.lake.query.sql`.

Each page is checked against its checksum. With `verify`, for code that rewrites rows, all bytes of a file are first
checked against the digest in its name (`ranklake.lake.tables.live_files`). A damaged file raises
`ranklake.lake.tables.live_files.DamagedFileError`, which names it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import arrow_schema, with_default
from ranklake.lake.tables.live_files import ForeignRowsError, files, reading, refuse_damaged
from ranklake.lake.tables.table_schema import refuse_misread
from ranklake.lake.tables.tables import at_version, latest, reading_log

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables


def read(
    tables: "Tables",
    contract: "Contract",
    columns: Sequence[str] | None = None,
    *,
    partitions: Sequence[date] | None = None,
    version: int | None = None,
) -> pa.Table:
    """Return rows of a table with its contract's Arrow types; no rows if the table does not exist.

    Parameters
    ----------
    columns
        Names to read, default all. A column that a file lacks has its default, or NULL.
    partitions
        UTC dates to read, default all.
    version
        Delta version to read; -1 means before the table was created.
    """
    schema = _select_columns(contract, columns)
    parts = [rows for _, rows in read_files(tables, contract, columns, partitions=partitions, version=version)]
    return pa.concat_tables([schema.empty_table(), *parts])


def read_files(
    tables: "Tables",
    contract: "Contract",
    columns: Sequence[str] | None = None,
    *,
    partitions: Sequence[date] | None = None,
    version: int | None = None,
) -> Iterator[tuple[str, pa.Table]]:
    """Yield (path relative to the table, its rows) for each live file; arguments as for `read`."""
    if version == -1:
        return
    table = latest(tables, contract.table)
    if table is None:
        return
    refuse_misread(table, contract)
    if version is not None:
        with reading_log(table):
            table = at_version(tables.store, contract.table, version)
    yield from read_some(tables, contract, files(table, partitions), columns)


def read_some(
    tables: "Tables",
    contract: "Contract",
    files: pa.Table,
    columns: Sequence[str] | None = None,
    *,
    verify: bool = False,
) -> Iterator[tuple[str, pa.Table]]:
    """Yield (path relative to the table, rows) for some files, given as rows of `live_files.files`.

    With `verify`, each file is first checked against its digest. Raises
    `ranklake.lake.tables.live_files.DamagedFileError`.
    """
    schema = _select_columns(contract, columns)
    for row in _rows_of(files):
        if verify:
            refuse_damaged(tables, contract.table, [row])
        with _open_file(tables.store, contract, row) as source:
            file = _file(source)
            rows = _fit(file.read(_stored_columns(file, schema)), file, row["date"], schema)
            rows.validate(full=True)  # invalid UTF-8 would raise errors later
        yield row["path"], rows


def read_batches(
    store: "Store",
    contract: "Contract",
    files: pa.Table,
    columns: Sequence[str],
    *,
    batch_rows: int,
    dictionaries: bool = False,
) -> Iterator[pa.Table]:
    """Yield the rows of some files, given as rows of `live_files.files`, in tables of `batch_rows` rows.

    The last table may be shorter. Small files are combined; of a large file, about one batch is in memory at a time.
    With `dictionaries`, text stays dictionary-encoded, which costs a fifth for code that compares words.
    """
    schema = _select_columns(contract, columns)
    texts = [field.name for field in schema if field.type == pa.string()] if dictionaries else []
    schema = _with_dictionaries(schema, texts)
    waiting = schema.empty_table()
    for row in _rows_of(files):
        with _open_file(store, contract, row) as source:
            footer = pq.read_metadata(source)
            stored = set(footer.schema.names)
            file = _file(source, footer, [name for name in texts if name in stored])
            for batch in file.iter_batches(batch_rows, columns=_stored_columns(file, schema)):
                part = _fit(pa.table(batch), file, row["date"], schema)
                waiting = pa.concat_tables([waiting, part])
                while waiting.num_rows >= batch_rows:
                    yield waiting.slice(0, batch_rows)
                    waiting = waiting.slice(batch_rows)
    if waiting.num_rows:
        yield waiting


def read_where(
    store: "Store",
    contract: "Contract",
    files: pa.Table,
    columns: Sequence[str],
    look: Sequence[str],
    choose: Callable[[pa.Table], pa.ChunkedArray],
) -> Iterator[pa.Table]:
    """Yield the rows of some files, given as rows of `live_files.files`, that a condition on a few columns selects.

    If no row of a row group is selected, its other columns are not read.

    Parameters
    ----------
    columns
        Columns of the result.
    look, choose
        Columns that `choose` needs, read with text dictionary-encoded; it returns a boolean mask of the rows.
    """
    look_schema, schema = _select_columns(contract, look), _select_columns(contract, columns)
    texts = [field.name for field in look_schema if field.type == pa.string()]
    look_schema = _with_dictionaries(look_schema, texts)
    for row in _rows_of(files):
        with _open_file(store, contract, row) as source:
            footer = pq.read_metadata(source)
            stored = set(footer.schema.names)
            look_file = _file(source, footer, [name for name in texts if name in stored])
            file = _file(source, footer)
            for group in range(footer.num_row_groups):
                looked = look_file.read_row_group(group, _stored_columns(look_file, look_schema), use_threads=False)
                mask = choose(_fit(looked, look_file, row["date"], look_schema))
                if pc.any(mask).as_py():
                    rows = file.read_row_group(group, _stored_columns(file, schema), use_threads=False)
                    yield _fit(rows, file, row["date"], schema).filter(mask)


def read_within(store: "Store", contract: "Contract", files: pa.Table, most_bytes: int) -> tuple[pa.Table, list[str]]:
    """Read as many files as fit into a limit of memory, the smallest first. Returns their rows and their paths.

    Parameters
    ----------
    files
        Rows of `ranklake.lake.tables.live_files.files`. Each file is opened once.
    most_bytes
        Limit for the decoded size that the footers imply. A text column that has a dictionary in any of the files stays
        dictionary-encoded, because long words may repeat in every row.
    """
    with ExitStack() as stack:
        opened = []
        for row in _rows_of(files):
            source = stack.enter_context(_source(store, contract, row))
            with reading(contract.table, row):
                opened.append((row, source, pq.read_metadata(source)))
        chosen, total_bytes = [], 0
        for size, place in sorted((decoded_bytes(footer), place) for place, (_, _, footer) in enumerate(opened)):
            total_bytes += size
            if total_bytes <= most_bytes:
                chosen.append(opened[place])
        repeated = {name for _, _, footer in chosen for name in _dictionaries(footer)}
        schema = arrow_schema(contract)
        texts = [field.name for field in schema if field.type == pa.string() and field.name in repeated]
        schema = _with_dictionaries(schema, texts)
        parts = [schema.empty_table()]
        for row, source, footer in chosen:
            stored = set(footer.schema.names)
            with reading(contract.table, row):
                file = _file(source, footer, [name for name in texts if name in stored])
                parts.append(
                    _fit(file.read(_stored_columns(file, schema), use_threads=False), file, row["date"], schema)
                )
        rows = pa.concat_tables(parts)
        for name in texts:
            if _repeats_little(rows[name]):
                rows = rows.set_column(schema.get_field_index(name), name, rows[name].cast(pa.string()))
        return rows, [row["path"] for row, _, _ in chosen]


def _rows_of(files: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = files.select(["path", "date", "size_bytes", "num_records"]).to_pylist()
    return rows


def _source(store: "Store", contract: "Contract", row: Mapping[str, Any]) -> pa.NativeFile:
    return store.open_file(store.path("tables", contract.table, row["path"]), row["size_bytes"])


@contextmanager
def _open_file(store: "Store", contract: "Contract", row: Mapping[str, Any]) -> Iterator[pa.NativeFile]:
    """Open a data file. Damage in the block is raised as `DamagedFileError` with the file's name."""
    with _source(store, contract, row) as source, reading(contract.table, row):
        yield source


def _file(
    source: pa.NativeFile, footer: pq.FileMetaData | None = None, dictionaries: Sequence[str] | None = None
) -> pq.ParquetFile:
    return pq.ParquetFile(
        source, metadata=footer, read_dictionary=dictionaries or None, page_checksum_verification=True
    )


def _repeats_little(column: pa.ChunkedArray) -> bool:
    """Whether a text column needs at most twice as much memory without its dictionaries."""
    words = plain = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary).fill_null(0).to_numpy()
        counts = np.bincount(chunk.indices.drop_null().to_numpy(), minlength=len(lengths))
        words += int(lengths.sum())
        plain += int(lengths.astype(np.int64) @ counts)
    return plain <= 2 * words


def decoded_bytes(footer: pq.FileMetaData) -> int:
    """Estimate the memory of a file's rows in bytes, with repeating text dictionary-encoded."""
    total = 0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(footer.num_columns)):
            words = column.total_uncompressed_size if column.physical_type == "BYTE_ARRAY" else 0
            total += 8 * column.num_values + words
    return total


def _dictionaries(footer: pq.FileMetaData) -> set[str]:
    """Return the text columns that have a dictionary in any row group."""
    return {
        column.path_in_schema
        for group in map(footer.row_group, range(footer.num_row_groups))
        for column in map(group.column, range(footer.num_columns))
        if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page
    }


def _with_dictionaries(schema: pa.Schema, texts: Sequence[str]) -> pa.Schema:
    for name in texts:
        at = schema.get_field_index(name)
        schema = schema.set(at, schema.field(at).with_type(pa.dictionary(pa.int32(), pa.string())))
    return schema


def _select_columns(contract: "Contract", columns: Sequence[str] | None) -> pa.Schema:
    schema = arrow_schema(contract)
    return schema if columns is None else pa.schema([schema.field(name) for name in columns], schema.metadata)


def _stored_columns(file: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    stored = set(file.schema_arrow.names)
    return [name for name in schema.names if name in stored]


def _fit(rows: pa.Table, file: pq.ParquetFile, day: date | None, schema: pa.Schema) -> pa.Table:
    """Return rows of a file with the contract's types. Columns that the file lacks have their default, or NULL.

    Raises `ForeignRowsError` if ranklake cannot have written the rows.
    """
    stored = set(file.schema_arrow.names)
    if len(stored) < len(file.schema_arrow.names):
        raise ForeignRowsError("two columns have one name")
    arrays = []
    for column in schema:
        if column.name in stored:
            values = rows[column.name]
            values = values if values.type == column.type else values.cast(column.type)
            values = with_default(values, column, rows.num_rows)
        elif column.name == "date" and day is not None:
            values = pa.chunked_array([pa.repeat(pa.scalar(day, pa.date32()), rows.num_rows)])
        else:
            values = with_default(None, column, rows.num_rows)
        if not column.nullable and values.null_count:
            raise ForeignRowsError(f"rows have no {column.name}")
        arrays.append(values)
    return pa.table(arrays, schema=schema)
