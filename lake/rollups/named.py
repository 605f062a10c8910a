"""Rollups that name metrics read what these were recorded as, too: other names, in other units.

Without a metric of the query that took another's place, or whose place was taken, the rollup is as it is. Else its
body is another, and so is its digest: it is due, once.
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
"""Columns in the unit of the metric that are converted as values are, by table."""

_TURNED: Final = {"agg_min": "agg_max", "agg_max": "agg_min", "min": "max", "max": "min"}
_BUCKETS: Final = (
    *("zero_count", "zero_threshold", "positive_offset", "positive_counts", "negative_offset", "negative_counts"),
)
"""Of a histogram in another unit nobody knows them: their bounds are powers of two of the unit it was recorded in."""


@dataclass(frozen=True)
class NamedBody:
    """A body that reads rows of metrics under the names that it asks for.

    Attributes
    ----------
    body
        What it is else.
    names
        By the name that it asks for: the metrics whose values are this one's, itself among them.
    tables
        Those with metrics that it reads: ``scalars``, ``distributions``.
    """

    body: Body
    names: tuple[tuple[str, tuple[Member, ...]], ...]
    tables: tuple[str, ...]

    @property
    def source(self) -> str:
        """What the body is, and which names stand for which."""
        names = [(name, one.life.metric, one.factor, one.offset, one.age) for name, some in self.names for one in some]
        others = f" in {self.tables}" if self.tables != ("scalars",) else ""
        return f"{self.body.source}\n{names}{others}"

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Compute the rows as the body does, of other tables."""
        for table in self.tables:
            if not ctx.table_exist(f"{table}{_RECORDED}"):
                recorded = ctx.table(table)
                ctx.register_view(f"{table}{_RECORDED}", recorded)
                view = ctx.sql(self._select(table, recorded.schema().names))
                ctx.deregister_table(table)
                ctx.register_view(table, view)
        return self.body.rows(ctx, values)

    def _select(self, table: str, columns: list[str]) -> str:
        every = ", ".join(literal(one.life.metric) for _, some in self.names for one in some)
        source = f"{table}{_RECORDED}"
        parts = [f"SELECT {_select_list(columns)} FROM {source} WHERE metric NOT IN ({every})"]  # noqa: S608 - quoted
        for name, metrics in self.names:
            own = [
                f"SELECT {', '.join(_conversion_sql(table, columns, name, one))}, {one.age} AS prio FROM {source}"  # noqa: S608
                f" WHERE metric = {literal(one.life.metric)}"
                for one in metrics
            ]
            key = ", ".join(["date", *KEY, "CASE WHEN step IS NULL THEN ts END"])
            best = f"SELECT *, min(prio) OVER (PARTITION BY {key}) AS best FROM ({' UNION ALL '.join(own)})"  # noqa: S608
            parts.append(f"SELECT {_select_list(columns)} FROM ({best}) WHERE prio = best")  # noqa: S608
        return "\nUNION ALL\n".join(parts)


def _select_list(columns: Iterable[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def _conversion_sql(table: str, columns: Iterable[str], name: str, member: Member) -> Iterator[str]:
    turned = _TURNED if member.factor < 0 else {}
    is_other = (member.factor, member.offset) != (1.0, 0.0)
    for column in columns:
        if column == "metric":
            yield f"{literal(name)} AS metric"
        elif column in _VALUES[table]:
            source = f'"{turned.get(column, column)}"'
            yield f'{scale_sql(source, member.factor, member.offset)} AS "{column}"'
        elif table == "distributions" and column == "sum":
            yield f'{total(member.factor, member.offset)} AS "sum"'
        elif table == "distributions" and column in _BUCKETS and is_other:
            yield f'nullif("{column}", "{column}") AS "{column}"'  # NULL of the column's own type
        else:
            yield f'"{column}"'


def rollups_of(lake: "Lake", names: Iterable[str] | None = None) -> "tuple[Rollup, ...]":
    """Return rollups of a lake as `ranklake.lake.rollups.registry.select_rollups` does, its own ones among them."""
    rollups = select_rollups(names, lake.config, own_rollups(lake.contracts()))
    if not any(_read(one) for one in rollups):
        return rollups
    every = lives(lake)
    if not any(one.links for one in every.values()):
        return rollups
    return tuple(_named(one, every) for one in rollups)


def _read(rollup: "Rollup") -> tuple[str, ...]:
    """Return the tables with metrics that a rollup reads."""
    return tuple(table for table in _VALUES if table in rollup.tables)


def _named(rollup: "Rollup", every: "Mapping[str, Life]") -> "Rollup":
    body = rollup.transform
    tables = _read(rollup)
    if not tables or not isinstance(body, SqlBody | OwnBody):
        return rollup
    text = body.source
    queries = []
    for name in every:
        if literal(name) not in text:
            continue
        metrics = members(every, name)
        # a query that names several of them knows of them itself
        if len(metrics) > 1 and sum(literal(one.life.metric) in text for one in metrics) == 1:
            queries.append((name, tuple(metrics)))
    return replace(rollup, body=NamedBody(body, tuple(queries), tables)) if queries else rollup
