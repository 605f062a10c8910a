"""Metrics of a lake that have other names now, as queries have to know them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ranklake.lake.migrations.queries.meanings import Renamed
from ranklake.lake.query.literal import literal
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.life.members import members
from ranklake.lake.rollups.life.register import lives
from ranklake.lake.rollups.life.state import Life

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

_LONG: Final = ("scalars", "distributions")
_BOTH: Final = """
    SELECT run FROM {table} WHERE metric IN ({names})
    GROUP BY run, attempt, rank, step, CASE WHEN step IS NULL THEN ts END HAVING count(DISTINCT metric) > 1 LIMIT 1
"""
_ASK: Final = "ask its series: ranklake series"


def renamed(lake: "Lake") -> dict[str, Renamed]:
    """Return the metrics that others took the place of, by their name; those that have a column are not among them."""
    every = lives(lake)
    return {
        name: _renamed(lake, every, name) for name, life in every.items() if life.links and not has_column(lake, name)
    }


def _renamed(lake: "Lake", every: Mapping[str, Life], name: str) -> Renamed:
    newer = [one for one in members(every, name) if one.age < 0]
    newest = [every[name], *(one.life for one in newer)]
    if parts := next((one.links for one in newest if len(one.links) > 1), ()):
        return Renamed(why_not=f"split into {', '.join(link.name for link in parts)}; {_ASK}")
    if column := next((one.life.metric for one in newer if has_column(lake, one.life.metric)), ""):
        return Renamed(why_not=f"recorded as {column}, which has a column, now; {_ASK}")
    names = ", ".join(literal(one) for one in (name, *(one.life.metric for one in newer)))
    for table in _LONG:
        if query(lake, _BOTH.format(table=table, names=names)).num_rows:
            return Renamed(why_not=f"recorded beside {newest[1].metric} of the same steps; {_ASK}")
    return Renamed(tuple((one.life.metric, one.factor, one.offset) for one in sorted(newer, key=lambda one: -one.age)))


def has_column(lake: "Lake", name: str) -> bool:
    """Say whether a metric is a column of a table of its own kind, and not rows under its name."""
    known = lake.metrics().get(name)
    place = (known.stored_in or "").partition(".")[0] if known is not None else ""
    return bool(place) and place not in _LONG
