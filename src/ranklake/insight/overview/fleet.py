"""Facts of the executive page (seven days, the weeks before, causes of the difference) and of the cluster page."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from ranklake.insight.doubts import FailingCheck, doubts
from ranklake.insight.runs.asking import Ask, QueriedFacts, asking, sql_text
from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_HERE: Final = "ranklake.insight.overview"
WEEKS: Final = 8
GROUPS: Final = ("team", "pool", "device_name")
_DAYS: Final = 7
_CLUSTERS: Final = """SELECT coalesce({group}, 'not recorded') AS name,
    count(*) FILTER (WHERE {now}) AS hours_now, count(*) FILTER (WHERE {before}) AS hours_before,
    sum({delivered}) FILTER (WHERE {now}) / 3600 AS delivered_h,
    sum({delivered}) FILTER (WHERE {before}) / 3600 AS delivered_h_before,
    sum({busy}) FILTER (WHERE {now}) / nullif(sum({observed}) FILTER (WHERE {now}), 0) AS utilization_ratio
  FROM {table} WHERE {scope}{dates} GROUP BY 1"""
_BY_JOBS: Final = {
    "table": "cluster_hourly", "delivered": "gpu_delivered_s", "busy": "gpu_busy_s", "observed": "gpu_busy_observed_s",
}  # fmt: skip
_BY_DEVICE: Final = {
    "table": "gpu_hourly", "delivered": "allocated_s", "busy": "busy_s", "observed": "busy_observed_s", "scope": "",
}  # fmt: skip
_READ: Final = ("goodput_daily", "mfu", "cost", "gpu_hourly", "cluster_hourly", "job_facts", "run_summary")
_MOST: Final = 50
_MOST_CHANGES: Final = 10


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fleet by weeks.

    Attributes
    ----------
    lake
        Last part of its location.
    through
        Last UTC date with data; None if there is none. Weeks count back from it, so that the facts depend only on the
        tables.
    week, weeks
        The last seven dates in one row; and one row for each of the `WEEKS` before.
    days
        One row per date of these weeks.
    groups
        The last seven dates by team, pool and device (`GROUPS`), and the difference to the seven before.
    changes
        The difference to the seven dates before, by the same groups, in parts that add up.
    forecast
        Forecast of the next seven dates, one row per measure, or why it is unknown.
    doubts
        Failed checks of these numbers' inputs.
    """

    lake: str
    through: date | None
    week: QueriedFacts
    weeks: QueriedFacts
    days: QueriedFacts
    groups: tuple[QueriedFacts, ...]
    changes: tuple[QueriedFacts, ...]
    forecast: QueriedFacts
    doubts: tuple[FailingCheck, ...] = ()


def fleet_state(lake: "Lake", role: "Role | None" = None) -> FleetState:
    """Return the state of a lake's fleet. Raises what queries raise.

    Raises also `ranklake.insight.runs.asking.UnseenError`, for a role that does not see what it is computed from.
    """
    ask = asking(lake, role)
    through = ask(sql_text(_HERE, "through")).seen().first_row["through"]
    name = lake.uri.rstrip("/").rpartition("/")[2]
    if through is None:
        empty = QueriedFacts("", (), "no run and no scheduler told of anything yet")
        none = tuple(empty for _ in GROUPS)
        return FleetState(name, None, empty, empty, empty, none, none, empty)
    return FleetState(
        lake=name,
        through=through,
        week=_weeks(ask, through, 1),
        weeks=_weeks(ask, through, WEEKS),
        days=ask(
            sql_text(_HERE, "fleet_days")
            .replace("{weeks}", str(WEEKS))
            .replace("{dates}", _dates(through, WEEKS * _DAYS))
        ),
        groups=tuple(ask(_by(group, through)) for group in GROUPS),
        changes=tuple(ask(_changes(group, through)) for group in GROUPS),
        forecast=ask(
            sql_text(_HERE, "forecast")
            .replace("{weeks}", str(WEEKS))
            .replace("{of_weeks}", _of_weeks(through, WEEKS).strip().replace("\n", "\n  "))
        ),
        doubts=doubts(ask, _READ, since=through - timedelta(days=WEEKS * _DAYS - 1), until=through),
    )


