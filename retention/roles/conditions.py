"""Conditions of roles, tried on tables without rows: whoever keeps them learns what is wrong before anybody asks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.query.called import TableNames
from ranklake.lake.query.engine import SessionContext, engine
from ranklake.lake.query.errors import QueryError, explained
from ranklake.lake.query.sql import READ_ONLY

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role


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
    """Yield what is wrong with a role's own conditions; those that fail on some rows alone are not found."""
    said = {table: role.own_conditions(contracts[table]) for table in sorted(role.tables & contracts.keys())}
    if not any(said.values()):
        return
    ctx = _without_rows(contracts)
    for table, conditions in said.items():
        for one in conditions:
            try:
                text = f'SELECT 1 FROM "{table}" AS "{table}" WHERE (\n{one}\n)'  # noqa: S608 - the role's own
                ctx.sql_with_options(text, READ_ONLY).to_arrow_table()
            except Exception as error:  # noqa: BLE001 - DataFusion raises plain ones
                yield BrokenCondition(role=role.name, table=table, error=explained(error, contracts, [table]))


def _without_rows(contracts: Mapping[str, "Contract"]) -> SessionContext:
    ctx = engine(1)
    for name, contract in contracts.items():
        schema = arrow_schema(contract).remove_metadata()
        ctx.register_record_batches(name, [[pa.RecordBatch.from_pylist([], schema=schema)]])
    TableNames.of(contracts.values()).put(ctx, keeps=True)
    return ctx
