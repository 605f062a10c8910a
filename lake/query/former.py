"""Former names of columns and tables: a query may use the name from before a migration, until a date.

A column under a former name is added to a table only where a query asks for it and would fail without. It stands
between two fences, columns that nobody asks for, so that what a wildcard takes along can be found and left out.

What queries call tables: a table that got another name is asked by that, and by those that it had until a date.

Its folder, and what segments, plans, roles and logs know it by, stays. So names are put on a session's tables at last,
when roles and former names of columns have made of them what the asker may see.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from ranklake.lake.query.engine import DataFrame, Expr, SessionContext, col, lit
from ranklake.lake.query.errors import FENCE, ConditionError, QueryError, missing_column, missing_table

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


_BEGIN: Final = f"{FENCE}begin_"
_END: Final = f"{FENCE}end_"
_OLD: Final = f"{FENCE}old_"
_ASIDE: Final = f"{FENCE}aside_"


@dataclass(frozen=True, slots=True)
class Former:
    """A name that a column had.

    Attributes
    ----------
    name
        The former name.
    now
        What the column is called now; of one that was split or merged, the columns that it is computed of, with commas
        between them; empty where a migration dropped it.
    migration
        Label of the migration that took the name away.
    until
        Last day on which it answers; None where nobody said one.
    factor, offset
        The column's value now is the former one times `factor` + `offset`.
    unit
        Of the values now, where it is another; empty otherwise.
    by, parts
        Of a column that was split or merged: what it was, in SQL, and the columns in that, by the names that they had
        then.
    """

    name: str
    now: str
    migration: str
    until: date | None = None
    factor: float = 1.0
    offset: float = 0.0
    unit: str = ""
    by: str = ""
    parts: "tuple[Former, ...]" = ()

    @property
    def is_converted(self) -> bool:
        """Whether the values were in another unit."""
        return (self.factor, self.offset) != (1.0, 0.0)

    @property
    def columns(self) -> tuple[str, ...]:
        """Current columns that its values are computed from."""
        if self.by:
            return tuple(dict.fromkeys(name for part in self.parts for name in part.columns))
        return (self.now,) if self.now else ()

    def is_within(self, names: Collection[str]) -> bool:
        """Whether its values can be computed from some columns."""
        return bool(self.now) and all(name in names for name in self.columns)

    def answers(self, today: date) -> bool:
        """Whether a query may still use it."""
        return bool(self.now) and (self.until is None or today <= self.until)

    @property
    def explanation(self) -> str:
        """What became of the name, in a clause."""
        if not self.now:
            return f"{self.name} was dropped by migration {self.migration}"
        if self.by:
            return f"{self.name} is {self.by} of {self.now} since migration {self.migration}"
        text = f"{self.name} is called {self.now} since migration {self.migration}"
        if not self.is_converted:
            return text
        by = f"{self.name} times {self.factor:g}" + (f" + {self.offset:g}" if self.offset else "")
        return f"{text}, in {self.unit} ({by})"


FormerOf = Callable[["Contract"], Mapping[str, Former]]
"""Returns the names that columns of a table had, by name; those that it has now are not among them."""

Chosen = Mapping[str, Mapping[str, Former]]
"""Former names that a query uses, by table."""


def plan_with_former_names(
    plan: Callable[[Chosen], _Planned],
    former: Callable[[str], Mapping[str, Former]],
    tables: Mapping[str, Any],
    today: date,
) -> tuple[_Planned, Chosen]:
    """Plan a query with as few former names as it needs; return the plan and these names.

    DataFusion says which column it misses; if that is a former name, it is added, and the query planned again. So a
    former name changes nothing of a query that can be answered without it.

    Parameters
    ----------
    plan
        Plans with some former names; raises what DataFusion does.
    former
        Returns the former names of a table, as far as the asker sees what they stand for.
    tables
        Tables that the query may name.

    Raises `QueryError` for a name that answers no more, and whatever else `plan` raises.
    """
    chosen: dict[str, dict[str, Former]] = {}
    while True:
        try:
            return plan(chosen), chosen
        except Exception as error:
            cause = error.cause if isinstance(error, ConditionError) else error
            missing = None if isinstance(cause, QueryError) else missing_column(cause)
            if missing is None:
                raise
            more = _more(*missing, former, tables)
            fresh = {table: one for table, one in more.items() if one.name not in chosen.get(table, {})}
            if not fresh:
                raise
            over = [(table, one) for table, one in fresh.items() if not one.answers(today)]
            if over:
                raise _over(*over[0], today) from error
            for table, former_name in fresh.items():
                chosen.setdefault(table, {})[former_name.name] = former_name


def _more(
    qualifier: str, name: str, former: Callable[[str], Mapping[str, Former]], tables: Mapping[str, Any]
) -> dict[str, Former]:
    """Return the column that a former name stands for, by table: of the table that qualifies it, if one does."""
    asked = [qualifier] if qualifier in tables else list(tables)
    return {table: known[name] for table in asked if name in (known := former(table))}


def _over(table: str, former_name: Former, today: date) -> QueryError:
    hint = (
        f"compute it of {former_name.now}"
        if former_name.by
        else f"write {former_name.now}"
        if former_name.now
        else "ask for an earlier time, if it is kept: --as-of TIME"
    )
    if former_name.is_converted:
        hint = f"write {former_name.now} in {former_name.unit}"
    ended = (
        f"; the old name answered until {former_name.until}"
        if former_name.until is not None and today > former_name.until
        else ""
    )
    return QueryError(
        f"unknown column {former_name.name!r} of {table}: {former_name.explanation}{ended}", where="SQL", hint=hint
    )


def add_former(ctx: SessionContext, chosen: Chosen) -> None:
    """Put views with former names in place of a session's tables, or of a role's views of them.

    A former name stands for a column of what is there: what a role does not see, it does not see under another name.
    Tables that are not there are passed over.
    """
    for table, names in chosen.items():
        if not names or not ctx.table_exist(table):
            continue
        frame = ctx.table(table)
        types = {field.name: field.type for field in frame.schema()}
        whole = frame
        asked = [one for one in names.values() if one.is_within(types)]
        for place, former_name in enumerate(asked):
            whole = _add_former_column(whole, former_name, types, f"{_OLD}{place}")
        olds = [col(f'"{_OLD}{place}"').alias(one.name) for place, one in enumerate(asked)]
        fences = [lit(value=True).alias(f"{end}{table}") for end in (_BEGIN, _END)]
        ctx.deregister_table(table)
        ctx.register_view(table, whole.select(*(col(f'"{name}"') for name in types), fences[0], *olds, fences[1]))


def _add_former_column(frame: DataFrame, former_name: Former, types: Mapping[str, pa.DataType], name: str) -> DataFrame:
    """Return a frame with the values of a former name under another one."""
    if not former_name.by:
        return frame.with_column(name, _former_value(former_name, types[former_name.now]))
    for place, part in enumerate(former_name.parts):
        frame = _add_former_column(frame, part, types, f"{name}_{place}")
    aside = [field.name for field in frame.schema()]
    parts = [col(f'"{name}_{place}"').alias(part.name) for place, part in enumerate(former_name.parts)]
    frame = frame.select(*(col(f'"{other}"').alias(f"{_ASIDE}{other}") for other in aside), *parts)
    value = frame.parse_sql_expr(former_name.by).alias(name)
    return frame.select(*(col(f'"{_ASIDE}{other}"').alias(other) for other in aside), value)


def _former_value(former_name: Former, type_: pa.DataType) -> Expr:
    """Return a column's value as it was under a former name: of its type, but whole numbers may become fractions."""
    now = col(f'"{former_name.now}"')
    if not former_name.is_converted:
        return now
    if pa.types.is_integer(type_) and not former_name.offset and abs(former_name.factor) > 1:  # exact beyond 2**53
        whole, by = now.cast(pa.int64()), lit(int(former_name.factor))
        return (whole / by).cast(pa.float64()) + (whole % by).cast(pa.float64()) / lit(float(former_name.factor))
    wide = now.cast(pa.float64())
    was = (wide - lit(float(former_name.offset)) if former_name.offset else wide) / lit(float(former_name.factor))
    return was.cast(type_) if pa.types.is_floating(type_) else was


def without_former(rows: pa.Table) -> pa.Table:
    """Return rows without what a wildcard took along: fences, and the former names between them."""
    kept, inside = [], False
    for place, name in enumerate(rows.column_names):
        if name.startswith(FENCE):
            inside = name.startswith(_BEGIN)
        elif not inside:
            kept.append(place)
    return rows if len(kept) == rows.num_columns else rows.select(kept)
