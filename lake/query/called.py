"""What queries call tables: a table that got another name is asked by that, and by those that it had until a date.

Its folder, and what segments, plans, roles and logs know it by, stays. So names are put on a session's tables at last,
when roles and former names of columns have made of them what the asker may see.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, TypeVar

from ranklake.lake.query.engine import SessionContext
from ranklake.lake.query.errors import QueryError, missing_table

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract

_Planned = TypeVar("_Planned")


@dataclass(frozen=True, slots=True)
class FormerTable:
    """A name that a table had.

    Attributes
    ----------
    name
        The former name.
    table, now
        The table, by its folder; and what queries call it now.
    migration
        Label of the migration that took the name away; empty where an overlay did.
    until
        Last day on which it answers; None where nobody said one.
    """

    name: str
    table: str
    now: str
    migration: str = ""
    until: date | None = None

    def answers(self, today: date) -> bool:
        """Whether a query may still use it."""
        return self.until is None or today <= self.until

    @property
    def explanation(self) -> str:
        """What became of the name, in a clause."""
        since = f" since migration {self.migration}" if self.migration else ""
        return f"table {self.name} is called {self.now}{since}"


@dataclass(frozen=True, slots=True)
class TableNames:
    """Names of a lake's tables.

    Attributes
    ----------
    now
        What tables are called that are not called by their folder, by that.
    former
        Names that tables had, by name.
    """

    now: Mapping[str, str] = field(default_factory=dict)
    former: Mapping[str, FormerTable] = field(default_factory=dict)

    @classmethod
    def of(cls, contracts: Iterable["Contract"], former: Mapping[str, FormerTable] | None = None) -> "TableNames":
        """Return the names of some tables."""
        now = {one.table: one.called for one in contracts if one.called}
        spoken = set(now.values())
        return cls(now, {name: one for name, one in (former or {}).items() if one.table in now and name not in spoken})

    def mentioned(self, words: Collection[str], tables: Iterable[str]) -> list[str]:
        """Return the tables one of whose names is among some words."""
        named = {one.table for name, one in self.former.items() if name in words}
        return [table for table in tables if self.now.get(table, table) in words or table in named or table in words]

    def put(self, ctx: SessionContext, asked: Iterable[str] = (), *, keeps: bool = False) -> None:
        """Have a session know its tables by these names, and by some former ones; unless kept, not by their folders."""
        chosen = [self.former[name] for name in asked]
        for table, name in self.now.items():
            if not ctx.table_exist(table):
                continue
            frame = ctx.table(table)
            if not keeps:
                ctx.deregister_table(table)
            for other in (name, *(one.name for one in chosen if one.table == table)):
                if keeps and other == table:
                    continue
                if ctx.table_exist(other):
                    ctx.deregister_table(other)
                ctx.register_view(other, frame)

    def take(self, ctx: SessionContext) -> None:
        """Have a session know its tables by their folders alone."""
        for name in self.now.values():
            if ctx.table_exist(name):
                ctx.deregister_table(name)


def asked_by(plan: Callable[[list[str]], _Planned], names: TableNames, today: date) -> tuple[_Planned, list[str]]:
    """Plan a query with as few former names of tables as it needs; return the plan and these names.

    Parameters
    ----------
    plan
        Plans with some former names; raises what DataFusion does.

    Raises `QueryError` for a name that answers no more, and whatever else `plan` raises.
    """
    asked: list[str] = []
    while True:
        try:
            return plan(asked), asked
        except QueryError:
            raise
        except Exception as error:
            former = names.former.get(missing_table(error))
            if former is None or former.name in asked:
                raise
            if not former.answers(today):
                ended = f"{former.explanation}; the old name answered until {former.until}"
                raise QueryError(
                    f"unknown table {former.name!r}: {ended}", where="SQL", hint=f"write {former.now}"
                ) from error
            asked.append(former.name)
