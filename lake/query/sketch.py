"""Plans a query over empty tables, to find the columns that it uses and the former names that it needs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.query.admission import admit
from ranklake.lake.query.engine import DataFrame, SessionContext, engine
from ranklake.lake.query.errors import ConditionError, QueryError
from ranklake.lake.query.former import (
    Chosen,
    Former,
    FormerOf,
    FormerTable,
    TableNames,
    add_former,
    asked_by,
    plan_with_former_names,
)
from ranklake.lake.query.roles import Role

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract


@dataclass(frozen=True, slots=True)
class Sketch:
    """Columns and former names that a query uses.

    Attributes
    ----------
    columns
        Columns by table, under their current names. A query that only counts rows uses none. Columns that only the
        role's conditions use are not included.
    asked
        Former names of columns that the query uses, by table.
    beneath
        Former names of columns that the role's conditions use, by table.
    tables
        Former names of tables that the query uses.
    """

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asked: Chosen = field(default_factory=dict)
    beneath: Chosen = field(default_factory=dict)
    tables: tuple[FormerTable, ...] = ()

    @property
    def words(self) -> set[str]:
        """Current columns of all used former names. Conditions on them may exclude files."""
        former_names = (
            former_name
            for chosen in (self.asked, self.beneath)
            for names in chosen.values()
            for former_name in names.values()
        )
        return {column for former_name in former_names for column in former_name.columns}


def sketch(
    ask: Callable[[SessionContext], DataFrame],
    contracts: "Mapping[str, Contract]",
    role: Role | None,
    former: FormerOf,
    names: TableNames,
    today: date,
) -> Sketch:
    """Plan a query over empty tables and return what it uses.

    Parameters
    ----------
    ask
        Plans the query in a session with tables, or with a role's views.
    contracts
        Contracts of all tables that the query or the role's conditions may use, as `answer` reads them.
    names
        Names of the tables in queries.

    Raises DataFusion's errors, and `QueryError` for a former name past its last day.
    """
    visible = {name: arrow_schema(contract).remove_metadata() for name, contract in contracts.items()}
    beneath: Chosen = {}
    if role is not None:
        try:
            visible, beneath = plan_with_former_names(
                lambda chosen: _view_schemas(contracts, role, chosen, names),
                lambda table: former(contracts[table]),
                contracts,
                today,
            )
        except ConditionError:
            raise
        except QueryError:  # the original error has columns of the condition, which the role must not see
            hint = "tell whoever keeps the lake"
            raise QueryError("a condition of the role names a column that is no more", where="SQL", hint=hint) from None

    def usable_names(table: str) -> dict[str, Former]:
        return {
            name: former_name
            for name, former_name in former(contracts[table]).items()
            if former_name.is_within(visible[table].names) or (role is None and not former_name.now)
        }

    def plan(chosen: Chosen, former_tables: list[str]) -> list[tuple[str, list[str]]]:
        ctx = _session(visible)
        prepare(ctx)
        add_former(ctx, chosen)
        names.put(ctx, former_tables)
        return list(scans(ask(ctx)))

    (scanned, asked), former_tables = asked_by(
        lambda tables: plan_with_former_names(lambda chosen: plan(chosen, tables), usable_names, visible, today),
        names,
        today,
    )
    columns: dict[str, set[str]] = {}
    for table, scanned_columns in scanned:
        if table in visible:
            columns.setdefault(table, set()).update(scanned_columns)
    return Sketch(
        {table: tuple(sorted(names_)) for table, names_ in sorted(columns.items())},
        asked,
        beneath,
        tuple(names.former[name] for name in former_tables),
    )


def _session(schemas: Mapping[str, pa.Schema]) -> SessionContext:
    ctx = engine(1)
    for name, schema in schemas.items():
        ctx.register_record_batches(name, [[pa.RecordBatch.from_pylist([], schema=schema)]])
    return ctx


def _view_schemas(
    contracts: "Mapping[str, Contract]", role: Role, chosen: Chosen, names: TableNames
) -> dict[str, pa.Schema]:
    """Return the schemas of a role's views by table; `chosen` are former names that its conditions may use."""
    ctx = _session({name: arrow_schema(contract).remove_metadata() for name, contract in contracts.items()})
    add_former(ctx, chosen)
    names.put(ctx, keeps=True)
    admit(ctx, role, contracts)
    return {name: ctx.table(name).schema() for name in contracts if role.sees(name)}


_FOLDING: Final = ("eliminate_limit", "eliminate_filter", "propagate_empty_relation")
"""Optimizer rules that remove tables from plans without rows, such as with LIMIT 0, which clients use to get types."""

_SUBQUERIES_AS_JOINS: Final = "SET datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery = false"
"""Plans subqueries as joins, which are nodes of the plan. Otherwise they are parts of expressions."""


def prepare(ctx: "SessionContext") -> None:
    """Configure a session so that `scans` finds all tables of a query."""
    for rule in _FOLDING:
        ctx.remove_optimizer_rule(rule)
    ctx.sql(_SUBQUERIES_AS_JOINS)


def scans(frame: "DataFrame") -> Iterator[tuple[str, list[str]]]:
    """Yield the table and the columns of each scan in a query's plan.

    A subquery as a key of ORDER BY or GROUP BY, or within an aggregate or a window, is no node and is not found.
    """
    yield from _scanned_columns(frame.optimized_logical_plan())


def _scanned_columns(plan: Any) -> Iterator[tuple[str, list[str]]]:  # noqa: ANN401 - DataFusion's
    node = plan.to_variant()
    kind = type(node).__name__
    if kind == "TableScan":
        yield node.fqn()[2], [name for _, name in node.projection()]
    for plan_input in plan.inputs():
        for table, columns in _scanned_columns(plan_input):
            if kind != "RecursiveQuery" or table != node.name():  # a recursive query scans its own rows, too
                yield table, columns