def _weeks(ask: Ask, through: date, weeks: int) -> QueriedFacts:
    return ask(_of_weeks(through, weeks)).seen()


def _of_weeks(through: date, weeks: int) -> str:
    sql = sql_text(_HERE, "weeks").replace("{through}", through.isoformat()).replace("{weeks}", str(weeks))
    last_days = [through - timedelta(days=_DAYS * week) for week in range(weeks)]
    spine = [f"({n}, DATE '{day - timedelta(days=_DAYS - 1)}', DATE '{day}')" for n, day in enumerate(last_days)]
    return sql.replace("{spine}", ", ".join(spine)).replace("{dates}", _dates(through, weeks * _DAYS))


def _changes(group: str, through: date) -> str:
    now, before = _dates(through, _DAYS), _dates(through - timedelta(days=_DAYS), _DAYS)
    dates = _dates(through, 2 * _DAYS)
    return sql_text(_HERE, "changes").format(group=group, now=now, before=before, dates=dates, most=_MOST_CHANGES)


def _by(group: str, through: date) -> str:
    now, before = _dates(through, _DAYS), _dates(through - timedelta(days=_DAYS), _DAYS)
    filled = {
        "group": group, "now": now, "before": before, "mfu_now": f"mfu.{now}", "mfu_before": f"mfu.{before}",
        "dates": _dates(through, 2 * _DAYS), "most": str(_MOST),
    }  # fmt: skip
    of = _BY_DEVICE if group == "device_name" else {**_BY_JOBS, "scope": f"scope = '{group}' AND "}
    return sql_text(_HERE, "groups").format(
        **filled, table=of["table"], scope=of["scope"], clusters=_CLUSTERS.format(**filled, **of)
    )


def _dates(through: date, days: int) -> str:
    """Return the condition for a number of dates up to one."""
    return f"date BETWEEN DATE '{through - timedelta(days=days - 1)}' AND DATE '{through}'"


HOURS: Final = 48
HEAT_ROWS: Final = 512
"""Most rows of the heat map; with more nodes, a row combines several."""
_MOST_HOSTS: Final = 100


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster over its last hours.

    Attributes
    ----------
    lake
        Last part of its location.
    until
        Start of the last hour with data; None if there is none.
    totals, hours, pools
        Totals in one row; one row per hour; one per pool.
    nodes, heat, spread
        Nodes, the least utilized first; groups of nodes by hour; number of nodes by tenth of utilization.
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
        empty = QueriedFacts("", (), "no device was sampled and no scheduler told of anything yet")
        return ClusterState(name, None, empty, empty, empty, empty, empty, empty)

    def of(which: str) -> QueriedFacts:
        return ask(
            sql_text(_HERE, which).format(window=_window(until), hours=HOURS, most=_MOST_HOSTS, rows=HEAT_ROWS)
        ).seen()

    names = ("cluster_totals", "cluster_hours", "pools", "nodes", "heat", "spread")
    since = (until - timedelta(hours=HOURS - 1)).date()
    against = doubts(ask, ("cluster_hourly", "gpu_hourly"), since=since, until=until.date())
    totals, hours, pools, nodes, heat, spread = (of(one) for one in names)
    return ClusterState(name, until, totals, hours, pools, nodes, heat, spread, against)


def _window(until: datetime) -> str:
    since = until - timedelta(hours=HOURS - 1)
    dates = f"date BETWEEN DATE '{since.date()}' AND DATE '{until.date()}'"  # the date condition prunes files
    return f"hour BETWEEN {literal(since)} AND {literal(until)} AND {dates}"
