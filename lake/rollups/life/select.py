"""Builds the SELECT of a metric's series from all names, columns and parts in which its values were recorded.

    the metric's life ─▶ sources: rows of scalars, a column, parts that are added up; each with factor and offset
        ─▶ one SELECT; if two sources have a value for a step, the newer source is used

The SELECT reads the tables, so a role's limits on the tables also apply to series.
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
    """A column with values of a metric.

    Attributes
    ----------
    table, column
        Current names for SQL.
    metric
        Name under which the values were recorded.
    names
        All columns of the table.
    factor, offset
        The metric's value is the stored value times `factor`, plus `offset`.
    """

    table: str
    column: str
    metric: str
    names: tuple[str, ...]
    factor: float = 1.0
    offset: float = 0.0

    @property
    def is_long(self) -> bool:
        """Whether the table has the metric's name in each row."""
        return self.table in _LONG


def place_of(lake: "Lake", metric: str) -> Iterator[Place]:
    """Yield the columns with values of a metric: ``scalars.value`` under each of its names, and its own column.

    Raises `MetricLifeError` if a migration must create its column first.
    """
    entry = lake.catalog.metrics().get(metric)
    names = (metric,) if entry is None else (metric, *entry.aka)
    scalars = lake.contract("scalars").names
    for name in names:
        yield Place("scalars", "value", name, tuple(scalars))
    table, _, column = (entry.stored_in if entry is not None else "").partition(".")
    if table and table not in _LONG:
        yield _column(lake, metric, table, column)


def _column(lake: "Lake", metric: str, table: str, column: str) -> Place:
    contract = lake.contract(table)
    current = contract.column(column)
    logged = as_read(latest(lake.tables, table), contract)
    stored = next((candidate for candidate in logged.columns if candidate.id == current.id), None)
    if stored is None:
        hint = "run: ranklake migrate apply"
        raise MetricLifeError(f"{table}.{column} is not there before its migration", where=metric, hint=hint)
    factor, offset = (1.0, 0.0) if stored.unit == current.unit else _pending_conversion(contract, logged, stored)
    return Place(table, stored.name, metric, tuple(logged.names), factor, offset)


def _pending_conversion(contract: "Contract", logged: "Contract", stored: "Column") -> tuple[float, float]:
    """Return factor and offset of a column's unit conversions by migrations that are not applied yet."""
    factor, offset, name = 1.0, 0.0, stored.name
    for migration in chain_of_all(contract, max(logged.version, 1), logged.added_version, overlay=contract.operators):
        for step in migration.steps:
            successor = step.successor(name)
            assert successor is not None, "a current column was dropped by an earlier migration"
            factor, offset = factor * successor.factor, offset * successor.factor + successor.offset
            name = successor.name
    return factor, offset


Read = Callable[[Member, Place], str]
"""Returns the SELECT of one source."""
KEY: Final = ("run", "attempt", "rank", "step")
COLUMNS: Final = (*KEY, "ts", "value", "source", "reason")

_TYPES: Final = {"run": "VARCHAR", "attempt": "BIGINT", "rank": "BIGINT", "step": "BIGINT"}
AT: Final = "CASE WHEN step IS NULL THEN ts END AS at"
"""SQL of the time, by which rows without a step are matched."""
_FOLDED: Final = "downsampled"
_LAST: Final = 2**31
"""Priority of a sum that lacks a part: any other value is preferred."""


def select(lake: "Lake", every: Mapping[str, Life], metric: str, *, intervals: bool = False) -> str:
    """Return the SELECT of a metric's series, with the columns `COLUMNS`.

    Parameters
    ----------
    intervals
        Whether to add means of intervals for rows that were downsampled, from the table ``downsampled``.

    Raises `MetricLifeError` for an unknown metric, and if a migration must create its column first.
    """
    if metric not in every:
        raise MetricLifeError("there is no such metric", where=metric, hint=did_you_mean(metric, every) or "look again")
    return _metric_select(lake, every, metric, frozenset(), (_rows, _mean_sql) if intervals else (_rows,))


def select_sql(columns: Sequence[str], source: str, rest: str = "") -> str:
    """Return a SELECT of some columns from a table or a sub-SELECT, followed by `rest`, such as a WHERE clause."""
    relation = source if source.isidentifier() else f"(\n{source}\n)"
    return f"SELECT {', '.join(columns)} FROM {relation} {rest}".rstrip()  # noqa: S608 - our own words, and quoted texts


