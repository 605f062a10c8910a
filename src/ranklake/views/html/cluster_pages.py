"""The cluster page: heat map of nodes by hour, distribution of utilization, least utilized nodes, and queues."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from ranklake.insight.doubts import MOST_SHOWN
from ranklake.insight.overview.fleet import HOURS, ClusterState
from ranklake.insight.runs.asking import QueriedFacts, Row
from ranklake.printable import counted
from ranklake.views.html.charts import PERCENT, Chart, HeatMap, lines_by_time, nodes_by_tenth, values_of
from ranklake.views.html.figures import Column, Measure, answer_table, figures, source_of
from ranklake.views.html.site import Section, page_section
from ranklake.views.words import hours_text, number_text, percent_text

_NODES_TITLE: Final = "Nodes, the least utilized first"
_NO_SAMPLES: Final = "no device was sampled in these hours"
_NO_SCHEDULER: Final = "no scheduler reported it in these hours"

_MEASURES: Final = (
    Measure("nodes", "nodes", "{node}", "Hosts whose devices were sampled.", number_text, _NO_SAMPLES),
    Measure("devices", "devices", "{device}", "That were sampled.", number_text, _NO_SAMPLES),
    Measure("utilization_ratio", "utilization", "ratio",
            "Busy time over the time for which utilization was known.", percent_text, _NO_SAMPLES),
    Measure("idle_h", "held idle", "h", "Time of devices held with a utilization of 0.", hours_text, _NO_SAMPLES),
    Measure("delivered_h", "delivered", "h", "Time of devices allocated to jobs.", hours_text, _NO_SCHEDULER),
    Measure("allocation_ratio", "allocated", "ratio", "Delivered over capacity.", percent_text, _NO_SCHEDULER),
    Measure("queue_depth", "jobs waiting", "{job}", "On average over these hours.", number_text, _NO_SCHEDULER),
    Measure("queue_depth_max", "most waiting", "{job}", "At once, in one cluster.", number_text, _NO_SCHEDULER),
)  # fmt: skip
_NODES: Final = (
    Column("node", "By its first device; its host is a name that pages do not show.", "first_device"),
    Column.number("devices", "Sampled at once.", "devices", "{device}"),
    Column.ratio("utilization", "Busy over observed time.", "utilization_ratio"),
    Column.number("hours low", "Held for nine tenths of the hour, at less than a tenth busy.", "low_hours", "h"),
    Column.number("hours seen", "In which it was sampled.", "node_hours", "h"),
    Column.hours("allocated", "Time of its devices allocated to jobs.", "allocated_h"),
    Column.hours("busy", "Time of its devices busy.", "busy_h"),
)  # fmt: skip
_POOLS: Final = (
    Column("pool", "Partition, queue or virtual cluster.", "pool"),
    Column.hours("capacity", "By its snapshots.", "total_h"),
    Column.hours("delivered", "Allocated to jobs.", "delivered_h"),
    Column.ratio("allocated", "Delivered over capacity.", "allocation_ratio"),
    Column.ratio("utilization", "Busy over observed time.", "utilization_ratio"),
    Column("jobs waiting", "On average.", "queue_depth", "{job}", is_number=True, text=number_text),
    Column.number("most waiting", "At once.", "queue_depth_max", "{job}"),
)


class HourlyChart(NamedTuple):
    """Declaration of a chart by hour.

    Attributes
    ----------
    name, title, words
        Its id, heading and description.
    parts
        Titles of its lines by column.
    unit, form
        Title of its axis, and format of numbers.
    """

    name: str
    title: str
    words: str
    parts: Mapping[str, str]
    unit: str
    form: str


_HOURLY: Final = (
    HourlyChart("ratios", "Utilization and allocation by hour", "Ratios of sums over all clusters.",
                {"utilization_ratio": "utilization", "allocation_ratio": "allocated"}, "ratio", PERCENT),
    HourlyChart("queue", "Jobs waiting by hour", "Waiting jobs times time over the hour, and the most at once.",
                {"queue_depth": "on average", "queue_depth_max": "most at once"}, "jobs", ",.3~s"),
)  # fmt: skip


def section(cluster: ClusterState) -> Section:
    """Return the cluster page as a section of its own."""
    low = sum(row["low_hours"] > 0 for row in cluster.nodes.rows)
    state = "unchecked" if cluster.until is None else "warning" if low else "passed"
    return page_section("cluster", "Cluster", state, _headline(cluster, low), cluster, lambda: _parts(cluster))


def _headline(cluster: ClusterState, low: int) -> str:
    row = cluster.totals.first_row
    if cluster.until is None:
        return "Nothing to tell yet"
    facts = []
    if row["nodes"]:
        facts.append(counted(row["nodes"], "node"))
    if row["utilization_ratio"] is not None:
        facts.append(f"utilization {percent_text(row['utilization_ratio'])}")
    if row["allocation_ratio"] is not None:
        facts.append(f"{percent_text(row['allocation_ratio'])} allocated")
    if low:
        facts.append(f"{counted(low, 'node')} held and hardly used")
    if row["queue_depth"]:
        facts.append(f"{number_text(row['queue_depth'])} jobs waiting on average")
    return f"Last {HOURS} hours: {', '.join(facts) or 'nothing is known'}"


def _parts(cluster: ClusterState) -> Mapping[str, Any]:
    if cluster.until is None:
        return {"lake": cluster.lake, "hint": f"unknown: {cluster.totals.reason}"}
    empty = "None in these hours."
    return {
        "lake": cluster.lake,
        "doubts": [doubt.text for doubt in cluster.doubts[:MOST_SHOWN]],
        "hint": "to the hour from",
        "as_of": cluster.until,
        "figures": list(figures("totals", cluster.totals, _MEASURES)),
        "heats": list(_heats(cluster)),
        "charts": list(_charts(cluster)),
        "tables": [
            answer_table("nodes", _NODES_TITLE, cluster.nodes, ["first_device"], _NODES, empty),
            answer_table("pools", "Pools, the longest queue first", cluster.pools, ["pool"], _POOLS, empty),
        ],
    }


def _charts(cluster: ClusterState) -> Iterator[Chart]:
    if cluster.spread.rows:
        tenths = [{"tenth": row["tenth"] / 10, "nodes": row["nodes"]} for row in cluster.spread.rows]
        words = "How many nodes were utilized how much, on average over these hours."
        yield Chart(
            "spread", "Nodes by utilization", words, nodes_by_tenth(tenths), source_of("spread", cluster.spread)
        )
    yield from charts_by_hour(cluster.hours, _HOURLY)


def charts_by_hour(hours: QueriedFacts, charts: Iterable[HourlyChart]) -> Iterator[Chart]:
    """Yield charts of an answer with one row per hour, each with its known columns."""
    source, rows = source_of("hours", hours), hours.rows
    for name, title, words, parts, unit, form in charts:
        known = {column: label for column, label in parts.items() if any(row[column] is not None for row in rows)}
        if known:
            shown = zip(values_of(rows, list(known)), rows, strict=True)
            values = [{**value, "hour": time_of(row)} for value, row in shown]
            yield Chart(name, title, words, lines_by_time(values, known, unit, form, by_hour=True), source)


def _heats(cluster: ClusterState) -> Iterator[HeatMap]:
    if not cluster.heat.rows or cluster.until is None:
        return
    hours = [cluster.until - timedelta(hours=back) for back in reversed(range(HOURS))]
    place_of = {hour: place for place, hour in enumerate(hours)}
    count = 1 + max(row["place"] for row in cluster.heat.rows)
    rows, members = [""] * count, [0] * count
    values: list[float | None] = [None] * (count * HOURS)
    for row in cluster.heat.rows:
        place = row["place"]
        rows[place] = min(rows[place] or row["first_device"], row["first_device"])
        members[place] = max(members[place], row["nodes"])
        values[place * HOURS + place_of[row["hour"]]] = row["utilization_ratio"]
    grouped = "A row is several nodes that are utilized alike."
    single = "A row is a node, named by its first device."
    yield HeatMap(
        name="heat",
        title="Nodes by hour",
        description=f"Busy over observed time. {grouped if max(members) > 1 else single}",
        source=source_of("heat", cluster.heat),
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
    )


def time_of(row: Row) -> str:
    """Return a row's hour for charts."""
    return f"{row['hour']:%Y-%m-%dT%H:%M:%SZ}"
