"""Putting a Delta table's live files before DataFusion so that it reads only what a query needs.

`SessionContext.register_table(name, DeltaTable)` works, but delta-rs's provider takes no conditions across the C
interface: every file of the table is read whatever the query asks. So the live files are taken from the Delta log and
registered

- one by one, if they are few and on a local disk: DataFusion's own Parquet reader then skips files by their date, and
  row groups and pages by their statistics;
- else as an Arrow dataset, since DataFusion takes seconds to plan hundreds of files: fragments are skipped by date and
  by the statistics of the Delta log, row groups by their own.
"""

from collections.abc import Collection
from datetime import date, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from datafusion import DataFrame, SessionContext, col, lit

from ranklake.lake.commit import files
from ranklake.lake.contracts.arrow import arrow_schema

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store import Lake

FEW_FILES: Final = 64
"""Files up to which a table is registered file by file: planning takes about a millisecond each."""


def register(
    ctx: SessionContext,
    lake: "Lake",
    contract: "Contract",
    handle: "DeltaTable | None",
    days: Collection[date] | None = None,
) -> None:
    """Register a table under its name, as of the handle's version.

    Parameters
    ----------
    handle
        None for a table that was never written: it is empty then, with its contract's columns and types.
    days
        Dates to register; default all.
    """
    schema = arrow_schema(contract).remove_metadata()
    live = [] if handle is None else files(handle, None if days is None else sorted(days)).to_pylist()
    if not live:
        ctx.register_record_batches(contract.table, [[pa.RecordBatch.from_pylist([], schema=schema)]])
    elif lake.is_local and len(live) <= FEW_FILES:
        frames = [_frame(ctx, lake, contract.table, row, schema) for row in live]
        ctx.register_view(contract.table, reduce(lambda left, right: left.union(right), frames))
    else:
        ctx.register_dataset(contract.table, _dataset(lake, contract.table, live, schema))


def _frame(ctx: SessionContext, lake: "Lake", table: str, row: dict[str, Any], schema: pa.Schema) -> DataFrame:
    """Return one file as a frame with the table's columns; its date is a constant, to hold conditions against."""
    stored = schema.remove(schema.get_field_index("date"))
    # as a URI: in a plain path brackets, stars and question marks would be patterns
    frame = ctx.read_parquet(Path(lake.path("tables", table, row["path"])).as_uri(), schema=stored)
    day = lit(pa.scalar(row["date"], pa.date32())).alias("date")
    return frame.select(*(day if name == "date" else col(f'"{name}"') for name in schema.names))


def _dataset(lake: "Lake", table: str, live: list[dict[str, Any]], schema: pa.Schema) -> ds.Dataset:
    filesystem = lake.arrow_filesystem()
    form = ds.ParquetFileFormat()
    fragments = [
        form.make_fragment(
            lake.path("tables", table, row["path"]), filesystem=filesystem, partition_expression=_known(row, schema)
        )
        for row in live
    ]
    return ds.FileSystemDataset(fragments, schema, form, filesystem)


def _known(row: dict[str, Any], schema: pa.Schema) -> ds.Expression:
    """Return what is true of every row of a file: its date, and the ranges of columns without NULLs."""
    known = ds.field("date") == pa.scalar(row["date"], pa.date32())
    for field in schema:
        low, high = row.get(f"min.{field.name}"), row.get(f"max.{field.name}")
        if low is None or high is None or row.get(f"null_count.{field.name}") != 0:
            continue
        if pa.types.is_timestamp(field.type) and not isinstance(low, datetime):
            continue
        known &= (ds.field(field.name) >= pa.scalar(low, field.type)) & (
            ds.field(field.name) <= pa.scalar(high, field.type)
        )
    return known
