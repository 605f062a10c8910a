"""Rows of system tables, and the ledger row with which every plan ends."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.tables.commit import LostRaceError, number_of, swap
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.tables import ensure_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile


def commit_rows(tables: "Tables", table: str, rows: list[dict[str, Any]], number: int) -> bool:
    """Append rows, given as dicts, to a system table under a plan's number; return whether this call did it."""
    handle = ensure_table(tables, contract(table))
    if number_of(handle) >= number:
        return False
    new = row_files(tables.store, table, rows, number)
    return swap(handle, number, add=new, metadata={"ranklake.plan": str(number)})


def append_own(tables: "Tables", table: str, compose: Callable[["DeltaTable"], list[dict[str, Any]]]) -> int:
    """Append rows, given as dicts, to a system table that counts its own commits; return how many.

    Parameters
    ----------
    compose
        Called with a fresh handle; returns the rows, none if there is nothing to add. Whoever loses the race against
        another writer calls it again, so rows may depend on what the table holds.
    """
    while True:
        handle = ensure_table(tables, contract(table))
        rows = compose(handle)
        if not rows:
            return 0
        number = number_of(handle) + 1
        try:
            swap(handle, number, add=row_files(tables.store, table, rows, number))
        except LostRaceError:
            continue
        return len(rows)


def row_files(store: "Store", table: str, rows: list[dict[str, Any]], number: int) -> "list[DataFile]":
    """Write rows, given as dicts, as new files of a system table; commit nothing."""
    return append_files(
        store, contract(table), pa.Table.from_pylist(rows, schema=arrow_schema(contract(table))), number
    )


def ledger_row(plan: "Plan", tables: Mapping[str, int], **counts: int) -> dict[str, Any]:
    """Return the row of ``ingest_plans`` that ends a plan.

    Parameters
    ----------
    tables
        Change of each table's row count: positive for ingest, negative for what takes rows away.
    counts
        segments, rows_recorded, rows_stored, rows_rejected, rows_duplicate; 0 where not given.
    """
    names = ("segments", "rows_recorded", "rows_stored", "rows_rejected", "rows_duplicate")
    return {
        "plan": plan.number,
        "kind": plan.kind,
        "created_ts": plan.created,
        "committed_ts": datetime.now(UTC),
        "tables": json.dumps(dict(tables), sort_keys=True),
        **{name: counts.get(name, 0) for name in names},
        "writer": plan.body["writer"],
        "date": plan.created.date(),
    }
