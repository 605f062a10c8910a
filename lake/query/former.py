"""Former names of columns and tables: a query may use the name from before a migration, until a date.

**Columns.** A column with a former name is added to a table only if a query would fail without it. It is added between
two marker columns ("fences"). If a query selects ``*``, the fences show which columns to drop from the result.

**Tables.** Queries use the current name of a renamed table, or a former name until its date. A renamed table keeps its
folder. Segments, plans, roles and logs name the table by its folder. So the names for queries are added to a session
last, after the role's views and the former names of columns.
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
    """A former name of a table.

    Attributes
    ----------
    name
        The former name.
    table, now
        The table's folder, and its current name in queries.
    migration
        Label of the migration that renamed the table; empty if an overlay did.
    until
        Last day on which queries may use the former name; None for no end.
    """

    name: str
    table: str
    now: str
    migration: str = ""
    until: date | None = None

    def answers(self, today: date) -> bool:
        """Whether a query may still use the former name."""
        return self.until is None or today <= self.until

    @property
    def explanation(self) -> str:
        """A clause that says what the table is called now."""
        since = f" since migration {self.migration}" if self.migration else ""
        return f"table {self.name} is called {self.now}{since}"


@dataclass(frozen=True, slots=True)
class TableNames:
    """Names of a lake's tables in queries.

    Attributes
    ----------
    now
        Current names of tables that are not named like their folder, by folder.
    former
        Former names of tables, by name.
    """

    now: Mapping[str, str] = field(default_factory=dict)
    former: Mapping[str, FormerTable] = field(default_factory=dict)

    @classmethod
    def of(cls, contracts: Iterable["Contract"], former: Mapping[str, FormerTable] | None = None) -> "TableNames":
        """Return the names of some tables. A former name that is a current name again is left out."""
        now = {contract.table: contract.called for contract in contracts if contract.called}
        current_names = set(now.values())
        usable = {
            name: table for name, table in (former or {}).items() if table.table in now and name not in current_names
        }
        return cls(now, usable)

    def mentioned(self, words: Collection[str], tables: Iterable[str]) -> list[str]:
        """Return the tables that have their current name, a former name or their folder among some words."""
        by_former = {former.table for name, former in self.former.items() if name in words}
        return [
            table for table in tables if self.now.get(table, table) in words or table in by_former or table in words
        ]

    def put(self, ctx: SessionContext, asked: Iterable[str] = (), *, keeps: bool = False) -> None:
        """Register a session's tables under their current names and under the former names in `asked`.

        Unless `keeps`, the names of their folders are removed from the session.
        """
        chosen = [self.former[name] for name in asked]
        for table, name in self.now.items():
            if not ctx.table_exist(table):
                continue
            frame = ctx.table(table)
            if not keeps:
                ctx.deregister_table(table)
            for other in (name, *(former.name for former in chosen if former.table == table)):
                if keeps and other == table:
                    continue
                if ctx.table_exist(other):
                    ctx.deregister_table(other)
                ctx.register_view(other, frame)

    def take(self, ctx: SessionContext) -> None:
        """Remove the current names from a session, which keeps the names of the folders."""
        for name in self.now.values():
            if ctx.table_exist(name):
                ctx.deregister_table(name)


def asked_by(plan: Callable[[list[str]], _Planned], names: TableNames, today: date) -> tuple[_Planned, list[str]]:
    """Plan a query with only those former names of tables that it needs; return the plan and these names.

    Parameters
    ----------
    plan
        Plans the query with some former names, and raises DataFusion's errors.

    Raises `QueryError` for a former name past its last day, and what `plan` raises.
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
_RENAMED: Final = f"{FENCE}renamed_"


@dataclass(frozen=True, slots=True)
class Former:
    """A former name of a column.

    Attributes
    ----------
    name
        The former name.
    now
        The column's current name. For a column that was split or merged, the current columns from which it is computed,
        separated by commas. Empty if a migration dropped the column.
    migration
        Label of the migration that removed the name.
    until
        Last day on which queries may use the former name; None for no end.
    factor, offset
        The current value is the former value times `factor`, plus `offset`.
    unit
        Unit of the current values, if the migration changed it; else empty.
    by, parts
        For a column that was split or merged: an SQL expression of the former value, and the columns in the expression
        under their names at that time.
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
        """Whether the former values had another unit."""
        return (self.factor, self.offset) != (1.0, 0.0)

    @property
    def columns(self) -> tuple[str, ...]:
        """Current columns from which the former values are computed."""
        if self.by:
            return tuple(dict.fromkeys(name for part in self.parts for name in part.columns))
        return (self.now,) if self.now else ()

    def is_within(self, names: Collection[str]) -> bool:
        """Whether the former values can be computed from the columns `names`."""
        return bool(self.now) and all(name in names for name in self.columns)

    def answers(self, today: date) -> bool:
        """Whether a query may still use the former name."""
        return bool(self.now) and (self.until is None or today <= self.until)

    @property
    def explanation(self) -> str:
        """A clause that says what replaced the column."""
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
"""Returns the former names of a table's columns, by name, without names that are current names again."""

