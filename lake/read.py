"""Rows of a Delta table as Arrow, file by file, without a query engine.

For the pipeline's own small looks (keys, system tables, one partition). People ask through `ranklake.lake.query`.
"""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ranklake.lake.commit import files
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store import Lake


def read(
    lake: "Lake",
    contract: "Contract",
    columns: Sequence[str] | None = None,
    *,
    partitions: Sequence[date] | None = None,
    version: int | None = None,
) -> pa.Table:
    """Return rows of a table under its contract's Arrow types; no rows where it was never written.

    Parameters
    ----------
    columns
        Names to read, default all; a column younger than a file is NULL there.
    partitions
        UTC dates to read, default all.
    version
        Delta version to read as of; -1 means before the table was made.
    """
    schema = _selected(contract, columns)
    parts = [rows for _, rows in read_files(lake, contract, columns, partitions=partitions, version=version)]
    return pa.concat_tables([schema.empty_table(), *parts])


def read_files(
    lake: "Lake",
    contract: "Contract",
    columns: Sequence[str] | None = None,
    *,
    partitions: Sequence[date] | None = None,
    version: int | None = None,
) -> Iterator[tuple[str, pa.Table]]:
    """Yield (path relative to the table, its rows) for each live file; arguments as for `read`."""
    if version == -1:
        return
    table = delta_table(lake, contract.table)
    if table is None:
        return
    if version is not None:
        table = DeltaTable(lake.table_uri(contract.table), version=version, storage_options=lake.storage)
    yield from read_some(lake, contract, files(table, partitions), columns)


def read_some(
    lake: "Lake", contract: "Contract", some: pa.Table, columns: Sequence[str] | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """Yield (path relative to the table, its rows) for some files: rows of `ranklake.lake.commit.files`."""
    schema = _selected(contract, columns)
    for row in some.select(["path", "date", "size_bytes"]).to_pylist():
        with lake.open_file(lake.path("tables", contract.table, row["path"]), row["size_bytes"]) as source:
            file = pq.ParquetFile(source)
            yield row["path"], _fit(file.read(_stored(file, schema)), file, row["date"], schema)


def read_batches(
    lake: "Lake",
    contract: "Contract",
    some: pa.Table,
    columns: Sequence[str],
    *,
    batch_rows: int,
    dictionaries: bool = False,
) -> Iterator[pa.Table]:
    """Yield the rows of some files (rows of `ranklake.lake.commit.files`) in tables of `batch_rows`, the last shorter.

    Small files come together in one table; of a large one no more than about a batch is held at a time. With
    `dictionaries` text stays dictionary-typed, as it is stored: a fifth of the cost for those who look at words.
    """
    schema = _selected(contract, columns)
    texts = [field.name for field in schema if field.type == pa.string()] if dictionaries else []
    for name in texts:
        at = schema.get_field_index(name)
        schema = schema.set(at, schema.field(at).with_type(pa.dictionary(pa.int32(), pa.string())))
    waiting = schema.empty_table()
    for row in some.select(["path", "date", "size_bytes"]).to_pylist():
        with lake.open_file(lake.path("tables", contract.table, row["path"]), row["size_bytes"]) as source:
            footer = pq.read_metadata(source)
            stored = set(footer.schema.names)
            file = pq.ParquetFile(source, metadata=footer, read_dictionary=[name for name in texts if name in stored])
            for batch in file.iter_batches(batch_rows, columns=_stored(file, schema)):
                part = _fit(pa.table(batch), file, row["date"], schema)
                waiting = pa.concat_tables([waiting, part])
                while waiting.num_rows >= batch_rows:
                    yield waiting.slice(0, batch_rows)
                    waiting = waiting.slice(batch_rows)
    if waiting.num_rows:
        yield waiting


def _selected(contract: "Contract", columns: Sequence[str] | None) -> pa.Schema:
    schema = arrow_schema(contract)
    return schema if columns is None else pa.schema([schema.field(name) for name in columns], schema.metadata)


def _stored(file: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    stored = set(file.schema_arrow.names)
    return [name for name in schema.names if name in stored]


def _fit(rows: pa.Table, file: pq.ParquetFile, day: date | None, schema: pa.Schema) -> pa.Table:
    """Return rows of a file under the contract's types: the partition's date, and NULL for what is younger than it."""
    stored = set(file.schema_arrow.names)
    arrays = []
    for column in schema:
        if column.name in stored:
            found = rows[column.name]
            arrays.append(found if found.type == column.type else found.cast(column.type))
        elif column.name == "date" and day is not None:
            arrays.append(pa.chunked_array([pa.repeat(pa.scalar(day, pa.date32()), rows.num_rows)]))
        else:
            arrays.append(pa.chunked_array([pa.nulls(rows.num_rows, column.type)]))
    return pa.table(arrays, schema=schema)
