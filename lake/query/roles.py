"""Roles: which tables and rows a query may see, and of each column its values, a mask of them, or nothing.

A role sees nothing that it does not name. How roles are written: `ranklake.lake.query.role_file`; how a query is
held to one: `ranklake.lake.query.admission`.

Rows of teams: those whose column ``team`` names one, else those of a run that is theirs.

A run is a team's where all rows of the table ``runs`` that tell of its team tell of this one: those that name a team,
and those of processes, which had none if they name none. So nobody takes a run from another team, nor gets to see it,
by recording that it is theirs, too: then neither sees it. Nor does anybody take one that ran without a team. What names
no team, and is of no such run, is nobody's. A derived row names one team of those that its run has, so there
both must be theirs.

Least sizes of groups: no combination of some columns is shown that fewer people, or rows, share.

A group that is too small loses its last column to NULL and joins its neighbours, then the one before, and so on. What
is still too few when all are gone is not shown. So each combination of values that a role finds stands for at least
that many, whichever of them it filters by: what it selects, and the difference of any two selections, are whole groups.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.query.engine import DataFrame, SessionContext
from ranklake.lake.query.literal import literal
from ranklake.masking.masks import NULLIFY, Mask, default_mask

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract


PERSON: Final = "ranklake_person"
_ROWS: Final = "ranklake_rows"
MOST_COLUMNS: Final = 6


@dataclass(frozen=True, slots=True)
class Groups:
    """What a role sees of a table in groups alone.

    Attributes
    ----------
    by
        Columns whose combinations must be shared: what can tell who somebody is. The last goes first.
    least
        How many share each combination.
    of
        The column of whose values there are so many, seen or not; empty: so many rows.
    """

    by: tuple[str, ...]
    least: int
    of: str = ""

    @property
    def text(self) -> str:
        """In words, for people."""
        whom = f"values of {self.of}" if self.of else "rows"
        return f"each {', '.join(self.by)} shared by {self.least} {whom} or more"


def suppress_small_groups(ctx: SessionContext, frame: DataFrame, groups: Groups) -> DataFrame:
    """Return rows of a frame with small groups made larger, or left out.

    Parameters
    ----------
    frame
        What the role sees of a table, with `PERSON` beside it where groups are of people.

    A window over all rows that are left is the last to count, so no condition of a query gets beneath it. People are
    counted as distinct values, and not by rank: a sort by them would show, by the order of rows, whose are one's.
    """
    names = [name for name in frame.schema().names if name != PERSON]
    ctx.register_view(_ROWS, frame)
    inner = f"SELECT *, CAST(NULL AS INT) AS ranklake_level FROM {_ROWS}"  # noqa: S608 - our own name
    for kept in range(len(groups.by), -1, -1):
        inner = _level(inner, groups, kept)
    shown = ", ".join(_group_column(name, groups) for name in names)
    last = ctx.sql(f"SELECT {shown} FROM ({inner}) WHERE ranklake_level IS NOT NULL")  # noqa: S608 - names of contracts
    ctx.deregister_table(_ROWS)
    return last


def _level(inner: str, groups: Groups, kept: int) -> str:
    """Return SQL that says of rows that are in no group yet whether they are in one by the first columns."""
    over = ", ".join([*(f'"{name}"' for name in groups.by[:kept]), "ranklake_level IS NULL"])
    size = f"count({f'DISTINCT {PERSON}' if groups.of else '*'}) OVER (PARTITION BY {over})"
    sized = f"SELECT *, {size} AS ranklake_size FROM ({inner})"  # noqa: S608 - names of contracts
    level = f"coalesce(ranklake_level, CASE WHEN ranklake_size >= {groups.least} THEN {kept} END)"
    return f"SELECT * EXCLUDE (ranklake_size) REPLACE ({level} AS ranklake_level) FROM ({sized})"  # noqa: S608 - likewise


def _group_column(name: str, groups: Groups) -> str:
    if name not in groups.by:
        return f'"{name}"'
    return f'CASE WHEN ranklake_level > {groups.by.index(name)} THEN "{name}" END AS "{name}"'


def telling(groups: Groups, seen: Iterable[tuple[str, str]]) -> str:
    """Return a column that tells people apart beside the groups, of those seen with their class; empty for none."""
    return next((name for name, class_ in seen if class_ != "operational" and name not in groups.by), "")


def runs_of(teams: Iterable[str]) -> str:
    """Return the SELECT of the runs that are of some teams."""
    named = _named(teams)
    others = f"team NOT IN ({named}) OR team IS NULL AND pid IS NOT NULL"  # what imports add has no process
    theirs = f"count(team) > 0 AND count(*) FILTER (WHERE {others}) = 0"
    return f"SELECT run FROM runs GROUP BY run HAVING {theirs}"  # noqa: S608 - quoted


def of_teams(teams: Iterable[str], contract: "Contract") -> str:
    """Return what rows of a table must meet to be of some teams, in SQL; empty where no row of it is of any team."""
    by_run = f"run IN ({runs_of(teams)})"
    if "team" not in contract:
        return by_run if "run" in contract else ""
    own = f"team IN ({_named(teams)})"
    if "run" not in contract:
        return own
    if contract.kind == "derived":
        return f"({own} AND run IS NULL OR ({own} OR team IS NULL) AND {by_run})"
    return f"({own} OR team IS NULL AND {by_run})"


def _named(teams: Iterable[str]) -> str:
    return ", ".join(map(literal, sorted(teams)))


WORD: Final = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_OTHER_RUNS: Final = frozenset({"holder_run"})
"""Columns that name runs beside ``run``: which runs hold a device, whoever's row it is."""
_NOTHING: Final[Mapping[str, Mask]] = MappingProxyType({})
_NO_GROUPS: Final[Mapping[str, Groups]] = MappingProxyType({})
_NO_COLUMNS: Final[Mapping[tuple[str, int], Mask]] = MappingProxyType({})


