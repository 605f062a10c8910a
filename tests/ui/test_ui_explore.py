"""Explore: points by parts of a range that lose no extreme, views by their address, nothing for who must not see it."""

import csv
import io
import re
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hidden_run import READER, TABLES, lake_with_a_hidden_run
from hypothesis import given
from hypothesis import strategies as st
from rollup_inputs import NOON, append
from starlette.datastructures import QueryParams
from ui_client import asking

from ranklake.insight.runs.asking import asking as asking_of
from ranklake.insight.runs.explore import AXES, BANDS, MOST_PARTS, metric_names, range_of
from ranklake.lake.query.roles import Role
from ranklake.lake.query.sql import query
from ranklake.ui.view import MOST_RUNS, UnfitViewError, View

pytestmark = pytest.mark.leaky("a client keeps its event loop")
COUNT = 5_000
SPIKE = 1_234


@pytest.fixture(scope="module")
def values():
    """Give values by step, with a spike."""
    made = np.random.default_rng(4).normal(size=COUNT)
    made[SPIKE] = 1e6
    return made


@pytest.fixture(scope="module")
def lake(tmp_path_factory, values):
    """Give a lake of four runs, one hidden, and one of many values, some of which have no step."""
    made = lake_with_a_hidden_run(tmp_path_factory.mktemp("explored"))
    append(made, "scalars", [
        {"run": "alpha-2", "incarnation": 11, "ts": NOON + timedelta(seconds=n), "metric": "own/long", "step": n,
         "value": float(value)}
        for n, value in enumerate(values)
    ])  # fmt: skip
    append(made, "scalars", [
        {"run": "alpha-2", "incarnation": 11, "ts": NOON + timedelta(hours=1, seconds=n), "metric": "own/no step",
         "value": float(n)}
        for n in range(9)
    ])  # fmt: skip
    return made


@pytest.mark.parametrize(("begin", "end", "parts"), [(None, None, 100), (1000, 1999, 37), (1200, 1250, 800), (7, 7, 5)])
def test_parts_lose_no_extreme(lake, values, begin, end, parts):
    """Least, greatest, mean and count of each part are those of plain loops; all values are in a part."""
    first, last = begin or 0, COUNT - 1 if end is None else end
    rows = range_of(asking_of(lake), "alpha-2", "own/long", "step", begin, end, parts).rows
    of_part = {}
    for step in range(first, last + 1):
        part = min(parts - 1, int((step - first) * parts / max(last - first, 1e-9)))
        of_part.setdefault(part, []).append(step)
    assert [row["part"] for row in rows] == sorted(of_part)
    for row in rows:
        mine = values[of_part[row["part"]]]
        assert (row["n"], row["x"], row["low"], row["high"]) == (
            len(mine),
            of_part[row["part"]][0],
            min(mine),
            max(mine),
        )
        assert row["mean"] == pytest.approx(np.mean(mine))
    if first <= SPIKE <= last:
        assert max(row["high"] for row in rows) == 1e6
    if parts > last - first:
        assert all(row["n"] == 1 for row in rows)


@pytest.mark.parametrize(("begin", "parts"), [(None, 40), (90.0, 13)])
def test_parts_of_a_logarithmic_axis_are_equally_wide_on_it(lake, values, begin, parts):
    """The first steps, which a linear part would hold together, are apart; places at 0 or below are left out."""
    rows = range_of(asking_of(lake), "alpha-2", "own/long", "step", begin, None, parts, is_log=True).rows
    first, last = int(begin or 1), COUNT - 1
    of_part = {}
    for step in range(first, last + 1):
        part = int((np.log(step) - np.log(first)) * parts / (np.log(last) - np.log(first)))
        of_part.setdefault(min(parts - 1, part), []).append(step)
    assert [(row["part"], row["n"], row["x"]) for row in rows] == [
        (part, len(steps), steps[0]) for part, steps in sorted(of_part.items())
    ]
    assert [(row["low"], row["high"]) for row in rows] == [
        (min(values[steps]), max(values[steps])) for _, steps in sorted(of_part.items())
    ]
    query(lake, range_of(asking_of(lake), "alpha-2", "own/long", "step", None, None, parts, is_log=True).sql)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("metric", ["loss", "step_time_s", "tokens", "tokens_per_s", "own/metric"])
