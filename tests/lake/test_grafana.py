"""The dashboards of docs/grafana: their queries run in two engines, and ask for metrics that the agent serves."""

import re
from itertools import combinations

import duckdb
import pytest
from known_lake import ROWS, known_lake
from packaged_queries import ASKED, BOARDS, DOCS, filled
from prometheus_client.parser import text_string_to_metric_families
from promql import labels_of, metrics_of

from ranklake.capture.node.agent_metrics import AgentMetrics, prometheus
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.query.sql import query
from ranklake.lake.tables.read import read
from ranklake.pipeline.health.declaration import METRICS


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Give a lake, and DuckDB with the same tables."""
    lake = known_lake(tmp_path_factory.mktemp("grafana"))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in ROWS:
            connection.register(table, read(lake.tables, contract(table)))
        yield lake, connection


def test_there_is_a_dashboard_for_each_reader():
    """One for agents and one for the pipeline, by Prometheus; three for tables."""
    assert set(BOARDS) == {"agent", "debug", "executive", "on-call", "pipeline"}
    assert len(ASKED) > 25


@pytest.mark.parametrize(("board", "title", "text"), ASKED, ids=[f"{board}: {title}" for board, title, _ in ASKED])
def test_a_panel_shows_what_both_engines_give(engines, board, title, text):
    """Each query has rows for what is in the lake, the same from DataFusion and DuckDB, and keeps to some dates."""
    lake, connection = engines
    asked = filled(text)
    assert "date BETWEEN" in asked
    found = query(lake, asked)
    assert found.num_rows
    other = connection.execute(asked)
    assert [column[0] for column in other.description] == found.column_names
    rows = [tuple(row.values()) for row in found.to_pylist()]
    assert {repr(row) for row in plain(other.fetchall())} == {repr(row) for row in plain(rows)}


def plain(rows):
    return [tuple(value.isoformat()[:19] if hasattr(value, "isoformat") else value for value in row) for row in rows]


def test_panels_ask_for_what_the_agent_serves():
    """Every metric of the agent is on its dashboard, and no other; labels are those that it has."""
    served = prometheus(AgentMetrics(gaps={("steps", "budget"): 1}))
    samples = [one for family in text_string_to_metric_families(served) for one in family.samples]
    asked = " ".join(target["expr"] for one in BOARDS["agent"]["panels"] for target in one["targets"])
    assert set(re.findall(r"ranklake_\w+", asked)) == {one.name for one in samples}
    labels = {label for one in samples for label in one.labels} | {"instance"}
    grouped = {label.strip() for some in re.findall(r"by \(([^)]*)\)", asked) for label in some.split(",")}
    assert grouped == labels


def test_panels_ask_for_what_the_pipeline_serves():
    """Every metric of the pipeline's health is on its dashboard, in PromQL, with labels that it has; and no other."""
    asked = [target["expr"] for one in BOARDS["pipeline"]["panels"] for target in one["targets"]]
    labels = {metric.full_name: set(metric.labels) for metric in METRICS}
    assert set().union(*map(metrics_of, asked)) == labels.keys()
    for expr in asked:
        for label, metrics in labels_of(expr):
            assert all(label in labels[metric] for metric in metrics), expr


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_whole(name):
    """Panels have ids, titles, explanations and places of their own, and a data source that the reader chooses."""
    board = BOARDS[name]
    chosen = {f"${{{one['name']}}}" for one in board["templating"]["list"] if one["type"] == "datasource"}
    panels = board["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    assert board["timezone"] == "utc"
    for one in panels:
        assert one["title"]
        assert one["description"]
        assert {one["datasource"]["uid"], *(target["datasource"]["uid"] for target in one["targets"])} == chosen
        assert one["gridPos"]["x"] + one["gridPos"]["w"] <= 24
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_the_readme_names_every_table_that_is_asked():
    """Who makes the views that the dashboards need makes all of them."""
    asked = {word for _, _, text in ASKED for word in re.findall(r"(?:FROM|JOIN) (\w+)", text)}
    views = set(re.findall(r"VIEW (\w+)", (DOCS / "grafana" / "README.md").read_text(encoding="utf-8")))
    assert asked == views
    assert views <= set(load_contracts())
