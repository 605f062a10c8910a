"""A query, planned over tables without rows: which columns it uses, and which former names it needs for that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.query.admission import admit
from ranklake.lake.query.engine import DataFrame, SessionContext, engine
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.former import Chosen, Former, FormerOf, add_former, grown
from ranklake.lake.query.roles import Role
from ranklake.lake.query.scans import prepare, scans

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
        try:
            seen, beneath = grown(
                lambda names: _admitted(contracts, role, names), lambda one: former(contracts[one]), contracts, today
            )
        except QueryError:  # what it says of the condition's columns is not for the role
            mend = "tell whoever keeps the lake"
            raise QueryError("a condition of the role names a column that is no more", where="SQL", mend=mend) from None

    def known(table: str) -> dict[str, Former]:
        there = former(contracts[table]).items()
        return {name: one for name, one in there if one.now in seen[table].names or (role is None and not one.now)}

    def planned(names: Chosen) -> list[tuple[str, list[str]]]:
        ctx = _session(seen)
        prepare(ctx)
        add_former(ctx, names)
        return list(scans(ask(ctx)))

    read, asked = grown(planned, known, seen, today)
    columns: dict[str, set[str]] = {}
    for table, names in read:
        if table in seen:
            columns.setdefault(table, set()).update(names)
    return Sketch({table: tuple(sorted(names)) for table, names in sorted(columns.items())}, asked, beneath)


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