def test_each_axis_goes_on_and_its_sql_stands_alone(lake, axis, metric):
    """Over steps, tokens, time: in order; the SQL that is told gives the same rows. Samples nobody counted: none."""
    answer = range_of(asking_of(lake), "alpha-1", metric, axis, None, None, 50)
    places = [row["x"] for row in answer.rows]
    assert places == sorted(places)
    assert bool(places) == (axis != "samples")
    assert query(lake, answer.sql).to_pylist() == [dict(row) for row in answer.rows]
    if axis == "wall" and metric == "loss":
        assert places[0] == NOON.timestamp()


def test_a_metric_without_steps_is_over_time_alone(lake):
    """Over steps nothing, over time all of it, from when the run began."""
    ask = asking_of(lake)
    assert range_of(ask, "alpha-2", "own/no step", "step", None, None, 50).rows == ()
    rows = range_of(ask, "alpha-2", "own/no step", "relative", None, None, 50).rows
    assert [row["mean"] for row in rows] == [float(n) for n in range(9)]
    assert rows[1]["x"] - rows[0]["x"] == pytest.approx(1.0)
    assert range_of(ask, "alpha-2", "own/no step", "wall", None, None, 50).rows[0]["x"] == NOON.timestamp() + 3600


def test_metrics_are_named_by_patterns(lake):
    """In the order of the patterns, each once, so many at most; names with what patterns mean are matched apart."""
    ask = asking_of(lake)
    runs = ["alpha-1", "alpha-2"]
    assert metric_names(ask, runs, ["own/*", "loss", "own/long"], 12, "scalars") == [
        *("own/long", "own/metric", "own/no step", "loss")
    ]
    assert metric_names(ask, runs, ["*"], 3, "scalars") == ["loss", "step_time_s", "tokens_per_s"]  # no lr
    assert metric_names(ask, runs, ["lr"], 3, "scalars") == ["lr"]
    assert metric_names(ask, runs, ["nothing*"], 3, "scalars") == []


NAMES = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=9)
MANY = "&".join(f"run={number}" for number in range(30))


@given(
    st.builds(
        View,
        search=st.text(st.characters(blacklist_categories=("Cs", "Z", "C")), max_size=9),
        runs=st.lists(
            st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=9), unique=True, max_size=4
        ).map(tuple),
        metrics=st.lists(st.sampled_from(["loss", "own/*", "a?b", "ü&=%"]), min_size=1, max_size=4).map(tuple),
        axis=st.sampled_from(list(AXES)),
        begin=st.none() | st.floats(-1e12, 1e12),
        end=st.none() | st.floats(-1e12, 1e12),
        smooth=st.integers(0, 50),
        is_log=st.booleans(),
        is_clipped=st.booleans(),
        group=st.sampled_from(["optimizer.lr", "tag.night", "a b"]),
        band=st.sampled_from(list(BANDS)),
        columns=st.lists(st.sampled_from(["loss", "config.*", "tag.ü&"]), unique=True, max_size=3).map(tuple),
        baseline=st.text(st.characters(blacklist_categories=("Cs",)), max_size=9),
    )
)
def test_an_address_is_the_view(view):
    """What a view writes as its address is the view that is read from it; wall time has no logarithm."""
    for is_log_x in {False, view.axis != "wall"}:
        each = replace(view, is_log_x=is_log_x)
        assert View.of(QueryParams(each.query())) == each
    assert not View.of(QueryParams("x=wall&logx=on")).is_log_x


@pytest.mark.parametrize(
    "asked",
    [
        "x=nothing",
        "from=abc",
        "to=nan",
        "from=inf",
        "smooth=x",
        "smooth=-1",
        "parts=-1",
        "parts=0",
        "parts=1.5",
        "band=wide",
        "baseline=" + "b" * 3000,
        "run=" + "a" * 3000,
        "&".join(f"run={n}" for n in range(30)),
    ],
)
def test_what_is_no_view_is_refused(lake, asked):
    """In a sentence, with what would do; no traceback and no query."""
    with pytest.raises(UnfitViewError):
        View.of(QueryParams(asked))
    with asking(lake) as client:
        assert client.get(f"/explore/?{asked}").status_code == 400
        assert client.get(f"/explore/points.json?{asked}").status_code == 400


