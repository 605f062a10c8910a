"""Queries that name metrics which have other names now give what they gave, of old and of new rows."""

import json
from datetime import date

import pyarrow as pa
import pytest
from governed import under
from overlays import written
from queries_of_versions import asked, asked_of_duckdb
from rollup_inputs import NOON, append

from ranklake.cli import run
from ranklake.lake.migrations.queries.findings import edited
from ranklake.lake.migrations.queries.meanings import Renamed, table_at
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.rollups.life.names import renamed
from ranklake.lake.rollups.life.register import move
from ranklake.lake.rollups.life.state import Link

COLUMNS = {"run": "string", "step": "int64", "metric": "string", "value": "float64", "agg_std": "float64"}
METRICS = {
    "wait_ms": Renamed((("wait", 1000.0, 0.0),)),
    "heat": Renamed((("heat_k", 1.0, -273.0), ("heat_f", 0.5, 16.0))),
    "score": Renamed((("it's", 1.0, 0.0),)),
    "whole": Renamed(why_not="split into a, b; ask its series"),
}
TABLES = {"scalars": table_at("scalars", {1: COLUMNS}, {})}
TABLES = {name: type(one)(one.name, one.versions, {}, METRICS) for name, one in TABLES.items()}
BEFORE = [
    ("a", 1, "wait_ms", 250.0, 4.0),
    ("a", 2, "wait_ms", 1500.0, 8.0),
    ("b", 1, "heat", 20.0, 2.0),
    ("b", 2, "heat", -3.0, 4.0),
    ("b", 3, "heat", 40.0, None),
    ("b", 1, "score", 7.0, None),
    ("b", 2, "score", 9.0, None),
    ("b", 2, "other", 1.0, None),
]
NOW = {
    ("a", 2): ("wait", 1.5, 0.008),
    ("b", 2): ("heat_k", 270.0, 4.0),
    ("b", 3): ("heat_f", 48.0, None),
}
AFTER = [(*one[:2], *NOW[one[:2]]) if one[2] in {"wait_ms", "heat"} and one[:2] in NOW else one for one in BEFORE]
AFTER = [(*one[:2], "it's", *one[3:]) if one[1:3] == (2, "score") else one for one in AFTER]


def rows(of):
    """Return rows as the table has them."""
    return {"scalars": pa.Table.from_pylist([dict(zip(COLUMNS, one, strict=True)) for one in of])}


@pytest.mark.parametrize(
    "text",
    [
        "SELECT avg(value) AS v, count(*) AS n FROM scalars WHERE metric = 'wait_ms'",
        "SELECT s.value FROM scalars s WHERE s.metric='heat' AND s.value > 0 ORDER BY s.step",
        "SELECT metric, max(value) AS v FROM scalars WHERE metric IN ('score', 'wait_ms','other') GROUP BY 1",
        "SELECT run, sum(CASE WHEN metric = 'score' THEN value ELSE 0 END) AS v FROM scalars GROUP BY run",
        "SELECT step, value FROM scalars WHERE NOT metric IN ('heat', 'wait_ms')",
        "SELECT step, value FROM scalars WHERE metric <> 'score' AND 'heat' <> metric AND metric <> 'wait_ms'",
        "SELECT DISTINCT metric FROM scalars WHERE metric LIKE 'h%' OR metric = 'heat'",
        "SELECT metric AS value, count(*) AS n FROM scalars WHERE metric = 'heat' GROUP BY metric",
        "SELECT max(agg_std) AS d FROM scalars WHERE metric = 'heat'",
        "WITH a AS (SELECT step, value AS v FROM scalars WHERE metric = 'heat') SELECT avg(v) AS v FROM a WHERE v > 1",
        "SELECT a.value, b.value AS w FROM scalars a JOIN scalars b ON a.metric = b.metric WHERE a.metric = 'heat'",
    ],
)
def test_a_metric_is_read_under_all_its_names(text):
    """Old rows and new ones, in the old unit and under the old name; a second time nothing happens."""
    found = rewrite(text, TABLES)
    assert [one.is_note for one in found.findings] == [True] * len(found.findings), found.findings
    later = edited(text, found.edits)
    assert not rewrite(later, TABLES).edits, later
    for ask in (asked, asked_of_duckdb):
        names, lines = ask(text, rows(BEFORE))
        assert ask(later, rows(AFTER)) == (names, [pytest.approx(line) for line in lines]), later
    assert asked(text, rows(AFTER)) != asked(text, rows(BEFORE))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT * FROM scalars WHERE metric = 'heat'", "SELECT * gives"),
        ("SELECT value FROM scalars WHERE metric = 'whole'", "split into a, b"),
        ("SELECT a.step FROM scalars a JOIN scalars b USING (metric) WHERE a.metric = 'heat'", "USING"),
        ("SELECT ${column} FROM scalars WHERE metric = 'heat'", "placeholder"),
        ("SELECT metric FROM scalars JOIN mine ON true WHERE scalars.metric = 'heat'", "several tables"),
    ],
)
def test_what_nobody_can_tell_is_told(text, what):
    """What cannot be read under both names is left alone, with the reason."""
    found = rewrite(text, TABLES)
    assert not found.edits
    assert what in " ".join(one.what for one in found.findings if not one.is_note)


def test_other_queries_are_left_alone():
    """A metric that nobody replaced, one that is asked by its new name, too, and a text elsewhere stay as they are."""
    for text in (
        "SELECT value FROM scalars WHERE metric = 'other'",
        "SELECT value FROM scalars WHERE metric IN ('wait_ms', 'wait')",
        "SELECT value FROM scalars WHERE metric = '${metric}'",
        "SELECT 'score' AS s FROM steps",
    ):
        assert rewrite(text, TABLES) == type(rewrite(text, TABLES))()


OWN = """version: 1
metrics:
""" + "".join(
    f'  - {{name: {name}, unit: "{unit}", kind: gauge, owner: team, sampling: step, status: active, doc: "-"}}\n'
    for name, unit in [("own/wait_ms", "ms"), ("own/wait", "s"), ("own/both", "s"), ("own/part", "s")]
)


def test_metrics_are_those_of_the_lake(lake, tmp_path, monkeypatch, capfd):
    """`--lake` follows what was deprecated there; what runs recorded beside its replacement is left to a person."""
    own = under(lake, written(tmp_path / "own", {"metrics.yaml": OWN}))
    facts = {"ts": NOON, "run": "r", "incarnation": 1, "value": 1.0}
    append(
        own,
        "scalars",
        [{**facts, "metric": name, "step": 1, "slot": n} for n, name in enumerate(("own/both", "own/wait"))],
    )
    move(own, "own/wait_ms", "deprecated", "Ada", links=[Link("own/wait", 0.001)], until=date(2020, 1, 1))
    move(own, "own/both", "deprecated", "Ada", links=[Link("own/wait")])
    found = renamed(own)
    assert found["own/wait_ms"].newer == (("own/wait", 1000.0, 0.0),)
    assert "beside own/wait" in found["own/both"].why_not
    assert sorted(found) == ["own/both", "own/wait_ms"]
    monkeypatch.setenv("RANKLAKE_CONTRACTS", str(tmp_path / "own"))
    path = tmp_path / "a.sql"
    path.write_text("SELECT value FROM scalars WHERE metric = 'own/wait_ms'")
    assert run(["migrate", "queries", str(path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["told"] == []
    assert run(["migrate", "queries", str(path), "--lake", lake.uri, "--write"]) == 0
    assert "metric IN ('own/wait_ms', 'own/wait')" in path.read_text()
