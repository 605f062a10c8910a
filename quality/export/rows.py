"""Rows of a partition for the checkpoints of an exported project."""

from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.errors import UnknownTableError
from ranklake.lake.tables.read import read
from ranklake.quality.engine import frame, values_of
from ranklake.quality.suite import compile_suite

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

    from ranklake.lake.store.lake import Lake


def partition_rows(lake: "Lake", table: str, day: date) -> "pd.DataFrame":
    """Return the rows of a date, with a column ``holds:CHECK`` for each check without an equivalent expectation.

    All values are read into memory, including classified ones. Raises `UnknownTableError`.
    """
    contracts = lake.contracts()
    if table not in contracts:
        raise UnknownTableError(table, hint=did_you_mean(table, contracts))
    contract = contracts[table]
    suite = compile_suite(contract, lake.catalog.metrics())
    rows = read(lake.tables, contract, list(contract.names), partitions=[day])
    stored = arrow_schema(contract)
    rows = pa.table({name: rows[name].cast(stored.field(name).type) for name in rows.column_names})
    columns = frame(rows, [each for each in suite.expectations if each.per_row], suite.ranges)
    for name in rows.column_names:
        if name not in columns:
            columns[name] = values_of(rows[name], compared=True)
    return columns
