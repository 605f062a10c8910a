"""The SELECT of a metric's series, put together of all that its values were recorded as.

    what it is now, by its life ─▶ sources: rows of scalars, a column, parts that add up; each with factor and offset
        ─▶ one SELECT: of what two sources have of a step, the newer counts

It asks the tables, so that a role sees of a series what it sees of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranklake.errors import did_you_mean
from ranklake.lake.migrations.registry import chain_of_all
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.life.state import Life, Member, MetricLifeError, members
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract
    from ranklake.lake.store.lake import Lake

_LONG: Final = ("scalars", "distributions")


@dataclass(frozen=True, slots=True)
class Place:
    """Where values lie.

    Attributes
    ----------
    table, column
        As SQL has them now.
    metric
        Name under which they were recorded.
    names
        All columns of the table.
    factor, offset
        The metric's value is what lies there times `factor` + `offset`.
    """

    table: str
    column: str
    metric: str
    names: tuple[str, ...]
    factor: float = 1.0
    offset: float = 0.0

    @property
    def is_long(self) -> bool:
        """Whether rows of the table name their metric."""
        return self.table in _LONG


def place_of(lake: "Lake", metric: str) -> Iterator[Place]:
    """Yield where values of a metric lie: under its own name, under others that it has, and in its column.

    Raises `MetricLifeError` where only a migration could tell what is in the column.
    """
    known = lake.catalog.metrics().get(metric)
    names = (metric,) if known is None else (metric, *known.aka)
    scalars = lake.contract("scalars").names
    for name in names:
        yield Place("scalars", "value", name, tuple(scalars))
    table, _, column = (known.stored_in if known is not None else "").partition(".")
    if table and table not in _LONG:
        yield _column(lake, metric, table, column)


def _column(lake: "Lake", metric: str, table: str, column: str) -> Place:
    contract = lake.contract(table)
    meant = contract.column(column)
    logged = as_read(latest(lake.tables, table), contract)
    stored = next((one for one in logged.columns if one.id == meant.id), None)
    if stored is None:
        hint = "run: ranklake migrate apply"
        raise MetricLifeError(f"{table}.{column} is not there before its migration", where=metric, hint=hint)
    factor, offset = (1.0, 0.0) if stored.unit == meant.unit else _pending_conversion(contract, logged, stored)
    return Place(table, stored.name, metric, tuple(logged.names), factor, offset)


def _pending_conversion(contract: "Contract", logged: "Contract", stored: "Column") -> tuple[float, float]:
    """Return factor and offset of the conversions that a column of the log still has before it."""
    factor, offset, name = 1.0, 0.0, stored.name
    for migration in chain_of_all(contract, max(logged.version, 1), logged.added_version, overlay=contract.operators):
        for step in migration.steps:
            lead = step.successor(name)
            assert lead is not None, "a column that is there now was dropped on the way"
            factor, offset, name = factor * lead.factor, offset * lead.factor + lead.offset, lead.name
    return factor, offset


Read = Callable[[Member, Place], str]
"""What makes the SELECT of one place."""
KEY: Final = ("run", "attempt", "rank", "step")
COLUMNS: Final = (*KEY, "ts", "value", "source", "reason")

_TYPES: Final = {"run": "VARCHAR", "attempt": "BIGINT", "rank": "BIGINT", "step": "BIGINT"}
AT: Final = "CASE WHEN step IS NULL THEN ts END AS at"
"""What rows that have no step are matched by."""
_FOLDED: Final = "downsampled"
_LAST: Final = 2**31
"""Where a sum that lacks a part stands: a value of any age is better than none."""


def select(lake: "Lake", every: Mapping[str, Life], metric: str, *, intervals: bool = False) -> str:
    """Return the SELECT of a metric's series, with the columns `COLUMNS`.

    Parameters
    ----------
    intervals
        Whether means of intervals stand for rows that were downsampled; the query then asks that table, too.

    Raises `MetricLifeError` for what is no metric, and where its column waits for a migration.
    """
    if metric not in every:
        raise MetricLifeError("there is no such metric", where=metric, hint=did_you_mean(metric, every) or "look again")
    return _metric_select(lake, every, metric, frozenset(), (_rows, _mean_sql) if intervals else (_rows,))


def select_sql(columns: Sequence[str], source: str, rest: str = "") -> str:
    """Return a SELECT; a source of more than a word is one itself."""
    relation = source if source.isidentifier() else f"(\n{source}\n)"
    return f"SELECT {', '.join(columns)} FROM {relation} {rest}".rstrip()  # noqa: S608 - our own words, and quoted texts


def union_all(parts: Sequence[str]) -> str:
    """Return the rows of several SELECTs."""
    return "\nUNION ALL\n".join(parts)


def _metric_select(
    lake: "Lake", every: Mapping[str, Life], metric: str, above: frozenset[str], read: tuple[Read, ...]
) -> str:
    """Return the SELECT of a metric, without what is already part of those above it."""
    mine = [one for one in members(every, metric) if one.life.metric not in above]
    seen = above | {one.life.metric for one in mine}
    parts = []
    for member in mine:
        parts += [rows(member, place) for place in place_of(lake, member.life.metric) for rows in read]
        if len(member.life.links) > 1:
            parts.append(_sum(lake, every, member, seen, read))
    best = f"min(prio) OVER (PARTITION BY {', '.join(KEY)}, at) AS best"
    return select_sql(COLUMNS, select_sql(["*", best], union_all(parts)), "WHERE prio = best")


def _rows(member: Member, place: Place) -> str:
    """Return the SELECT of what was recorded in one place."""
    keys = [name if name in place.names else f"CAST(NULL AS {_TYPES[name]}) AS {name}" for name in KEY]
    at = AT if "step" in place.names else "ts AS at"
    value = scale_sql(f'CAST("{place.column}" AS DOUBLE)', place.factor, place.offset)
    reason, where = "CAST(NULL AS VARCHAR)", f'"{place.column}" IS NOT NULL'
    if place.is_long:
        reason = "CASE WHEN value_flag IS NOT NULL THEN 'recorded as ' || value_flag END"
        where = f"metric = {literal(place.metric)}"
    value, reason = _or_default(member, value, reason)
    columns = [
        f"{value} AS value",
        f"{literal(place.metric)} AS source",
        f"{reason} AS reason",
        f"{2 * member.age} AS prio",
    ]
    return select_sql([*keys, "ts", at, *columns], place.table, f"WHERE {where}")


def _mean_sql(member: Member, place: Place) -> str:
    """Return the SELECT of means of what was recorded in one place, and downsampled since: by interval, without a step.

    What a column was called before a migration does not count: aggregates keep the name that it had.
    """
    keys = [*KEY[:-1], "CAST(NULL AS BIGINT) AS step"]
    value, reason = _or_default(
        member,
        scale_sql("CASE WHEN count > 0 THEN sum / count END", place.factor, place.offset),
        "CASE WHEN count = 0 THEN 'no finite value in the interval' END",
    )
    where = f'"table" = {literal(place.table)} AND "column" = {literal(place.column)}'
    where += f" AND metric = {literal(place.metric)}" if place.is_long else ""
    same = [*KEY[:-1], "series", "ts", "interval_ns"]
    figures = [*same, 'sum("sum") AS sum', 'sum("count") AS count']
    added = select_sql(figures, _FOLDED, f"WHERE {where} GROUP BY {', '.join(same)}")
    source = f"{literal(f'{place.metric}, means of ')} || CAST(interval_ns / 1000000000 AS VARCHAR) || ' s'"
    columns = [f"{value} AS value", f"{source} AS source", f"{reason} AS reason", f"{2 * member.age} AS prio"]
    return select_sql([*keys, "ts", "ts AS at", *columns], added)


def _sum(lake: "Lake", every: Mapping[str, Life], member: Member, seen: frozenset[str], read: tuple[Read, ...]) -> str:
    """Return the SELECT of what a metric was split into, added up: NULL, and why, where a step lacks a part."""
    count = len(member.life.links)
    parts = []
    for number, link in enumerate(member.life.links):
        value = scale_sql("value", 1 / link.factor, -link.offset / link.factor)
        columns = [*KEY, "ts", AT, f"{value} AS value", f"{number} AS part"]
        parts.append(select_sql(columns, _metric_select(lake, every, link.name, seen - {link.name}, read)))
    whole = f"count(value) = {count} AND count(*) = {count} AND count(DISTINCT part) = {count}"
    names = literal(" + ".join(link.name for link in member.life.links))
    value, reason = _or_default(
        member, f"CASE WHEN {whole} THEN sum(value) END", f"CASE WHEN NOT ({whole}) THEN 'not every part once' END"
    )
    columns = [
        f"{value} AS value",
        f"{names} AS source",
        f"{reason} AS reason",
        f"CASE WHEN {whole} THEN {2 * member.age - 1} ELSE {_LAST} END AS prio",
    ]
    return select_sql([*KEY, "max(ts) AS ts", "at", *columns], union_all(parts), f"GROUP BY {', '.join(KEY)}, at")


def _or_default(member: Member, value: str, reason: str) -> tuple[str, str]:
    """Return a metric's value in the series' unit, and why there is none; a default stands for it, and is reported."""
    if member.life.default is not None:
        value = f"coalesce({value}, CAST({member.life.default!r} AS DOUBLE))"
        reason = f"'default: ' || {reason}"
    return scale_sql(value, member.factor, member.offset), reason


def scale_sql(value: str, factor: float, offset: float) -> str:
    """Return a value times a factor, plus an offset."""
    if (factor, offset) == (1.0, 0.0):
        return value
    return f"({value} * CAST({factor!r} AS DOUBLE) + CAST({offset!r} AS DOUBLE))"