def union_all(parts: Sequence[str]) -> str:
    """Return a UNION ALL of SELECTs."""
    return "\nUNION ALL\n".join(parts)


def _metric_select(
    lake: "Lake", every: Mapping[str, Life], metric: str, above: frozenset[str], read: tuple[Read, ...]
) -> str:
    """Return the SELECT of a metric, without the metrics in `above`, which enclosing SELECTs already read."""
    new_members = [member for member in members(every, metric) if member.life.metric not in above]
    seen = above | {member.life.metric for member in new_members}
    parts = []
    for member in new_members:
        parts += [rows(member, place) for place in place_of(lake, member.life.metric) for rows in read]
        if len(member.life.links) > 1:
            parts.append(_sum(lake, every, member, seen, read))
    best = f"min(prio) OVER (PARTITION BY {', '.join(KEY)}, at) AS best"
    return select_sql(COLUMNS, select_sql(["*", best], union_all(parts)), "WHERE prio = best")


def _rows(member: Member, place: Place) -> str:
    """Return the SELECT of a metric's values in one column."""
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
    """Return the SELECT of a metric's downsampled values from one column: means of intervals, without a step.

    Values that were downsampled before a migration renamed the column are not found, since aggregates keep the old
    name.
    """
    keys = [*KEY[:-1], "CAST(NULL AS BIGINT) AS step"]
    value, reason = _or_default(
        member,
        scale_sql("CASE WHEN count > 0 THEN sum / count END", place.factor, place.offset),
        "CASE WHEN count = 0 THEN 'no finite value in the interval' END",
    )
    where = f'"table" = {literal(place.table)} AND "column" = {literal(place.column)}'
    where += f" AND metric = {literal(place.metric)}" if place.is_long else ""
    group_key = [*KEY[:-1], "series", "ts", "interval_ns"]
    sums = [*group_key, 'sum("sum") AS sum', 'sum("count") AS count']
    intervals = select_sql(sums, _FOLDED, f"WHERE {where} GROUP BY {', '.join(group_key)}")
    source = f"{literal(f'{place.metric}, means of ')} || CAST(interval_ns / 1000000000 AS VARCHAR) || ' s'"
    columns = [f"{value} AS value", f"{source} AS source", f"{reason} AS reason", f"{2 * member.age} AS prio"]
    return select_sql([*keys, "ts", "ts AS at", *columns], intervals)


def _sum(lake: "Lake", every: Mapping[str, Life], member: Member, seen: frozenset[str], read: tuple[Read, ...]) -> str:
    """Return the SELECT of the sum of a metric's parts; NULL with a reason for steps that lack a part."""
    count = len(member.life.links)
    parts = []
    for number, link in enumerate(member.life.links):
        value = scale_sql("value", 1 / link.factor, -link.offset / link.factor)
        columns = [*KEY, "ts", AT, f"{value} AS value", f"{number} AS part"]
        parts.append(select_sql(columns, _metric_select(lake, every, link.name, seen - {link.name}, read)))
    complete = f"count(value) = {count} AND count(*) = {count} AND count(DISTINCT part) = {count}"
    names = literal(" + ".join(link.name for link in member.life.links))
    value, reason = _or_default(
        member,
        f"CASE WHEN {complete} THEN sum(value) END",
        f"CASE WHEN NOT ({complete}) THEN 'not every part once' END",
    )
    columns = [
        f"{value} AS value",
        f"{names} AS source",
        f"{reason} AS reason",
        f"CASE WHEN {complete} THEN {2 * member.age - 1} ELSE {_LAST} END AS prio",
    ]
    return select_sql([*KEY, "max(ts) AS ts", "at", *columns], union_all(parts), f"GROUP BY {', '.join(KEY)}, at")


def _or_default(member: Member, value: str, reason: str) -> tuple[str, str]:
    """Return SQL of a metric's value in the series' unit, and of its reason. The metric's default replaces NULL."""
    if member.life.default is not None:
        value = f"coalesce({value}, CAST({member.life.default!r} AS DOUBLE))"
        reason = f"'default: ' || {reason}"
    return scale_sql(value, member.factor, member.offset), reason


def scale_sql(value: str, factor: float, offset: float) -> str:
    """Return SQL of a value times a factor, plus an offset."""
    if (factor, offset) == (1.0, 0.0):
        return value
    return f"({value} * CAST({factor!r} AS DOUBLE) + CAST({offset!r} AS DOUBLE))"
