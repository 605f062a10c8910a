"""Queries that name metrics which have other names now are told, with the name that counts."""

import json
from datetime import date

import pytest
from governed import under
from overlays import written

from ranklake.cli import run
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.tables import Table
from ranklake.lake.migrations.steps.step import MetricSuccessor
from ranklake.lake.rollups.life.register import metric_successors, move
from ranklake.lake.rollups.life.state import Link

METRICS = {
    "wait_ms": MetricSuccessor("wait", "recorded as wait now"),
    "whole": MetricSuccessor("", "split into a, b"),
}
TABLES = {"scalars": Table("scalars", {1: ("run", "metric", "value")}, metrics=METRICS)}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT avg(value) FROM scalars WHERE metric = 'wait_ms'", ["wait_ms is recorded as wait now"]),
        ("SELECT value FROM scalars WHERE metric IN ('other', 'whole')", ["whole is split into a, b"]),
        ("SELECT value FROM scalars WHERE metric IN ('wait_ms', 'wait')", []),
        ("SELECT value FROM scalars WHERE metric = '${metric}'", []),
        ("SELECT 'wait_ms' AS s FROM steps", []),
    ],
)
def test_a_metric_with_another_name_is_told(text, what):
    """A query that names the new one, too, is done, and so is one of another table."""
    outcome = rewrite(text, TABLES)
    assert ([finding.message for finding in outcome.findings], outcome.edits) == (what, [])


OWN = """version: 1
metrics:
""" + "".join(
    f'  - {{name: {name}, unit: "{unit}", kind: gauge, owner: team, sampling: step, status: active, doc: "-"}}\n'
    for name, unit in [("own/wait_ms", "ms"), ("own/wait", "s"), ("own/both", "s"), ("own/part", "s")]
)


def test_metrics_are_those_of_the_lake(lake, tmp_path, monkeypatch, capfd):
    """`--lake` names what was deprecated there, and what takes its place."""
    own = under(lake, written(tmp_path / "own", {"metrics.yaml": OWN}))
    move(own, "own/wait_ms", "deprecated", "Ada", links=[Link("own/wait", 0.001)], until=date(2020, 1, 1))
    move(own, "own/both", "deprecated", "Ada", links=[Link("own/wait"), Link("own/part")])
    assert {old: new.name for old, new in metric_successors(own).items()} == {"own/wait_ms": "own/wait", "own/both": ""}
    monkeypatch.setenv("RANKLAKE_CONTRACTS", str(tmp_path / "own"))
    path = tmp_path / "a.sql"
    path.write_text("SELECT value FROM scalars WHERE metric = 'own/wait_ms'")
    assert run(["migrate", "queries", str(path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["told"] == []
    assert run(["migrate", "queries", str(path), "--lake", lake.uri]) == 1
    assert f"{path}:1: own/wait_ms is recorded as own/wait now" in capfd.readouterr().err
