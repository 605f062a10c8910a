"""Least sizes of groups: no combination of some columns is shown that fewer people, or rows, share.

A group that is too small loses its last column to NULL and joins its neighbours, then the one before, and so on. What
is still too few when all are gone is not shown. So each combination of values that a role finds stands for at least
that many, whichever of them it filters by: what it selects, and the difference of any two selections, are whole groups.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ranklake.lake.query.engine import DataFrame, SessionContext

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
