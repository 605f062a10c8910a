"""Views of roles on tables, and the differences between the roles of two files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role, Sight


@dataclass(frozen=True, slots=True)
class View:
    """A role's view of a table.

    Attributes
    ----------
    role, table
        Names of the role and the table.
    is_seen
        Whether the role may query the table.
    own_rows
        The role's SQL conditions on rows, and the least size of groups of rows.
    by_team
        The condition that limits rows to the role's teams; empty if there is none.
    sights
        How the role sees each column; empty if it may not query the table.
    until
        Last day on which the role may be used; None for no end.
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
        """All conditions on visible rows; empty if all rows are visible."""
        return (*self.own_rows, *([self.by_team] if self.by_team else []))

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        columns = [
            {"column": sight.column.name, "class": sight.column.class_, "seen": sight.visibility, "why": sight.why}
            for sight in self.sights
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
            *([groups.text] if (groups := role.groups.get(contract.table)) else []),
        ),
        by_team=role.by_team(contract),
        sights=tuple(role.sights(contract)),
        until=role.until,
    )


MORE: Final = "more"
LESS: Final = "less"
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference in what a role sees.

    Attributes
    ----------
    role
        Name of the role.
    what
        A table, ``table.column``, ``rows of table``, ``teams``, or ``until``; empty for the whole role.
    old, new
        The old and the new state, in words.
    sees
        Whether the role sees ``more``, ``less``, or ``other`` if the states cannot be compared, such as two masks.
    """

    role: str
    what: str
    old: str
    new: str
    sees: str

    @property
    def line(self) -> str:
        """The difference in one line."""
        sign = {MORE: "+", LESS: "-", OTHER: "~"}[self.sees]
        return f"{sign} {self.role}{f': {self.what}' if self.what else ''}: {self.old} -> {self.new}"


def differences(
    old: Mapping[str, "Role"], new: Mapping[str, "Role"], contracts: Mapping[str, "Contract"]
) -> list[Difference]:
    """Return the differences between the roles of two files, by role and table."""
    result = []
    for name in sorted({*old, *new}):
        if name not in new:
            result.append(Difference(name, "", "a role", "none", LESS))
        elif name not in old:
            result.append(Difference(name, "", "no role", "a new one", MORE))
        else:
            result.extend(_of_end(old[name], new[name]))
            result.extend(_of_teams(old[name], new[name]))
            for contract in contracts.values():
                result.extend(_of_table(view(old[name], contract), view(new[name], contract)))
    return result


def _of_end(old: "Role", new: "Role") -> Iterator[Difference]:
    """Yield the difference in the last day of a role."""
    if old.until != new.until:
        until = [str(role.until or "no end") for role in (old, new)]
        ends = [role.until or date.max for role in (old, new)]
        yield Difference(old.name, "until", until[0], until[1], MORE if ends[1] > ends[0] else LESS)


def _of_teams(old: "Role", new: "Role") -> Iterator[Difference]:
    """Yield the difference in the teams of a role, which limit its rows in all tables."""
    if old.teams == new.teams:
        return
    more = not new.teams or (bool(old.teams) and old.teams < new.teams)
    less = not old.teams or (bool(new.teams) and new.teams < old.teams)
    teams = [", ".join(sorted(role.teams)) or "all" for role in (old, new)]
    yield Difference(old.name, "teams", teams[0], teams[1], MORE if more else LESS if less else OTHER)


def _of_table(old: View, new: View) -> Iterator[Difference]:
    if old.is_seen != new.is_seen:
        words = ("hidden", "seen")
        yield Difference(
            old.role, old.table, words[old.is_seen], words[new.is_seen], _change_kind(old.is_seen, new.is_seen)
        )
        return
    if old.own_rows != new.own_rows:
        conditions = [" AND ".join(side.own_rows) or "all" for side in (old, new)]
        sees = OTHER if old.own_rows and new.own_rows else _change_kind(not old.own_rows, not new.own_rows)
        yield Difference(old.role, f"rows of {old.table}", conditions[0], conditions[1], sees)
    for before, after in zip(old.sights, new.sights, strict=True):
        if before.visibility != after.visibility:
            ranks = [0 if sight.is_hidden else 1 if sight.mask is not None else 2 for sight in (before, after)]
            column = f"{old.table}.{before.column.name}"
            yield Difference(old.role, column, before.visibility, after.visibility, _change_kind(ranks[0], ranks[1]))


def _change_kind(old: int, new: int) -> str:
    return OTHER if old == new else MORE if new > old else LESS
