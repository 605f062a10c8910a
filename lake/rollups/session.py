"""In-memory tables of a rollup's session, beside those of the lake."""

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext

AFFECTED: Final = "affected_runs"
"""Runs that a run rollup computes: columns run and date, the output date of each."""


def replace_table(ctx: "SessionContext", name: str, rows: pa.Table) -> None:
    """Register rows in memory under a name, in place of what stood there."""
    if ctx.table_exist(name):
        ctx.deregister_table(name)
    ctx.register_record_batches(name, [rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]])
