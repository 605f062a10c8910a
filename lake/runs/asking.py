"""Asking: SQL in, rows out, kept together; and what a role may not see told as the reason why nothing is known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.sql import query

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.storage.store import Lake

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """Facts, and the SQL that gave them.

    Attributes
    ----------
    sql
        Stands alone: ``ranklake sql`` answers it likewise. Empty where nothing was asked.
    rows
        What it gave, columns by name.
    reason
        Why nothing is known, where it was not asked or must not be told; else empty.
    """

    sql: str
    rows: tuple[Row, ...] = ()
    reason: str = ""

    @property
    def one(self) -> Row:
        """Its only row; an empty one where there is none."""
        return self.rows[0] if self.rows else {}


Ask = Callable[[str], Answered]
"""Answers one SELECT. Raises what `ranklake.lake.query.sql.answer` does."""


def asking(lake: "Lake", role: "Role | None" = None) -> Ask:
    """Return what answers questions about a lake, as a role sees it.

    Tables and columns that the role does not see give no rows, and the reason. Raises for all else.
    """

    def ask(sql: str) -> Answered:
        try:
            return Answered(sql, tuple(query(lake, sql, role=role).to_pylist()))
        except QueryError as error:
            if role is None or not error.what.startswith("unknown "):
                raise
            return Answered(sql, (), f"role {role.name} does not see it ({error.what})")

    return ask
