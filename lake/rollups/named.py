"""Rollups that read metrics by name also read the values of the metrics' predecessors and successors, converted.

If no metric in a rollup's query has a predecessor or successor, the rollup is unchanged. Otherwise it gets another body
with another digest, so it is computed again once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.declaration import Body, SqlBody
from ranklake.lake.rollups.life.register import lives
from ranklake.lake.rollups.life.select import KEY, scale_sql
from ranklake.lake.rollups.life.series import total
from ranklake.lake.rollups.life.state import Member, members
from ranklake.lake.rollups.own import OwnBody, own_rollups
from ranklake.lake.rollups.registry import select_rollups

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext
    from ranklake.lake.rollups.declaration import Rollup
    from ranklake.lake.rollups.life.state import Life
    from ranklake.lake.store.lake import Lake

_RECORDED: Final = "_as_recorded"
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "scalars": ("value", "agg_mean", "agg_min", "agg_max"),
    "distributions": ("min", "max"),
}
"""Columns with values in the metric's unit, which are converted, by table."""

_SWAPPED: Final = {"agg_min": "agg_max", "agg_max": "agg_min", "min": "max", "max": "min"}
_BUCKETS: Final = (
    *("zero_count", "zero_threshold", "positive_offset", "positive_counts", "negative_offset", "negative_counts"),
)
"""Columns of a histogram that cannot be converted: the buckets are powers of two of the recorded unit."""


@dataclass(frozen=True)
class NamedBody:
    """A body that reads the rows of related metrics under the names in its query.

    Attributes
    ----------
    body
        The original body.
    names
        For each metric in the query: the metrics whose converted values belong to it, including itself.
    tables
        Tables with metrics that the body reads: ``scalars``, ``distributions``.
    """

    body: Body
    names: tuple[tuple[str, tuple[Member, ...]], ...]
    tables: tuple[str, ...]

    @property
    def source(self) -> str:
        """Text of the original body, and of the related metrics with their conversions."""
        names = [
            (name, member.life.metric, member.factor, member.offset, member.age)
            for name, related in self.names
            for member in related
        ]
        others = f" in {self.tables}" if self.tables != ("scalars",) else ""
        return f"{self.body.source}\n{names}{others}"

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Compute the rows with the original body, from views with the converted metrics."""
        for table in self.tables:
            if not ctx.table_exist(f"{table}{_RECORDED}"):
                recorded = ctx.table(table)
                ctx.register_view(f"{table}{_RECORDED}", recorded)
                view = ctx.sql(self._select(table, recorded.schema().names))
                ctx.deregister_table(table)
                ctx.register_view(table, view)
        return self.body.rows(ctx, values)

    def _select(self, table: str, columns: list[str]) -> str:
        all_related = ", ".join(literal(member.life.metric) for _, related in self.names for member in related)
        source = f"{table}{_RECORDED}"
        parts = [f"SELECT {_select_list(columns)} FROM {source} WHERE metric NOT IN ({all_related})"]  # noqa: S608 - quoted
        for name, related in self.names:
            selects = [
                f"SELECT {', '.join(_conversion_sql(table, columns, name, member))}, {member.age} AS prio FROM {source}"  # noqa: S608
                f" WHERE metric = {literal(member.life.metric)}"
                for member in related
            ]
            key = ", ".join(["date", *KEY, "CASE WHEN step IS NULL THEN ts END"])
            best = f"SELECT *, min(prio) OVER (PARTITION BY {key}) AS best FROM ({' UNION ALL '.join(selects)})"  # noqa: S608
            parts.append(f"SELECT {_select_list(columns)} FROM ({best}) WHERE prio = best")  # noqa: S608
        return "\nUNION ALL\n".join(parts)


def _select_list(columns: Iterable[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def _conversion_sql(table: str, columns: Iterable[str], name: str, member: Member) -> Iterator[str]:
    swapped = _SWAPPED if member.factor < 0 else {}
    is_converted = (member.factor, member.offset) != (1.0, 0.0)
    for column in columns:
        if column == "metric":
            yield f"{literal(name)} AS metric"
        elif column in _VALUES[table]:
            source = f'"{swapped.get(column, column)}"'
            yield f'{scale_sql(source, member.factor, member.offset)} AS "{column}"'
        elif table == "distributions" and column == "sum":
            yield f'{total(member.factor, member.offset)} AS "sum"'
        elif table == "distributions" and column in _BUCKETS and is_converted:
            yield f'nullif("{column}", "{column}") AS "{column}"'  # NULL of the column's own type
        else:
            yield f'"{column}"'


def rollups_of(lake: "Lake", names: Iterable[str] | None = None) -> "tuple[Rollup, ...]":
    """Return packaged and own rollups of a lake, in the order of `ranklake.lake.rollups.registry.select_rollups`.

    Rollups that read metrics with predecessors or successors have a `NamedBody`.
    """
    rollups = select_rollups(names, lake.config, own_rollups(lake.contracts()))
    if not any(_metric_tables(rollup) for rollup in rollups):
        return rollups
    states = lives(lake)
    if not any(life.links for life in states.values()):
        return rollups
    return tuple(_with_related_metrics(rollup, states) for rollup in rollups)


def _metric_tables(rollup: "Rollup") -> tuple[str, ...]:
    """Return the tables with metrics that a rollup reads."""
    return tuple(table for table in _VALUES if table in rollup.tables)


def _with_related_metrics(rollup: "Rollup", states: "Mapping[str, Life]") -> "Rollup":
    body = rollup.transform
    tables = _metric_tables(rollup)
    if not tables or not isinstance(body, SqlBody | OwnBody):
        return rollup
    text = body.source
    names = []
    for name in states:
        if literal(name) not in text:
            continue
        related = members(states, name)
        # a query that names several of the related metrics already handles them
        if len(related) > 1 and sum(literal(member.life.metric) in text for member in related) == 1:
            names.append((name, tuple(related)))
    return replace(rollup, body=NamedBody(body, tuple(names), tables)) if names else rollup
