"""The cluster page: nodes by hour as a heat map, how utilization is spread, which nodes stay low, and the queues."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from ranklake.insight.fleet.cluster import HOURS, ClusterState
from ranklake.insight.runs.asking import Answered, Row
from ranklake.views.html.charts import PERCENT, Chart
from ranklake.views.html.cluster_charts import bins, lines_by_hour
from ranklake.views.html.figures import Column, FactTable, Figure, sourced
from ranklake.views.html.heat_map import HeatMap
from ranklake.views.html.shell import Entry, Page, digest_of
from ranklake.views.html.site import Section
from ranklake.views.html.step_charts import values_of
from ranklake.views.words import counted, hours_text, number_text, percent_text

SECTION: Final = "cluster"
HOME: Final = f"{SECTION}/index.html"
_NODES_TITLE: Final = "Nodes, the least utilized first"
_NO_SAMPLES: Final = "no device was sampled in these hours"
_NO_SCHEDULER: Final = "no scheduler told of it in these hours"


_FIGURES: Final = (
    ("nodes", "nodes", "{node}", number_text, _NO_SAMPLES, "Hosts whose devices were sampled."),
    ("devices", "devices", "{device}", number_text, _NO_SAMPLES, "That were sampled."),
    ("utilization_ratio", "utilization", "ratio", percent_text, _NO_SAMPLES,
     "Busy time over the time for which utilization was known."),
    ("idle_h", "held idle", "h", hours_text, _NO_SAMPLES, "Time of devices held with a utilization of 0."),
    ("delivered_h", "delivered", "h", hours_text, _NO_SCHEDULER, "Time of devices allocated to jobs."),
    ("allocation_ratio", "allocated", "ratio", percent_text, _NO_SCHEDULER, "Delivered over capacity."),
    ("queue_depth", "jobs waiting", "{job}", number_text, _NO_SCHEDULER, "On average over the hours told of."),
    ("queue_depth_max", "most waiting", "{job}", number_text, _NO_SCHEDULER, "At once, in one cluster."),
)  # fmt: skip
_NODES: Final = (
    Column("node", "By its first device; its host is a name that pages do not show.", "first_device"),
    Column("devices", "Sampled at once.", "devices", "{device}", is_number=True),
    Column("utilization", "Busy over observed time.", "utilization_ratio", "ratio", is_number=True, text=percent_text),
    Column("hours low", "Held for nine tenths of the hour, at less than a tenth busy.", "low_hours", "h",
           is_number=True),
    Column("hours seen", "In which it was sampled.", "node_hours", "h", is_number=True),
    Column("allocated", "Time of its devices allocated to jobs.", "allocated_h", "h", is_number=True, text=hours_text),
    Column("busy", "Time of its devices busy.", "busy_h", "h", is_number=True, text=hours_text),
)  # fmt: skip
_POOLS: Final = (
    Column("pool", "Partition, queue or virtual cluster.", "pool"),
    Column("capacity", "By its snapshots.", "total_h", "h", is_number=True, text=hours_text),
    Column("delivered", "Allocated to jobs.", "delivered_h", "h", is_number=True, text=hours_text),
    Column("allocated", "Delivered over capacity.", "allocation_ratio", "ratio", is_number=True, text=percent_text),
    Column("utilization", "Busy over observed time.", "utilization_ratio", "ratio", is_number=True, text=percent_text),
    Column("jobs waiting", "On average.", "queue_depth", "{job}", is_number=True, text=number_text),
    Column("most waiting", "At once.", "queue_depth_max", "{job}", is_number=True),
)


def section(found: ClusterState) -> Section:
    """Return the cluster page as a section of its own."""
    low = sum(row["low_hours"] > 0 for row in found.nodes.rows)
    state = "unchecked" if found.until is None else "warning" if low else "passed"
    headline = _headline(found, low)
    digest = digest_of(found)
    page = Page(HOME, "Cluster", "cluster.html", partial(_facts, found, headline, state), digest)
    return Section(SECTION, "Cluster", state, headline, HOME, (page,), (Entry("Cluster", "page", state, HOME),))


def _headline(found: ClusterState, low: int) -> str:
    row = found.totals.one
    if found.until is None:
        return "Nothing to tell yet"
    told = []
    if row["nodes"]:
        told.append(counted(row["nodes"], "node"))
    if row["utilization_ratio"] is not None:
        told.append(f"utilization {percent_text(row['utilization_ratio'])}")
    if row["allocation_ratio"] is not None:
        told.append(f"{percent_text(row['allocation_ratio'])} allocated")
    if low:
        told.append(f"{counted(low, 'node')} held and hardly used")
    if row["queue_depth"]:
        told.append(f"{number_text(row['queue_depth'])} jobs waiting on average")
    return f"Last {HOURS} hours: {', '.join(told) or 'nothing is known'}"


def _facts(found: ClusterState, headline: str, state: str) -> Mapping[str, Any]:
    return {
        "lake": found.lake,
        "headline": headline,
        "state": state,
        "until": found.until,
        "nothing": found.totals.reason,
        "figures": list(_figures(found.totals)) if found.until else [],
        "heats": list(_heats(found)),
        "charts": list(_charts(found)) if found.until else [],
        "tables": [
            _table("nodes", _NODES_TITLE, found.nodes, "first_device", _NODES),
            _table("pools", "Pools, the longest queue first", found.pools, "pool", _POOLS),
        ]
        if found.until
        else [],
    }


def _figures(totals: Answered) -> Iterator[Figure]:
    row: Row = totals.one
    source = sourced("totals", totals)
    for name, label, unit, text, why, definition in _FIGURES:
        value = row[name]
        unknown = why if value is None else ""
        yield Figure(label, value, unit, definition, source, name, "", unknown, "" if value is None else text(value))


def _charts(found: ClusterState) -> Iterator[Chart]:
    if found.spread.rows:
        tenths = [{"tenth": row["tenth"] / 10, "nodes": row["nodes"]} for row in found.spread.rows]
        words = "How many nodes were utilized how much, on average over these hours."
        yield Chart("spread", "Nodes by utilization", words, bins(tenths), sourced("spread", found.spread))
    source = sourced("hours", found.hours)
    for name, title, words, parts, unit, form in (
        ("ratios", "Utilization and allocation by hour", "Ratios of sums over all clusters.",
         {"utilization_ratio": "utilization", "allocation_ratio": "allocated"}, "ratio", PERCENT),
        ("queue", "Jobs waiting by hour", "Waiting jobs times time over the hour, and the most at once.",
         {"queue_depth": "on average", "queue_depth_max": "most at once"}, "jobs", ",.3~s"),
    ):  # fmt: skip
        known = {one: said for one, said in parts.items() if any(row[one] is not None for row in found.hours.rows)}
        if known:
            values = [
                {**one, "hour": time_of(row)}
                for one, row in zip(values_of(found.hours.rows, list(known)), found.hours.rows, strict=True)
            ]
            yield Chart(name, title, words, lines_by_hour(values, known, unit, form), source)


def _heats(found: ClusterState) -> Iterator[HeatMap]:
    if not found.heat.rows or found.until is None:
        return
    hours = [found.until - timedelta(hours=back) for back in reversed(range(HOURS))]
    place_of = {hour: place for place, hour in enumerate(hours)}
    count = 1 + max(row["place"] for row in found.heat.rows)
    rows, members = [""] * count, [0] * count
    values: list[float | None] = [None] * (count * HOURS)
    for row in found.heat.rows:
        place = row["place"]
        rows[place] = min(rows[place] or row["first_device"], row["first_device"])
        members[place] = max(members[place], row["nodes"])
        values[place * HOURS + place_of[row["hour"]]] = row["utilization_ratio"]
    is_grouped = max(members) > 1
    yield HeatMap(
        name="heat",
        title="Nodes by hour",
        description="Busy over observed time. " + ("A row is several nodes that are utilized alike."
                                                   if is_grouped else "A row is a node, named by its first device."),
        source=sourced("heat", found.heat),
        rows=rows,
        columns=[f"{hour:%b %d, %H:%M}" for hour in hours],
        values=values,
        members=members,
        row_title="The least utilized nodes are on top",
        column_title="hour (UTC)",
        measure="utilization",
        unknown="not sampled",
        table="nodes",
        table_title=_NODES_TITLE,
    )  # fmt: skip


def time_of(row: Row) -> str:
    """Return a row's hour as charts read it."""
    return f"{row['hour']:%Y-%m-%dT%H:%M:%SZ}"


def _table(name: str, caption: str, found: Answered, key: str, columns: tuple[Column, ...]) -> FactTable:
    return FactTable(caption, sourced(name, found), columns, [key], name, found.rows, empty="None in these hours.")
