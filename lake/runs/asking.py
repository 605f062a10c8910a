"""Asking: SQL in, rows out, kept together; and what a role may not see told as the reason why nothing is known."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.opened import Opened
from ranklake.lake.query.sql import answer_next

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.storage.store import Lake

Row = Mapping[str, Any]
_READS: Final = re.compile(r'\b(?:from|join)\s+"?(\w+)', re.IGNORECASE)


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
    versions
        Delta versions of the tables that were read; None of one that was never written. No part of what was answered:
        facts that are equal at two versions are equal.
    """

    sql: str
    rows: tuple[Row, ...] = ()
    reason: str = ""
    versions: Mapping[str, int | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def one(self) -> Row:
        """Its only row; an empty one where there is none."""
        return self.rows[0] if self.rows else {}


Ask = Callable[[str], Answered]
"""Answers one SELECT. Raises what `ranklake.lake.query.sql.answer` does."""


def asking(lake: "Lake", role: "Role | None" = None) -> Ask:
    """Return what answers questions about a lake, as a role sees it.

    Tables and columns that the role does not see give no rows, and the reason. Raises for all else. Each table is
    opened when a question first names it, so that what is told of it belongs together.
    """
    opened = Opened(lake)

    def ask(sql: str) -> Answered:
        try:
            found = answer_next(lake, opened, sql, role)
        except QueryError as error:
            if role is None or not error.what.startswith("unknown "):
                raise
            return Answered(sql, (), f"role {role.name} does not see it ({error.what})")
        return Answered(sql, tuple(found.rows.to_pylist()), versions=read_by(sql, found.versions))

    return ask


def read_by(sql: str, versions: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the versions of the tables that a text reads, of those that it may."""
    names = set(_READS.findall(sql))
    return {name: at for name, at in sorted(versions.items()) if name in names}


@cache
def sql_text(package: str, name: str) -> str:
    """Return the SQL of a file in a package, without its comments, so that a reader can run it."""
    lines = files(package).joinpath(f"{name}.sql").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")) + "\n"
