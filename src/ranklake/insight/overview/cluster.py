"""What the cluster page tells: nodes by hour, how utilization is spread over them, which stay low, and the queues."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ranklake.insight.doubts import FailingCheck, doubts
from ranklake.insight.runs.asking import QueriedFacts, asking, sql_text
from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.insight.overview"
HOURS: Final = 48
HEAT_ROWS: Final = 512
"""Rows of the heat map, as many as a screen shows: of more nodes a row is several, and a page does not grow."""
_MOST: Final = 100


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster over its last hours.

    Attributes
    ----------
    lake
        Last part of its location.
    until
        Start of the last hour of which anything is reported; None where nothing is.
    totals, hours, pools
        In one row; by hour; by pool.
    nodes, heat, spread
        Nodes, the least utilized first; groups of nodes by hour; how many nodes by tenth of utilization.
    doubts
        Failed checks of what these numbers are made of.
    """

    lake: str
    until: datetime | None
    totals: QueriedFacts
    hours: QueriedFacts
    pools: QueriedFacts
    nodes: QueriedFacts
    heat: QueriedFacts
    spread: QueriedFacts
    doubts: tuple[FailingCheck, ...] = ()


def cluster_state(lake: "Lake", role: "Role | None" = None) -> ClusterState:
    """Return the state of a lake's cluster. Raises what queries raise.

    Raises also `ranklake.insight.runs.asking.UnseenError`, for a role that does not see what it is computed from.
    """
    ask = asking(lake, role)
    name = lake.uri.rstrip("/").rpartition("/")[2]
    until: datetime | None = ask(sql_text(_HERE, "cluster_until")).seen().first_row["until"]
    if until is None:
        nothing = QueriedFacts("", (), "no device was sampled and no scheduler told of anything yet")
        return ClusterState(name, None, nothing, nothing, nothing, nothing, nothing, nothing)

    def of(which: str) -> QueriedFacts:
        return ask(sql_text(_HERE, which).format(window=_window(until), hours=HOURS, most=_MOST, rows=HEAT_ROWS)).seen()

    names = ("cluster_totals", "cluster_hours", "pools", "nodes", "heat", "spread")
    since = (until - timedelta(hours=HOURS - 1)).date()
    against = doubts(ask, ("cluster_hourly", "gpu_hourly"), since=since, until=until.date())
    totals, hours, pools, nodes, heat, spread = (of(one) for one in names)
    return ClusterState(name, until, totals, hours, pools, nodes, heat, spread, against)


def _window(until: datetime) -> str:
    since = until - timedelta(hours=HOURS - 1)
    dates = f"date BETWEEN DATE '{since.date()}' AND DATE '{until.date()}'"  # files are left out by it
    return f"hour BETWEEN {literal(since)} AND {literal(until)} AND {dates}"