@pytest.mark.parametrize(
    "run", ["' OR 1=1 --", "alpha-1' UNION SELECT 1 --", "$metric", "{parts}", "<script>alert(1)</script>", "nobody"]
)
def test_a_name_is_no_sql_and_no_markup(lake, run):
    """It is a name that no run has: a page, and no points."""
    asked = {"run": run, "metric": run.replace(" ", "?") + " loss"}
    with asking(lake) as client:
        page, points = client.get("/explore/", params=asked), client.get("/explore/points.json", params=asked)
    assert (page.status_code, points.status_code) == (200, 200)
    assert "<script>alert" not in page.text + points.text
    assert [line for line in points.json()["lines"] if line["points"]] == []


def test_a_view_is_had_as_json_csv_and_sql(lake):
    """The same points; CSV that no table program takes for formulas."""
    append(lake, "scalars", [
        {"run": "alpha-2", "incarnation": 11, "ts": NOON, "metric": "=cmd|calc", "step": n, "value": 1.0}
        for n in (0, 1)
    ])  # fmt: skip
    asked = {"run": "alpha-2", "metric": "own/long =*", "from": "10", "to": "19", "parts": "50"}
    with asking(lake) as client:
        lines = client.get("/explore/points.json", params=asked).json()["lines"]
        table = list(csv.reader(io.StringIO(client.get("/explore/points.csv", params=asked).text)))
        sql = client.get("/explore/points.sql", params=asked).text
        everything = client.get("/explore/points.csv", params={**asked, "from": "", "to": ""}).text
    assert lines[0]["metric"] == "own/long"
    assert lines[0]["whole"]
    assert len(lines[0]["points"]) == len(table) - 1 == 10
    assert table[0] == ["metric", "run", "step", "mean", "low", "high", "values"]
    assert "-- own/long of alpha-2" in sql
    assert "'=cmd|calc" in everything
    assert ",=cmd" not in everything


@pytest.mark.parametrize(
    ("search", "runs"),
    [
        ("config.opt.name=adam", {"alpha-1", "alpha-2"}),
        ("config.lr = 0.001", {"alpha-1", "alpha-3"}),
        ("label.größe=x", {"alpha-3"}),
        ("status=failed", {"alpha-1"}),
        ("team=text", {"alpha-3"}),
        ("tag.canary-tag=canary", {"beta"}),
        ("canary-tag=", {"beta"}),
        ("config.lr=' OR 1=1 --", set()),
        ("config.=x", set()),
        ("=", set()),
    ],
)
def test_runs_are_searched_by_settings_labels_tags_and_figures(lake, search, runs):
    """What is offered has the value; a text that plays tricks is a value that no run has."""
    with asking(lake) as client:
        text = client.get("/explore/", params={"find": search, "metric": "loss"}).text
    assert set(re.findall(r'name="run" value="([^"]*)"', text)) == runs


def test_a_role_explores_what_it_sees(lake):
    """No point, metric or name of a hidden run, whatever the address says."""
    role = Role("reader", frozenset(READER["classes"]), frozenset(TABLES), runs=READER["runs"])
    with asking(lake, role) as client:
        page = client.get("/explore/?metric=*")
        points = client.get("/explore/points.json?run=beta&run=alpha-1&metric=canary/*+loss+own/metric")
        offered = client.get("/explore/?find=canary-tag%3Dcanary")
    assert "canary" not in page.text
    assert "beta" not in page.text
    assert "beta" not in offered.text
    drawn = {(line["run"], line["metric"]): len(line["points"]) for line in points.json()["lines"]}
    assert drawn["beta", "loss"] == 0
    assert drawn["alpha-1", "own/metric"] == 3
    assert not any("canary" in metric for _, metric in drawn)
    with asking(lake) as client:
        assert any(
            line["points"] for line in client.get("/explore/points.json?run=beta&metric=canary/*+loss").json()["lines"]
        )
    with asking(lake, Role("none", frozenset(), frozenset())) as client:
        assert client.get("/explore/").status_code == 404
        assert [line for line in client.get("/explore/points.json?run=beta").json()["lines"] if line["points"]] == []


def test_how_much_is_asked_at_once_is_bounded(lake):
    """Runs, parts: an address cannot ask for more."""
    assert View.of(QueryParams("parts=1e9")).parts == MOST_PARTS
    assert MOST_RUNS * MOST_PARTS < 100_000
