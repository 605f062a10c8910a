"""Conditions of roles, tried on tables without rows: whoever keeps them learns what is wrong before anybody asks."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.query.called import TableNames
from ranklake.lake.query.engine import SessionContext, engine
from ranklake.lake.query.errors import QueryError, one_line
from ranklake.lake.query.sql import READ_ONLY, query

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenCondition:
    """A condition that cannot be computed: whose, on which table, and what is wrong with it."""

    role: str
    table: str
    error: QueryError

    @property
    def line(self) -> str:
        """What to tell of it, in one line."""
        return f"role {self.role}: its condition on {self.table}: {self.error.what}"

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self.error.hint or f"mend it: every query of {self.table} as {self.role} is refused"


def broken_conditions(role: "Role", contracts: Mapping[str, "Contract"]) -> Iterator[BrokenCondition]:
    """Yield faults of a role's own conditions; those that fail on some rows alone are not found."""
    by_table = {table: role.own_conditions(contracts[table]) for table in sorted(role.tables & contracts.keys())}
    if not any(by_table.values()):
        return
    ctx = _without_rows(contracts)
    for table, conditions in by_table.items():
        for condition in conditions:
            try:
                text = f'SELECT 1 FROM "{table}" AS "{table}" WHERE (\n{condition}\n)'  # noqa: S608 - the role's own
                ctx.sql_with_options(text, READ_ONLY).to_arrow_table()
            except Exception as error:  # noqa: BLE001 - DataFusion raises plain ones
                yield BrokenCondition(role=role.name, table=table, error=one_line(error, contracts, [table]))


def _without_rows(contracts: Mapping[str, "Contract"]) -> SessionContext:
    ctx = engine(1)
    for name, contract in contracts.items():
        schema = arrow_schema(contract).remove_metadata()
        ctx.register_record_batches(name, [[pa.RecordBatch.from_pylist([], schema=schema)]])
    TableNames.of(contracts.values()).put(ctx, keeps=True)
    return ctx


@dataclass(frozen=True, slots=True)
class UnknownTeam:
    """A team that a role is bound to, and of which the lake has no rows.

    Attributes
    ----------
    role, team
        Names.
    hint
        The nearest known name, or all.
    """

    role: str
    team: str
    hint: str

    @property
    def line(self) -> str:
        """What to tell of it, in one line."""
        return f"role {self.role}: no run and no job is of team {self.team!r} yet"


def unknown_teams(lake: "Lake", roles: Iterable["Role"]) -> list[UnknownTeam]:
    """Return the teams of roles that neither runs nor jobs name. Asks nothing where no role has teams.

    Raises what a query does.
    """
    bound = [one for one in roles if one.teams]
    if not bound:
        return []
    text = "SELECT team FROM runs WHERE team IS NOT NULL UNION SELECT team FROM jobs WHERE team IS NOT NULL"
    known = set(query(lake, text).column("team").to_pylist())
    return [
        UnknownTeam(role.name, team, did_you_mean(team, sorted(known)) if known else "the lake has no team so far")
        for role in bound
        for team in sorted(role.teams - known)
    ]
