"""What the catalog page tells: tables with their columns, classes and freshness, metrics, and what came from what."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ranklake.insight.runs.asking import QueriedFacts, Row, asking, sql_text
from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

HERE: Final = "ranklake.insight.overview"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogState:
    """The catalog as it was last refreshed.

    Attributes
    ----------
    lake
        Last part of its location.
    sums, tables, metrics
        In one row; a row a table; a row a metric. Without rows where the catalog was never refreshed.
    columns
        By table, in its order.
    flows
        Which table was computed from which.
    """

    lake: str
    sums: QueriedFacts
    tables: QueriedFacts
    columns: Mapping[str, QueriedFacts]
    metrics: QueriedFacts
    flows: QueriedFacts


def catalog_state(lake: "Lake") -> CatalogState:
    """Return the state of a lake's catalog. Raises what queries raise."""
    ask = asking(lake)
    columns = ask(sql_text(HERE, "columns").format(of=""))
    of_table: defaultdict[str, list[Row]] = defaultdict(list)
    for row in columns.rows:
        of_table[row["table"]].append(row)
    return CatalogState(
        lake=lake.uri.rstrip("/").rpartition("/")[2],
        sums=ask(sql_text(HERE, "sums")),
        tables=ask(sql_text(HERE, "tables")),
        columns={name: replace(columns, sql=_columns_of(name), rows=tuple(rows)) for name, rows in of_table.items()},
        metrics=ask(sql_text(HERE, "metrics")),
        flows=ask(sql_text(HERE, "flows")),
    )


def _columns_of(table: str) -> str:
    """Return the SQL for the columns of one table: all are asked for at once, and a page shows those of one."""
    return sql_text(HERE, "columns").format(of=f' AND "table" = {literal(table)}')
