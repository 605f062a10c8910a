"""Roles: which tables and rows a query may see, and which columns it sees, masked or hidden.

A role sees only what its file lists. `ranklake.lake.query.role_file` describes the file format, and
`ranklake.lake.query.admission` applies a role to a query.

**Teams.** A role with teams sees rows whose column ``team`` names one of its teams, and rows of its teams' runs.

A run belongs to a team if every row of ``runs`` for it that was recorded by a process, or that names a team, names this
team. So a user cannot get access to another team's run by recording the same run for their own team: then no team sees
it. A run that was recorded without a team cannot be claimed in this way either. A row without a team and without such a
run belongs to no team. A row of a derived table names one of its run's teams. There, both the row's team and its run
must belong to the role.

**Groups.** For some columns, a role sees a combination of values only if enough people (or rows) share it.

If a group is too small, its last column becomes NULL, which merges it with similar groups. Then the column before, and
so on. Rows that are still in a group that is too small are not shown. So every combination of values that a role sees
has the minimum size, for any filter. Any selection consists of whole groups, and so does the difference of two
selections.
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
    """Minimum size of groups in a table.

    Attributes
    ----------
    by
        Columns that can identify people. Their combinations must be shared. The last one becomes NULL first.
    least
        Minimum size of each group.
    of
        Column whose distinct values are counted, such as the user; it may be hidden. Empty to count rows.
    """

    by: tuple[str, ...]
    least: int
    of: str = ""

    @property
    def text(self) -> str:
        """The rule as a clause for people."""
        counted = f"values of {self.of}" if self.of else "rows"
        return f"each {', '.join(self.by)} shared by {self.least} {counted} or more"


def suppress_small_groups(ctx: SessionContext, frame: DataFrame, groups: Groups) -> DataFrame:
    """Merge groups that are too small, and drop rows that are still in a group that is too small.

    Parameters
    ----------
    frame
        The columns of a table that the role sees. If people are counted, also the column `PERSON`.

    The last step is a window function over all remaining rows, so an optimizer cannot move a condition of the query
    below it. People are counted as distinct values. A dense rank would sort by person, and the order of rows would
    reveal which rows are of the same person.
    """
    names = [name for name in frame.schema().names if name != PERSON]
    ctx.register_view(_ROWS, frame)
    select = f"SELECT *, CAST(NULL AS INT) AS ranklake_level FROM {_ROWS}"  # noqa: S608 - our own name
    for level in range(len(groups.by), -1, -1):
        select = _with_level(select, groups, level)
    columns = ", ".join(_group_column(name, groups) for name in names)
    result = ctx.sql(f"SELECT {columns} FROM ({select}) WHERE ranklake_level IS NOT NULL")  # noqa: S608 - names of contracts
    ctx.deregister_table(_ROWS)
    return result


def _with_level(inner: str, groups: Groups, level: int) -> str:
    """Return SQL that sets ``ranklake_level`` to `level` for rows whose group by the first `level` columns is large.

    Rows that already have a level keep it.
    """
    over = ", ".join([*(f'"{name}"' for name in groups.by[:level]), "ranklake_level IS NULL"])
    size = f"count({f'DISTINCT {PERSON}' if groups.of else '*'}) OVER (PARTITION BY {over})"
    sized = f"SELECT *, {size} AS ranklake_size FROM ({inner})"  # noqa: S608 - names of contracts
    new_level = f"coalesce(ranklake_level, CASE WHEN ranklake_size >= {groups.least} THEN {level} END)"
    return f"SELECT * EXCLUDE (ranklake_size) REPLACE ({new_level} AS ranklake_level) FROM ({sized})"  # noqa: S608 - likewise


def _group_column(name: str, groups: Groups) -> str:
    if name not in groups.by:
        return f'"{name}"'
    return f'CASE WHEN ranklake_level > {groups.by.index(name)} THEN "{name}" END AS "{name}"'


def identifying_column(groups: Groups, seen: Iterable[tuple[str, str]]) -> str:
    """Return the first visible column outside of `groups.by` that can identify people; empty if there is none.

    Parameters
    ----------
    seen
        Names and classes of the visible columns.
    """
    return next((name for name, class_ in seen if class_ != "operational" and name not in groups.by), "")


def runs_of(teams: Iterable[str]) -> str:
    """Return a SELECT of the runs that belong to some teams."""
    names = _team_list(teams)
    others = f"team NOT IN ({names}) OR team IS NULL AND pid IS NOT NULL"  # imported rows have no process id
    belongs = f"count(team) > 0 AND count(*) FILTER (WHERE {others}) = 0"
    return f"SELECT run FROM runs GROUP BY run HAVING {belongs}"  # noqa: S608 - quoted


def of_teams(teams: Iterable[str], contract: "Contract") -> str:
    """Return the SQL condition for the rows of a table that belong to some teams.

    Empty if the table has neither a column ``team`` nor a column ``run``.
    """
    by_run = f"run IN ({runs_of(teams)})"
    if "team" not in contract:
        return by_run if "run" in contract else ""
    by_team = f"team IN ({_team_list(teams)})"
    if "run" not in contract:
        return by_team
    if contract.kind == "derived":
        return f"({by_team} AND run IS NULL OR ({by_team} OR team IS NULL) AND {by_run})"
    return f"({by_team} OR team IS NULL AND {by_run})"


def _team_list(teams: Iterable[str]) -> str:
    return ", ".join(map(literal, sorted(teams)))


WORD: Final = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_OTHER_RUNS: Final = frozenset({"holder_run"})
"""Columns besides ``run`` that name runs: the run that uses a device, in rows of another run."""
_NO_MASKS: Final[Mapping[str, Mask]] = MappingProxyType({})
_NO_GROUPS: Final[Mapping[str, Groups]] = MappingProxyType({})
_NO_COLUMNS: Final[Mapping[tuple[str, int], Mask]] = MappingProxyType({})


class RoleError(RanklakeError):
    """An unknown or expired role, or an invalid definition of a role."""


@dataclass(frozen=True, slots=True)
class Sight:
    """How a role sees a column.

    Attributes
    ----------
    column
        The column.
    mask
        The mask of its values; None if the role sees the values themselves, or if the column is hidden.
    is_hidden
        Whether the column is hidden.
    why
        The part of the role's file or of the contract that decides it.
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
        Name of the role.
    classes
        Classes of columns that it sees unmasked.
    tables
        Tables that it may query. Other tables do not exist for it.
    where
        SQL condition for visible rows, by table.
    runs
        SQL condition for visible rows of every table with a column ``run``; empty for none.
    masked
        Classes of columns that it sees with the masks in their contracts. Columns of classes that are neither in
        `classes` nor in `masked` are hidden, except for those in `class_masks` and `column_masks`.
    class_masks
        Mask by class of columns. It replaces the masks in contracts.
    column_masks
        Mask of one column, by table and the column's permanent id, so that it applies under former names, too. It takes
        precedence over masks of classes.
    groups
        Minimum sizes of groups, by table.
    until
        Last day on which the role may be used; None for no end.
    teams
        If not empty, the role only sees rows of these teams (`of_teams`). Of a table without teams and runs it sees the
        rows that `where` selects, or none without a condition.
    """

    name: str
    classes: frozenset[str]
    tables: frozenset[str] = frozenset()
    where: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    runs: str = ""
    masked: frozenset[str] = frozenset()
    class_masks: Mapping[str, Mask] = field(default_factory=lambda: _NO_MASKS)
    column_masks: Mapping[tuple[str, int], Mask] = field(default_factory=lambda: _NO_COLUMNS)
    groups: Mapping[str, Groups] = field(default_factory=lambda: _NO_GROUPS)
    until: date | None = None
    teams: frozenset[str] = frozenset()

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickle, which cannot handle read-only mappings."""
        masks = dict(self.class_masks), dict(self.column_masks)
        facts = self.name, self.classes, self.tables, dict(self.where), self.runs, self.masked, *masks
        return _unpickled, (*facts, dict(self.groups), self.until, self.teams)

    def refuse_ended(self, today: date) -> None:
        """Raise `RoleError` if the role has expired."""
        if self.until is not None and today > self.until:
            hint = "set until of the role to a later day, if whoever is responsible agrees"
            raise RoleError(f"role {self.name} ended with {self.until}", where=self.name, hint=hint)

    def sees(self, table: str) -> bool:
        """Whether the role may query a table."""
        return table in self.tables

    def columns(self, contract: "Contract") -> list[str]:
        """Return the names of the visible columns of a table, including masked ones."""
        return [sight.column.name for sight in self.sights(contract) if not sight.is_hidden]

    def sights(self, contract: "Contract") -> list[Sight]:
        """Return how the role sees each column of a table."""
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
        if not mask.applies_to(column.type):  # a mask of a class, or a column with another type in an old version
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
        """Return the first column that the role sees as a hash, as ``table.column``; empty if there is none."""
        for contract in contracts:
            for sight in self.sights(contract) if self.sees(contract.table) else ():
                if sight.mask is not None and sight.mask.kind == "hash":
                    return f"{contract.table}.{sight.column.name}"
        return ""

    def conditions(self, contract: "Contract") -> list[str]:
        """Return all SQL conditions for visible rows of a table."""
        by_team = self.by_team(contract)
        return [*self.own_conditions(contract), *([by_team] if by_team else [])]

    def own_conditions(self, contract: "Contract") -> list[str]:
        """Return the SQL conditions for rows of a table from the role's file, without the condition by team."""
        conditions = [self.where.get(contract.table, ""), self.runs if "run" in contract else ""]
        return [condition for condition in conditions if condition]

    def by_team(self, contract: "Contract") -> str:
        """Return the SQL condition for rows of the role's teams; empty if all rows are visible."""
        if not self.teams:
            return ""
        return of_teams(self.teams, contract) or ("" if self.where.get(contract.table) else "false")

    def words(self, contracts: Iterable["Contract"]) -> set[str]:
        """Return all words, in lower case, in the conditions on some tables. Among them are columns and tables."""
        return {
            word.lower()
            for contract in contracts
            for condition in self.conditions(contract)
            for word in WORD.findall(condition)
        }


def _unpickled(  # noqa: PLR0913, PLR0917 - all attributes of a role
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
