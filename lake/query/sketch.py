"""A query, planned over tables without rows: which columns it uses, and which former names it needs for that."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.query.admission import admit
from ranklake.lake.query.engine import DataFrame, SessionContext, engine
from ranklake.lake.query.former import Chosen, Former, FormerOf, add_former, grown
from ranklake.lake.query.roles import Role

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

_SCAN: Final = re.compile(r"^ *TableScan: (?:\w+\.)*(\w+)(?: projection=\[([^\]]*)\])?", re.MULTILINE)


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
    """

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asked: Chosen = field(default_factory=dict)
    beneath: Chosen = field(default_factory=dict)

    @property
    def words(self) -> set[str]:
        """Columns that former names stand for, which may choose files."""
        return {one.now for chosen in (self.asked, self.beneath) for names in chosen.values() for one in names.values()}


def sketch(
    ask: Callable[[SessionContext], DataFrame],
    contracts: "Mapping[str, Contract]",
    role: Role | None,
    former: FormerOf,
    today: date,
) -> Sketch:
    """Plan a query over tables without rows. Raises what DataFusion does, and `QueryError` for a name that is over.

    Parameters
    ----------
    ask
        Plans the query in a session with tables, or with a role's views of them.
    contracts
        Of all tables that it or the role's conditions may name, as they are read.
    """
    seen = {name: arrow_schema(one).remove_metadata() for name, one in contracts.items()}
    beneath: Chosen = {}
    if role is not None:
        views, beneath = grown(
            lambda names: _admitted(contracts, role, names), lambda table: former(contracts[table]), contracts, today
        )
        seen = views

    def known(table: str) -> dict[str, Former]:
        there = former(contracts[table]).items()
        return {name: one for name, one in there if one.now in seen[table].names or (role is None and not one.now)}

    def planned(names: Chosen) -> str:
        ctx = _session(seen)
        add_former(ctx, names)
        return str(ask(ctx).optimized_logical_plan().display_indent())

    plan, asked = grown(planned, known, seen, today)
    return Sketch(_columns(plan, seen), asked, beneath)


def _session(schemas: Mapping[str, pa.Schema]) -> SessionContext:
    ctx = engine(1)
    for name, schema in schemas.items():
        ctx.register_record_batches(name, [[pa.RecordBatch.from_pylist([], schema=schema)]])
    return ctx


def _admitted(contracts: "Mapping[str, Contract]", role: Role, names: Chosen) -> dict[str, pa.Schema]:
    """Return the schemas of the views of a role; names are former ones that its conditions may use."""
    ctx = _session({name: arrow_schema(one).remove_metadata() for name, one in contracts.items()})
    add_former(ctx, names)
    admit(ctx, role, contracts)
    return {name: ctx.table(name).schema() for name in contracts if role.sees(name)}


def _columns(plan: str, seen: Mapping[str, pa.Schema]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for table, said in _SCAN.findall(plan):
        if table in seen:
            # A text of the query may look like a line of the plan: only names that the table has are taken from it.
            names = {name.strip('" ') for name in said.split(",")}
            found.setdefault(table, set()).update(names.intersection(seen[table].names))
    return {table: tuple(sorted(names)) for table, names in sorted(found.items())}
