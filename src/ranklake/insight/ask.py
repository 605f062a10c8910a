"""Answers SQL with present names of columns, former names until their end date, and series of metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ranklake.lake.migrations.former import former_names, former_tables
from ranklake.lake.query.sql import Answer, Moment, answer
from ranklake.lake.query.usage import LoggedQuery
from ranklake.lake.rollups.life.series import views

if TYPE_CHECKING:
    from ranklake.lake.query.former import Former, FormerTable
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class UsedTable:
    """A former name of a table that a query used."""

    former: "FormerTable"

    @property
    def message(self) -> str:
        """The warning, as one line."""
        until = "for now" if self.former.until is None else f"until {self.former.until}"
        return f"the query names {self.former.name}, which answers {until}: {self.former.explanation}"


@dataclass(frozen=True, slots=True)
class UsedName:
    """A former name that a query used.

    Attributes
    ----------
    table
        Table of the column.
    former
        The former and the present name.
    by_role
        Whether only the role's conditions use it, and not the query.
    """

    table: str
    former: "Former"
    by_role: bool

    @property
    def message(self) -> str:
        """The warning, as one line; it does not reveal the role's conditions."""
        until = "for now" if self.former.until is None else f"until {self.former.until}"
        if self.by_role:
            return f"a condition of the role uses a former name, which answers {until}; tell whoever keeps the lake"
        return f"the query names {self.table}.{self.former.name}, which answers {until}: {self.former.explanation}"


def ask(
    lake: "Lake",
    text: str,
    params: Mapping[str, Any] | None = None,
    limit: int | None = None,
    *,
    as_of: Moment = None,
    role: "Role | None" = None,
    verify: bool = False,
    rehydrated: bool = False,
) -> Answer:
    """Answer one SELECT, as `ranklake.lake.query.sql.answer` does, with former names and the view ``series``.

    Raises as it does, and `ranklake.lake.rollups.life.state.MetricLifeError` for a series of no metric.
    """
    return answer(
        lake,
        text,
        params,
        limit,
        as_of=as_of,
        role=role,
        verify=verify,
        views=views(lake, text, role=role),
        former=former_names,
        former_tables=lambda: former_tables(lake.contracts()),
        rehydrated=rehydrated,
    )


def used_former_names(answer_: Answer) -> Iterator[UsedName | UsedTable]:
    """Yield the former names in a query, each once."""
    yield from map(UsedTable, answer_.sketch.tables)
    for chosen, by_role in ((answer_.sketch.asked, False), (answer_.sketch.beneath, True)):
        for table, names in sorted(chosen.items()):
            yield from (UsedName(table, names[name], by_role) for name in sorted(names))


def query_log_entry(answer_: Answer, consumer: str, role: "Role | None") -> LoggedQuery:
    """Return the query log's entry: columns and former names, without values or the query's text."""
    former = {table: {name: one.now for name, one in names.items()} for table, names in answer_.sketch.asked.items()}
    return LoggedQuery(consumer, None if role is None else role.name, answer_.sketch.columns, former)
