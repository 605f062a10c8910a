"""What changes for roles from one file to another."""

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
    """Something that a role sees otherwise.

    Attributes
    ----------
    role
        Which.
    what
        A table, ``table.column``, ``rows of table``, ``teams``, or ``until``; empty for the role as a whole.
    old, new
        How it was and is seen.
    sees
        ``more``, ``less``, or ``other`` where the two cannot be compared: another mask, another condition.
    """

    role: str
    what: str
    old: str
    new: str
    sees: str

    @property
    def line(self) -> str:
        """What to tell of it, in one line."""
        sign = {MORE: "+", LESS: "-", OTHER: "~"}[self.sees]
        return f"{sign} {self.role}{f': {self.what}' if self.what else ''}: {self.old} -> {self.new}"


def differences(
    old: Mapping[str, "Role"], new: Mapping[str, "Role"], contracts: Mapping[str, "Contract"]
) -> list[Difference]:
    """Return what roles of one file see otherwise than those of another, by role and table."""
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
    """Yield what another last day changes."""
    if old.until != new.until:
        until = [str(one.until or "no end") for one in (old, new)]
        ends = [one.until or date.max for one in (old, new)]
        yield Difference(old.name, "until", until[0], until[1], MORE if ends[1] > ends[0] else LESS)


def _of_teams(old: "Role", new: "Role") -> Iterator[Difference]:
    """Yield what the teams of a role change of the rows that it sees, whichever table they are of."""
    if old.teams == new.teams:
        return
    more = not new.teams or (bool(old.teams) and old.teams < new.teams)
    less = not old.teams or (bool(new.teams) and new.teams < old.teams)
    teams = [", ".join(sorted(one.teams)) or "all" for one in (old, new)]
    yield Difference(old.name, "teams", teams[0], teams[1], MORE if more else LESS if less else OTHER)


def _of_table(old: View, new: View) -> Iterator[Difference]:
    if old.is_seen != new.is_seen:
        words = ("hidden", "seen")
        yield Difference(
            old.role, old.table, words[old.is_seen], words[new.is_seen], _change_kind(old.is_seen, new.is_seen)
        )
        return
    if old.own_rows != new.own_rows:
        conditions = [" AND ".join(one.own_rows) or "all" for one in (old, new)]
        sees = OTHER if old.own_rows and new.own_rows else _change_kind(not old.own_rows, not new.own_rows)
        yield Difference(old.role, f"rows of {old.table}", conditions[0], conditions[1], sees)
    for before, after in zip(old.sights, new.sights, strict=True):
        if before.visibility != after.visibility:
            ranks = [0 if one.is_hidden else 1 if one.mask is not None else 2 for one in (before, after)]
            column = f"{old.table}.{before.column.name}"
            yield Difference(old.role, column, before.visibility, after.visibility, _change_kind(ranks[0], ranks[1]))


def _change_kind(old: int, new: int) -> str:
    return OTHER if old == new else MORE if new > old else LESS
