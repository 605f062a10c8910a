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
    schema = _selected(contract, columns)
    for row in files(table, partitions).select(["path", "date"]).to_pylist():
        yield row["path"], _read_file(lake, contract.table, row["path"], row["date"], schema)


def _selected(contract: "Contract", columns: Sequence[str] | None) -> pa.Schema:
    schema = arrow_schema(contract)
    return schema if columns is None else pa.schema([schema.field(name) for name in columns], schema.metadata)


def _read_file(lake: "Lake", table: str, path: str, day: date | None, schema: pa.Schema) -> pa.Table:
    with lake.fs.open(lake.path("tables", table, path), "rb") as source:
        file = pq.ParquetFile(source)
        stored = set(file.schema_arrow.names)
        rows = file.read([name for name in schema.names if name in stored])
        count = file.metadata.num_rows
    arrays = []
    for column in schema:
        if column.name in stored:
            arrays.append(rows[column.name].cast(column.type))
        elif column.name == "date" and day is not None:
            arrays.append(pa.chunked_array([pa.repeat(pa.scalar(day, pa.date32()), count)]))
        else:
            arrays.append(pa.chunked_array([pa.nulls(count, column.type)]))
    return pa.table(arrays, schema=schema)
