"""Metrics of a lake that have other names now, as queries have to know them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ranklake.lake.migrations.queries.tables import Successor
from ranklake.lake.rollups.life.members import members
from ranklake.lake.rollups.life.register import lives
from ranklake.lake.rollups.life.state import Life

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

_ROWS_BY_NAME: Final = ("scalars", "distributions")
_ASK: Final = "ask the view series for it"


def renamed(lake: "Lake") -> dict[str, Successor]:
    """Return what took the place of metrics, by their name; those that have a column are not among them."""
    every = lives(lake)
    return {
        name: _successor(lake, every, name) for name, life in every.items() if life.links and not has_column(lake, name)
    }


def _successor(lake: "Lake", every: Mapping[str, Life], name: str) -> Successor:
    newer = [member.life for member in members(every, name) if member.age < 0]
    if parts := next((life.links for life in (every[name], *newer) if len(life.links) > 1), ()):
        return Successor("", f"split into {', '.join(link.name for link in parts)}; {_ASK}")
    if column := next((life.metric for life in newer if has_column(lake, life.metric)), ""):
        return Successor("", f"recorded as {column}, which has a column, now; {_ASK}")
    newest = newer[0].metric if newer else every[name].links[0].name
    return Successor(newest, f"recorded as {newest} now, perhaps in another unit; {_ASK}, or for both")


def has_column(lake: "Lake", name: str) -> bool:
    """Whether a metric is a column of a table of its own kind, and not rows under its name."""
    known = lake.metrics().get(name)
    table = (known.stored_in or "").partition(".")[0] if known is not None else ""
    return bool(table) and table not in _ROWS_BY_NAME
