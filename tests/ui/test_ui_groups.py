"""Explore by groups: bands against numpy, tables and baselines, pictures, samples beside the loss, what a role sees."""

import csv
import io

import numpy as np
import pytest
from rollup_inputs import NOON, append
from starlette.datastructures import QueryParams
from sweep_lake import RATES, SEEDS, losses, name_of, sweep_lake
from ui_client import asking

from ranklake.insight.runs.asking import asking as asking_of
from ranklake.insight.runs.explore import BANDS, Group, range_of
from ranklake.insight.runs.run_columns import as_number, run_columns
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.roles import Role
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.ui.run_table import markdown_table, run_table
from ranklake.ui.view import MOST_GROUPED, UnfitViewError, View
from ranklake.views.html.charts import cached

pytestmark = pytest.mark.leaky("a client keeps its event loop")
GROUP = tuple(name_of(0.1, seed) for seed in SEEDS)
EXPECTED = {
    "range": (np.min, np.max),
    "quartiles": (lambda values: np.quantile(values, 0.25), lambda values: np.quantile(values, 0.75)),
    "p5-p95": (lambda values: np.quantile(values, 0.05), lambda values: np.quantile(values, 0.95)),
    "deviation": (
        lambda values: np.mean(values) - np.std(values, ddof=1),
        lambda values: np.mean(values) + np.std(values, ddof=1),
    ),
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of a sweep."""
    return sweep_lake(tmp_path_factory.mktemp("sweep"))


@pytest.mark.parametrize("band", BANDS)
def test_a_band_is_what_numpy_says_of_the_runs(lake, band):
    """At every step: mean and band over the runs that made it, and how many did; the SQL stands alone."""
    answer = range_of(asking_of(lake), Group(GROUP, band), "loss", "step", None, None, 2000)
    series = [losses(0.1, seed) for seed in SEEDS]
    assert [row["x"] for row in answer.rows] == list(range(40))
    for step, row in enumerate(answer.rows):
        here = [values[step] for values in series if step < len(values)]
        assert row["n"] == len(here) == (4 if step < 20 else 3)
        low, high = (measure(here) for measure in EXPECTED[band])
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((np.mean(here), low, high))
    again = query(lake, answer.sql).to_pylist()
    assert [list(row.values()) for row in again] == [pytest.approx(list(row.values())) for row in answer.rows]


def test_each_run_counts_once_a_part_however_many_steps_it_made(lake):
    """A part of many steps: the mean of the runs' means, not of all values; each run begins at its own time."""
    rows = range_of(asking_of(lake), Group(GROUP, "range"), "loss", "relative", None, None, 1).rows
    means = [np.mean(losses(0.1, seed)) for seed in SEEDS]
    assert rows[0]["mean"] == pytest.approx(np.mean(means))
    assert rows[0]["x"] == 0
    assert rows[0]["high"] == pytest.approx(max(np.max(losses(0.1, seed)) for seed in SEEDS))


def test_a_view_groups_what_its_search_finds(lake):
    """By a setting within another, a label, a tag; a run without it is of the group unknown; values in order."""
    with asking(lake) as client:

        def labels(group):
            asked = {"find": "sweep=lr", "group": group, "metric": "loss", "parts": 40}
            answer = client.get("/explore/points.json", params=asked).json()["lines"]
            return {line["run"]: line["points"] for line in answer}

        by_rate = labels("optimizer.lr")
        assert list(by_rate) == [f"optimizer.lr = {rate} (4 runs)" for rate in sorted(RATES)]
        assert all(len(points) == 40 and points[0][4] == 4 for points in by_rate.values())
        assert list(labels("label.shape")) == ["label.shape = large (6 runs)", "label.shape = small (6 runs)"]
        assert list(labels("tag.sweep")) == ["tag.sweep = lr (12 runs)"]
        assert list(labels("nothing")) == ["nothing = unknown (12 runs)"]
        page = client.get("/explore/?find=sweep%3Dlr&group=optimizer.lr&baseline=" + GROUP[0])
        assert page.text.count('name="run" value="sweep-') == 12
        table = list(csv.reader(io.StringIO(client.get("/explore/points.csv?find=sweep%3Dlr&group=seed").text)))
        assert table[0] == ["metric", "group", "step", "mean", "low", "high", "runs"]


def test_too_many_groups_or_runs_are_refused_in_a_sentence(lake, tmp_path):
    """More values than colours; more runs than an address may name."""
    with pytest.raises(UnfitViewError, match="201 runs"):
        View.of(QueryParams("group=lr&" + "&".join(f"run={number}" for number in range(MOST_GROUPED + 1))))
    told = [f"run-{number}" for number in range(21)]
    with asking(lake) as client:
        append(lake, "annotations", [
            {"run": run, "ts": NOON, "incarnation": 1, "kind": "tag", "key": "number", "value": run} for run in told
        ])  # fmt: skip
        asked = {"run": told, "group": "tag.number"}
        assert client.get("/explore/", params=asked).status_code == 400
        refused = client.get("/explore/points.json", params=asked)
    assert refused.status_code == 400
    assert "21 values, too many to draw" in refused.text


def test_columns_are_found_by_name_and_pattern_and_set_against_a_baseline(lake):
    """Settings without their prefix, patterns; what differs from the baseline is marked, what nobody has is empty."""
    runs = (name_of(0.01, 0), name_of(0.1, 1))
    columns = run_columns(asking_of(lake), (*runs, GROUP[0]))
    assert columns.find("optimizer.lr") == "config.optimizer.lr"
    assert columns.find("nothing") is None
    assert columns.matching(["tag.*", "config.*", "lr"], 9)[:2] == ["tag.sweep", "config.layers"]
    table = run_table(columns, runs, ("optimizer.lr", "last_loss", "nothing"), GROUP[0])
    assert table.columns == ("config.optimizer.lr", "last_loss")
    assert table.rows[0][:2] == (GROUP[0], "0.1")
    assert table.rows[1] == (runs[0], "0.01", f"{losses(0.01, 0)[-1]:.6g}")
    differences = dict(table.differences)
    assert differences["config.optimizer.lr"] == (("0.1", False), ("0.01", True), ("0.1", False))
    assert differences["config.seed"] == (("0", False), ("0", False), ("1", True))
    assert "config.layers" not in differences
    assert run_table(columns, runs, (), "nobody").differences == ()


def test_settings_are_those_of_the_newest_attempt(tmp_path):
    """A run that was resumed with other settings has these."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "runs", [
        {"run": "resumed", "incarnation": 3 - attempt, "ts": NOON, "rank": 0, "attempt": attempt, "world_size": 1,
         "config": f'{{"lr": {lr}}}'}
        for attempt, lr in enumerate((0.1, 0.01, 0.001))
    ])  # fmt: skip
    run_rollups(lake)
    assert run_columns(asking_of(lake), ["resumed"]).value("resumed", "config.lr") == 0.001


def test_a_table_of_a_paper_holds_no_markup_of_names():
    """Neither a pipe, nor a link, nor a line's end."""
    assert markdown_table(["a|b"], [["[x](y)\n<b>"]]) == "| a\\|b |\n| --- |\n| \\[x\\](y)\\\\n&lt;b&gt; |"


def test_numbers_are_those_that_are_finite():
    """Also those that a trainer wrote as text; truth and words are none."""
    assert [as_number(value) for value in (1, "1e-4", 2.5, True, "x", None, "nan", float("inf"))] == [
        *(1.0, 1e-4, 2.5, None, None, None, None, None)
    ]


def test_a_view_is_had_as_picture_and_markdown(lake):
    """PNG of all charts, also logarithmic over wall time; Markdown that names it, with table and differences."""
    asked = {"find": "sweep=lr", "group": "optimizer.lr", "baseline": GROUP[0], "log": "on", "smooth": "2", "x": "wall"}
    with asking(lake) as client:
        picture = client.get("/explore/view.png", params=asked)
        text = client.get("/explore/view.md", params=asked).text
        table = list(csv.reader(io.StringIO(client.get("/explore/runs.csv", params=asked).text)))
    assert picture.headers["content-type"] == "image/png"
    assert picture.content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(picture.content) > 10_000
    assert text.startswith("![loss, step\\_time\\_s over time (UTC)](view.png)\n")
    assert "Mean over runs; band: least to greatest." in text
    assert "\n| config.optimizer.lr | 0.1 | 0.001 |" in text  # the baseline, then the newest first
    assert table[0][0] == "run"
    assert len(table) == 13


def test_samples_are_under_the_loss_over_time_alone(lake):
    """Of the devices that the run held, whoever took them: extremes over devices; the host, not its processes."""
    ask = asking_of(lake)
    rows = range_of(ask, GROUP[0], "gpu/power_watts", "relative", None, None, 30).rows
    assert (rows[0]["x"], rows[0]["mean"], rows[0]["low"], rows[0]["high"]) == (0, 350, 300, 400)
    assert sum(row["n"] for row in rows) == 60
    host = range_of(ask, GROUP[0], "host/cpu_utilization_ratio", "wall", None, None, 30).rows
    assert {row["mean"] for row in host} == {0.25}
    assert host[0]["x"] == NOON.timestamp()
    over_steps = range_of(ask, GROUP[0], "gpu/power_watts", "step", None, None, 30)
    assert over_steps.rows == ()
    assert "over time" in over_steps.reason
    assert range_of(ask, GROUP[1], "gpu/power_watts", "wall", None, None, 30).rows == ()


def test_a_role_groups_by_what_it_sees(lake):
    """Runs that it does not see add nothing to a mean, a count, a table or a baseline."""
    hidden, seen = name_of(0.1, 0), tuple(name_of(0.1, seed) for seed in (1, 2))
    role = Role("some", frozenset({"operational"}), frozenset(load_contracts()), runs=f"run <> '{hidden}'")
    asked = {"run": [hidden, *seen], "group": "sweep", "metric": "loss", "band": "range", "baseline": hidden}
    with asking(lake, role) as client:
        lines = client.get("/explore/points.json", params=asked).json()["lines"]
        table = client.get("/explore/runs.csv", params=asked).text
        page = client.get("/explore/", params=asked).text
    assert max(point[4] for line in lines for point in line["points"]) == 2
    assert not any(f"{losses(0.1, 0)[-1]:.6g}" in text for text in (table, page))
    assert "Settings against" not in page


def test_the_library_is_kept_and_made_again_when_its_bytes_changed(tmp_path):
    """Once made it is read; a file that was cut short or changed is not given."""
    made = []

    def make():
        made.append(1)
        return b"// library"

    folder = tmp_path / "cache"
    assert [cached("vega-1.js", make, folder) for _ in range(3)] == [b"// library"] * 3
    assert len(made) == 1
    kept = next(folder.iterdir())
    assert (kept.stat().st_mode & 0o077, folder.stat().st_mode & 0o077) == (0, 0)
    kept.write_bytes(b"// other")
    assert cached("vega-1.js", make, folder) == b"// library"
    assert cached("vega-2.js", make, folder) == b"// library"
    assert len(made) == 3
    (tmp_path / "file").write_bytes(b"")
    assert cached("vega-1.js", make, tmp_path / "file" / "below") == b"// library"
