"""A query, planned over tables without rows: which columns it uses, and which former names it needs for that."""

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
    """What a query uses.

    Attributes
    ----------
    columns
        Columns by table, as they are called now; a query that only counts rows uses none. Those of the conditions of
        a role are the operator's and are not among them.
    asked
        Former names that it uses, by table.
    beneath
        Former names that the conditions of the role use, likewise.
    tables
        Former names of tables that it uses.
    """

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asked: Chosen = field(default_factory=dict)
    beneath: Chosen = field(default_factory=dict)
    tables: tuple[FormerTable, ...] = ()

    @property
    def words(self) -> set[str]:
        """Columns that former names stand for, which may choose files."""
        every = (one for chosen in (self.asked, self.beneath) for names in chosen.values() for one in names.values())
        return {name for one in every for name in one.columns}


def sketch(
    ask: Callable[[SessionContext], DataFrame],
    contracts: "Mapping[str, Contract]",
    role: Role | None,
    former: FormerOf,
    names: TableNames,
    today: date,
) -> Sketch:
    """Plan a query over tables without rows. Raises what DataFusion does, and `QueryError` for a name that is over.

    Parameters
    ----------
    ask
        Plans the query in a session with tables, or with a role's views of them.
    contracts
        Of all tables that it or the role's conditions may name, as they are read.
    names
        What tables are called.
    """
    seen = {name: arrow_schema(one).remove_metadata() for name, one in contracts.items()}
    beneath: Chosen = {}
    if role is not None:
        try:
            seen, beneath = plan_with_former_names(
                lambda chosen: _view_schemas(contracts, role, chosen, names),
                lambda table: former(contracts[table]),
                contracts,
                today,
            )
        except ConditionError:
            raise
        except QueryError:  # what it says of the condition's columns is not for the role
            hint = "tell whoever keeps the lake"
            raise QueryError("a condition of the role names a column that is no more", where="SQL", hint=hint) from None

    def known(table: str) -> dict[str, Former]:
        there = former(contracts[table]).items()
        return {name: one for name, one in there if one.is_within(seen[table].names) or (role is None and not one.now)}

    def planned(chosen: Chosen, called: list[str]) -> list[tuple[str, list[str]]]:
        ctx = _session(seen)
        prepare(ctx)
        add_former(ctx, chosen)
        names.put(ctx, called)
        return list(scans(ask(ctx)))

    (read, asked), called = asked_by(
        lambda called: plan_with_former_names(lambda chosen: planned(chosen, called), known, seen, today), names, today
    )
    columns: dict[str, set[str]] = {}
    for table, used in read:
        if table in seen:
            columns.setdefault(table, set()).update(used)
    former_tables = tuple(names.former[name] for name in called)
    return Sketch(
        {table: tuple(sorted(some)) for table, some in sorted(columns.items())}, asked, beneath, former_tables
    )


def _session(schemas: Mapping[str, pa.Schema]) -> SessionContext:
    ctx = engine(1)
    for name, schema in schemas.items():
        ctx.register_record_batches(name, [[pa.RecordBatch.from_pylist([], schema=schema)]])
    return ctx


def _view_schemas(
    contracts: "Mapping[str, Contract]", role: Role, chosen: Chosen, names: TableNames
) -> dict[str, pa.Schema]:
    """Return the schemas of the views of a role; chosen are former names that its conditions may use."""
    ctx = _session({name: arrow_schema(one).remove_metadata() for name, one in contracts.items()})
    add_former(ctx, chosen)
    names.put(ctx, keeps=True)
    admit(ctx, role, contracts)
    return {name: ctx.table(name).schema() for name in contracts if role.sees(name)}


_FOLDING: Final = ("eliminate_limit", "eliminate_filter", "propagate_empty_relation")
"""Rules that take tables out of a plan that gives no rows, such as LIMIT 0: a client asks so what there is."""

_JOINED: Final = "SET datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery = false"
"""Makes joins of subqueries, which are nodes, and not parts of expressions."""


def prepare(ctx: "SessionContext") -> None:
    """Make a session plan so that `scans` sees all that a query names."""
    for rule in _FOLDING:
        ctx.remove_optimizer_rule(rule)
    ctx.sql(_JOINED)


def scans(frame: "DataFrame") -> Iterator[tuple[str, list[str]]]:
    """Yield each table that a query reads, with the columns, and once more for each time it reads it.

    A subquery as a key of ORDER BY or GROUP BY, or within an aggregate or a window, is no node and not seen.
    """
    yield from _scanned_columns(frame.optimized_logical_plan())


def _scanned_columns(plan: Any) -> Iterator[tuple[str, list[str]]]:  # noqa: ANN401 - DataFusion's
    node = plan.to_variant()
    kind = type(node).__name__
    if kind == "TableScan":
        yield node.fqn()[2], [name for _, name in node.projection()]
    for inner in plan.inputs():
        columns_inside = _scanned_columns(inner)
        # what refers to itself reads its own rows under its own name
        yield from (
            (one for one in columns_inside if one[0] != node.name()) if kind == "RecursiveQuery" else columns_inside
        )
