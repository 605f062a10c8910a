"""Where the values of a metric lie: rows of a long table under its names, and a column, by its id."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranklake.lake.migrations.registry import chain_of_all
from ranklake.lake.rollups.life.state import MetricLifeError
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract
    from ranklake.lake.store.store import Lake

_LONG: Final = ("scalars", "distributions")


@dataclass(frozen=True, slots=True)
class Place:
    """Where values lie.

    Attributes
    ----------
    table, column
        As SQL has them now.
    metric
        Name under which they were recorded.
    names
        All columns of the table.
    factor, offset
        The metric's value is what lies there times `factor` + `offset`.
    """

    table: str
    column: str
    metric: str
    names: tuple[str, ...]
    factor: float = 1.0
    offset: float = 0.0

    @property
    def is_long(self) -> bool:
        """Whether rows of the table name their metric."""
        return self.table in _LONG


def place_of(lake: "Lake", metric: str) -> Iterator[Place]:
    """Yield where values of a metric lie: under its own name, under others that it has, and in its column.

    Raises `MetricLifeError` where only a migration could tell what is in the column.
    """
    known = lake.metrics().get(metric)
    names = (metric,) if known is None else (metric, *known.aka)
    scalars = lake.contract("scalars").names
    for name in names:
        yield Place("scalars", "value", name, tuple(scalars))
    table, _, column = (known.stored_in if known is not None else "").partition(".")
    if table and table not in _LONG:
        yield _column(lake, metric, table, column)


def _column(lake: "Lake", metric: str, table: str, column: str) -> Place:
    contract = lake.contract(table)
    meant = contract.column(column)
    logged = as_read(latest(lake, table), contract)
    found = next((one for one in logged.columns if one.id == meant.id), None)
    if found is None:
        hint = "run: ranklake migrate apply"
        raise MetricLifeError(f"{table}.{column} is not there before its migration", where=metric, hint=hint)
    factor, offset = (1.0, 0.0) if found.unit == meant.unit else _converted(contract, logged, found)
    return Place(table, found.name, metric, tuple(logged.names), factor, offset)


def _converted(contract: "Contract", logged: "Contract", found: "Column") -> tuple[float, float]:
    """Return factor and offset of the conversions that a column of the log still has before it."""
    factor, offset, name = 1.0, 0.0, found.name
    for one in chain_of_all(contract, max(logged.version, 1), logged.added_version, overlay=contract.operators):
        for step in one.steps:
            lead = step.lead(name)
            assert lead is not None, "a column that is there now was dropped on the way"
            factor, offset, name = factor * lead.factor, offset * lead.factor + lead.offset, lead.name
    return factor, offset
