"""Rollups that name metrics read what these were recorded as, too: other names, in other units.

Without a metric of the query that took another's place, or whose place was taken, the rollup is as it is. Else its
body is another, and so is its digest: it is due, once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.life.members import Member, members
from ranklake.lake.life.register import lives
from ranklake.lake.life.select import KEY, scaled
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.bodies import Body, SqlBody
from ranklake.lake.rollups.own import OwnBody, own_rollups
from ranklake.lake.rollups.registry import chosen

if TYPE_CHECKING:
    from ranklake.lake.life.state import Life
    from ranklake.lake.query.engine import SessionContext
    from ranklake.lake.rollups.declaration import Rollup
    from ranklake.lake.rollups.reach import Input
    from ranklake.lake.storage.store import Lake

_TABLE: Final = "scalars"
_RECORDED: Final = "scalars_as_recorded"
_VALUES: Final = ("value", "agg_mean", "agg_min", "agg_max")


@dataclass(frozen=True)
class NamedBody:
    """A body that reads rows of ``scalars`` under the names that it asks for.

    Attributes
    ----------
    body
        What it is else.
    names
        By the name that it asks for: the metrics whose values are this one's, itself among them.
    """

    body: Body
    names: tuple[tuple[str, tuple[Member, ...]], ...]

    @property
    def source(self) -> str:
        """What the body is, and which names stand for which."""
        told = [(name, one.life.metric, one.factor, one.offset, one.age) for name, some in self.names for one in some]
        return f"{self.body.source}\n{told}"

    def rows(self, ctx: "SessionContext", inputs: "tuple[Input, ...]", values: Mapping[str, Any]) -> pa.Table:
        """Compute the rows as the body does, of another ``scalars``."""
        if not ctx.table_exist(_RECORDED):
            recorded = ctx.table(_TABLE)
            ctx.register_view(_RECORDED, recorded)
            view = ctx.sql(self._select(recorded.schema().names))
            ctx.deregister_table(_TABLE)
            ctx.register_view(_TABLE, view)
        return self.body.rows(ctx, inputs, values)

    def _select(self, columns: list[str]) -> str:
        every = ", ".join(literal(one.life.metric) for _, some in self.names for one in some)
        parts = [f"SELECT {_listed(columns)} FROM {_RECORDED} WHERE metric NOT IN ({every})"]  # noqa: S608 - quoted
        for name, some in self.names:
            own = [
                f"SELECT {', '.join(_converted(columns, name, one))}, {one.age} AS prio FROM {_RECORDED}"  # noqa: S608
                f" WHERE metric = {literal(one.life.metric)}"
                for one in some
            ]
            key = ", ".join(["date", *KEY, "CASE WHEN step IS NULL THEN ts END"])
            best = f"SELECT *, min(prio) OVER (PARTITION BY {key}) AS best FROM ({' UNION ALL '.join(own)})"  # noqa: S608
            parts.append(f"SELECT {_listed(columns)} FROM ({best}) WHERE prio = best")  # noqa: S608
        return "\nUNION ALL\n".join(parts)


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def _converted(columns: Iterable[str], name: str, one: Member) -> Iterator[str]:
    turned = {"agg_min": "agg_max", "agg_max": "agg_min"} if one.factor < 0 else {}
    for column in columns:
        if column == "metric":
            yield f"{literal(name)} AS metric"
        elif column in _VALUES:
            source = f'"{turned.get(column, column)}"'
            yield f'{scaled(source, one.factor, one.offset)} AS "{column}"'
        else:
            yield f'"{column}"'


def rollups_of(lake: "Lake", names: Iterable[str] | None = None) -> "tuple[Rollup, ...]":
    """Return rollups of a lake as `ranklake.lake.rollups.registry.chosen` does, its own ones among them."""
    found = chosen(names, lake.config, own_rollups(lake.contracts()))
    if not any(_TABLE in one.tables for one in found):
        return found
    every = lives(lake)
    if not any(one.links for one in every.values()):
        return found
    return tuple(_named(one, every) for one in found)


def _named(rollup: "Rollup", every: "Mapping[str, Life]") -> "Rollup":
    body = rollup.transform
    if _TABLE not in rollup.tables or not isinstance(body, SqlBody | OwnBody):
        return rollup
    text = body.source
    found = []
    for name in every:
        if literal(name) not in text:
            continue
        some = members(every, name)
        # a query that names several of them knows of them itself
        if len(some) > 1 and sum(literal(one.life.metric) in text for one in some) == 1:
            found.append((name, tuple(some)))
    return replace(rollup, body=NamedBody(body, tuple(found))) if found else rollup