Chosen = Mapping[str, Mapping[str, Former]]
"""Former names that a query uses, by table and name."""


def plan_with_former_names(
    plan: Callable[[Chosen], _Planned],
    former: Callable[[str], Mapping[str, Former]],
    tables: Mapping[str, Any],
    today: date,
) -> tuple[_Planned, Chosen]:
    """Plan a query with only those former names of columns that it needs; return the plan and these names.

    If DataFusion reports an unknown column that is a former name, the name is added and the query is planned again. So
    former names have no effect on a query that works without them.

    Parameters
    ----------
    plan
        Plans the query with some former names, and raises DataFusion's errors.
    former
        Returns the former names of a table whose current columns are visible.
    tables
        Tables that the query may use.

    Raises `QueryError` for a former name past its last day, and what `plan` raises.
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
            matches = _matches(*missing, former, tables)
            added = {table: match for table, match in matches.items() if match.name not in chosen.get(table, {})}
            if not added:
                raise
            expired = [(table, match) for table, match in added.items() if not match.answers(today)]
            if expired:
                raise _expired_error(*expired[0], today) from error
            for table, former_name in added.items():
                chosen.setdefault(table, {})[former_name.name] = former_name


def _matches(
    qualifier: str, name: str, former: Callable[[str], Mapping[str, Former]], tables: Mapping[str, Any]
) -> dict[str, Former]:
    """Return the former columns of a name, by table: only of the table `qualifier`, if the query has one."""
    candidates = [qualifier] if qualifier in tables else list(tables)
    return {table: names[name] for table in candidates if name in (names := former(table))}


def _expired_error(table: str, former_name: Former, today: date) -> QueryError:
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
    """Replace a session's tables, or a role's views, by views that also have some former names.

    A former name is computed from the visible columns, so a hidden column is hidden under its former name, too. Tables
    that are not in the session are skipped.
    """
    for table, names in chosen.items():
        if not names or not ctx.table_exist(table):
            continue
        frame = ctx.table(table)
        types = {field.name: field.type for field in frame.schema()}
        computable = [former_name for former_name in names.values() if former_name.is_within(types)]
        for index, former_name in enumerate(computable):
            frame = _add_former_column(frame, former_name, types, f"{_OLD}{index}")
        olds = [col(f'"{_OLD}{index}"').alias(former_name.name) for index, former_name in enumerate(computable)]
        fences = [lit(value=True).alias(f"{end}{table}") for end in (_BEGIN, _END)]
        ctx.deregister_table(table)
        ctx.register_view(table, frame.select(*(col(f'"{name}"') for name in types), fences[0], *olds, fences[1]))


def _add_former_column(frame: DataFrame, former_name: Former, types: Mapping[str, pa.DataType], name: str) -> DataFrame:
    """Add the values of a former name to a frame, as the column `name`."""
    if not former_name.by:
        return frame.with_column(name, _former_value(former_name, types[former_name.now]))
    for index, part in enumerate(former_name.parts):
        frame = _add_former_column(frame, part, types, f"{name}_{index}")
    # The expression uses former names that may be current names of other columns, so all columns are renamed meanwhile.
    others = [field.name for field in frame.schema()]
    parts = [col(f'"{name}_{index}"').alias(part.name) for index, part in enumerate(former_name.parts)]
    frame = frame.select(*(col(f'"{other}"').alias(f"{_RENAMED}{other}") for other in others), *parts)
    value = frame.parse_sql_expr(former_name.by).alias(name)
    return frame.select(*(col(f'"{_RENAMED}{other}"').alias(other) for other in others), value)


def _former_value(former_name: Former, type_: pa.DataType) -> Expr:
    """Return an expression of a column's former value, in its former unit. Integers become floats if converted."""
    now = col(f'"{former_name.now}"')
    if not former_name.is_converted:
        return now
    if pa.types.is_integer(type_) and not former_name.offset and abs(former_name.factor) > 1:  # exact beyond 2**53
        integer, factor = now.cast(pa.int64()), lit(int(former_name.factor))
        remainder = (integer % factor).cast(pa.float64()) / lit(float(former_name.factor))
        return (integer / factor).cast(pa.float64()) + remainder
    number = now.cast(pa.float64())
    shifted = number - lit(float(former_name.offset)) if former_name.offset else number
    former_value = shifted / lit(float(former_name.factor))
    return former_value.cast(type_) if pa.types.is_floating(type_) else former_value


def without_former(rows: pa.Table) -> pa.Table:
    """Drop the columns that ``SELECT *`` added for former names: the fences, and the columns between them."""
    kept, inside = [], False
    for index, name in enumerate(rows.column_names):
        if name.startswith(FENCE):
            inside = name.startswith(_BEGIN)
        elif not inside:
            kept.append(index)
    return rows if len(kept) == rows.num_columns else rows.select(kept)