class RoleError(RanklakeError):
    """A role that nobody defined, or a definition that cannot be applied."""


@dataclass(frozen=True, slots=True)
class Sight:
    """How a role sees a column.

    Attributes
    ----------
    column
        Which.
    mask
        The mask that it comes under; None where it is seen as it is, or not at all.
    is_hidden
        Whether the column is hidden.
    why
        The part of the role's file, or of the contract, that decides it.
    """

    column: "Column"
    mask: Mask | None
    is_hidden: bool
    why: str

    @property
    def visibility(self) -> str:
        """``seen``, ``hidden``, or the mask."""
        if self.is_hidden:
            return "hidden"
        return "seen" if self.mask is None else self.mask.spec


@dataclass(frozen=True, slots=True)
class Role:
    """What one role may see.

    Attributes
    ----------
    name
        Its name.
    classes
        Classes of columns that it sees as they are.
    tables
        Tables that it may ask; others are not there.
    where
        Condition in SQL that rows must meet, by table.
    runs
        Condition in SQL that rows of every table with a column ``run`` must meet; empty for none.
    masked
        Classes of columns that it sees masked, as their contracts say. Columns of classes that are in neither are
        hidden, except for those in `class_masks` and `column_masks`.
    class_masks
        The mask of a class of columns, in place of what contracts say.
    column_masks
        The mask of one column, by table and the column's permanent id, so that it holds whatever the column was called
        in an old version of the table. It goes before those of classes.
    groups
        Tables of which it sees no group that fewer share, by table.
    until
        The last day on which it may be used; None for no end.
    teams
        Teams whose rows alone it sees (`of_teams`); none: those of all. Of a table whose rows are of
        no team it sees those that `where` says, if it says any.
    """

    name: str
    classes: frozenset[str]
    tables: frozenset[str] = frozenset()
    where: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    runs: str = ""
    masked: frozenset[str] = frozenset()
    class_masks: Mapping[str, Mask] = field(default_factory=lambda: _NOTHING)
    column_masks: Mapping[tuple[str, int], Mask] = field(default_factory=lambda: _NO_COLUMNS)
    groups: Mapping[str, Groups] = field(default_factory=lambda: _NO_GROUPS)
    until: date | None = None
    teams: frozenset[str] = frozenset()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process needs to have it, too: read-only mappings do not travel."""
        masks = dict(self.class_masks), dict(self.column_masks)
        facts = self.name, self.classes, self.tables, dict(self.where), self.runs, self.masked, *masks
        return _unpickled, (*facts, dict(self.groups), self.until, self.teams)

    def refuse_ended(self, today: date) -> None:
        """Raise `RoleError` if the role has expired."""
        if self.until is not None and today > self.until:
            hint = "set until of the role to a later day, if whoever is responsible agrees"
            raise RoleError(f"role {self.name} ended with {self.until}", where=self.name, hint=hint)

    def sees(self, table: str) -> bool:
        """Return whether it may ask a table."""
        return table in self.tables

    def columns(self, contract: "Contract") -> list[str]:
        """Return the columns of a table that it sees, masked ones among them."""
        return [one.column.name for one in self.sights(contract) if not one.is_hidden]

    def sights(self, contract: "Contract") -> list[Sight]:
        """Return how it sees each column of a table that it may ask."""
        return [self._sight(contract, column) for column in contract.columns]

    def _sight(self, contract: "Contract", column: "Column") -> Sight:
        if (self.runs or self.teams) and column.name in _OTHER_RUNS:
            return Sight(column, None, is_hidden=True, why="names runs that the role may not see")
        mask, why = self._mask(contract, column)
        if mask is None:
            seen = column.class_ in self.classes
            return Sight(column, None, not seen, why=f"{column.class_}: {'in' if seen else 'not in'} classes")
        if column.name in contract.grain and mask.kind != "hash":
            return Sight(column, None, is_hidden=True, why=f"tells rows apart, which {mask.spec} would mix up")
        if not mask.applies_to(column.type):  # of a class, or as it was in an old version
            return Sight(column, NULLIFY, is_hidden=False, why=f"{why}, but {mask.spec} does not fit {column.type}")
        return Sight(column, mask, is_hidden=False, why=why)

    def _mask(self, contract: "Contract", column: "Column") -> tuple[Mask | None, str]:
        if (mask := self.column_masks.get((contract.table, column.id))) is not None:
            return mask, "masks names the column"
        if (mask := self.class_masks.get(column.class_)) is not None:
            return mask, f"masks names the class {column.class_}"
        if column.class_ not in self.masked:
            return None, ""
        source = "by its contract" if column.mask else "by its class"
        return default_mask(column.mask, column.class_, column.type), f"{column.class_}: in masked, {source}"

    def hashes(self, contracts: Iterable["Contract"]) -> str:
        """Return a column of some tables that it sees by its hash, as ``table.column``; empty if there is none."""
        for contract in contracts:
            for sight in self.sights(contract) if self.sees(contract.table) else ():
                if sight.mask is not None and sight.mask.kind == "hash":
                    return f"{contract.table}.{sight.column.name}"
        return ""

    def conditions(self, contract: "Contract") -> list[str]:
        """Return what rows of a table must meet."""
        by_team = self.by_team(contract)
        return [*self.own_conditions(contract), *([by_team] if by_team else [])]

    def own_conditions(self, contract: "Contract") -> list[str]:
        """Return what its file says that rows of a table must meet, whichever teams they are of."""
        conditions = [self.where.get(contract.table, ""), self.runs if "run" in contract else ""]
        return [one for one in conditions if one]

    def by_team(self, contract: "Contract") -> str:
        """Return what rows of a table must meet to be of its teams; empty for nothing."""
        if not self.teams:
            return ""
        return of_teams(self.teams, contract) or ("" if self.where.get(contract.table) else "false")

    def words(self, contracts: Iterable["Contract"]) -> set[str]:
        """Return the words, in lower case, of the conditions of some tables: columns and tables among them."""
        return {
            word.lower() for one in contracts for condition in self.conditions(one) for word in WORD.findall(condition)
        }


def _unpickled(  # noqa: PLR0913, PLR0917 - all that a role says
    name: str,
    classes: frozenset[str],
    tables: frozenset[str],
    where: dict[str, str],
    runs: str,
    masked: frozenset[str],
    class_masks: dict[str, Mask],
    column_masks: dict[tuple[str, int], Mask],
    groups: dict[str, Groups],
    until: date | None,
    teams: frozenset[str],
) -> Role:
    frozen = MappingProxyType(where), runs, masked, MappingProxyType(class_masks), MappingProxyType(column_masks)
    return Role(name, classes, tables, *frozen, MappingProxyType(groups), until, teams)
