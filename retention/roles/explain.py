"""What a role sees of a table, and why."""

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role, Sight


@dataclass(frozen=True, slots=True)
class View:
    """A role's view of a table.

    Attributes
    ----------
    role, table
        Names.
    is_seen
        Whether the role may ask the table at all.
    own_rows
        Conditions in SQL that rows meet, all of them, and the least size of their groups.
    by_team
        What rows meet besides to be of the role's teams; empty for nothing.
    sights
        How each column is seen; empty where the table is not.
    until
        The last day on which the role may be used; None for no end.
    """

    role: str
    table: str
    is_seen: bool
    own_rows: tuple[str, ...]
    by_team: str
    sights: tuple["Sight", ...]
    until: date | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        """What rows meet, all of it; none: all rows are seen."""
        return (*self.own_rows, *([self.by_team] if self.by_team else []))

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        columns = [
            {"column": one.column.name, "class": one.column.class_, "seen": one.said, "why": one.why}
            for one in self.sights
        ]
        return {
            "role": self.role,
            "table": self.table,
            "seen": self.is_seen,
            "until": None if self.until is None else self.until.isoformat(),
            "rows": list(self.rows),
            "columns": columns,
        }


def view(role: "Role", contract: "Contract") -> View:
    """Return a role's view of a table."""
    if not role.sees(contract.table):
        return View(role.name, contract.table, is_seen=False, own_rows=(), by_team="", sights=())
    return View(
        role.name,
        contract.table,
        is_seen=True,
        own_rows=(
            *role.own_conditions(contract),
            *([groups.said] if (groups := role.groups.get(contract.table)) else []),
        ),
        by_team=role.by_team(contract),
        sights=tuple(role.sights(contract)),
        until=role.until,
    )
