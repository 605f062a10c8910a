"""Sweeps: correlations against scipy, nothing told of what chance or one value gives, charts of what a role sees."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sweep_lake import losses, name_of, sweep_lake
from ui_client import asking

from ranklake.insight.runs.run_columns import RunColumns
from ranklake.insight.runs.sweeps import importances
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.roles import Role

pytestmark = pytest.mark.leaky("a client keeps its event loop")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of a sweep."""
    return sweep_lake(tmp_path_factory.mktemp("swept"))


def columns_of(**values):
    """Return the columns of runs 0, 1, 2, … with values by name."""
    names = tuple(values)
    count = max(map(len, values.values()))
    of_runs = {str(run): {name: of[run] for name, of in values.items() if of[run] is not None} for run in range(count)}
    return RunColumns(of_runs, (), names), tuple(of_runs)


@given(st.lists(st.tuples(st.integers(-4, 4), st.floats(-1e3, 1e3)), min_size=3, max_size=30))
def test_a_correlation_is_spearmans(pairs):
    """Of numbers as scipy computes it; unknown where one of both is the same everywhere."""
    setting, result = zip(*pairs, strict=True)
    columns, runs = columns_of(**{"config.lr": list(setting), "last_loss": list(result)})
    rows = importances(columns, runs, "last_loss")
    if len(set(setting)) < 2:
        assert rows == []
    elif len(set(result)) < 2:
        assert rows[0].correlation is None
        assert rows[0].reason
    else:
        assert rows[0].correlation == pytest.approx(spearmanr(setting, result).statistic)


def test_words_and_missing_values_are_told_for_what_they_are():
    """Words by how much lies between them; few runs, single values and names of each run give a reason."""
    words = ["a", "a", "a", "b", "b", "b"]
    columns, runs = columns_of(**{
        "config.word": words, "config.own": list("uvwxyz"), "config.rare": [1, 2, None, None, None, None],
        "config.same": [1] * 6, "label.lr": [1, 2, 3, 4, 5, 6], "summary.score": [1.0, 2.0, 3.0, 7.0, 8.0, 9.0],
    })  # fmt: skip
    rows = {row.name: row for row in importances(columns, runs, "summary.score")}
    assert next(iter(rows)) == "label.lr"
    assert rows["label.lr"].correlation == pytest.approx(1)
    assert rows["config.word"].correlation == pytest.approx(np.sqrt(13.5 / 17.5))  # ranks 1..6 about 2 and 5
    assert rows["config.own"].correlation is None
    assert rows["config.own"].reason == "too few runs share a value"
    assert rows["config.rare"].correlation is None
    assert (rows["config.rare"].runs, "config.same" in rows) == (2, False)


def test_the_setting_that_makes_the_loss_is_first(lake):
    """Among twelve runs, with charts; the address keeps result and scatter; a role's runs alone are counted."""
    asked = {"find": "sweep=lr", "across": "label.shape", "up": "mean_step_time_s"}
    with asking(lake) as client:
        page = client.get("/explore/sweep.html", params=asked)
        empty = client.get("/explore/sweep.html?result=nothing&run=nobody")
        hostile = client.get("/explore/sweep.html", params={"result": "<script>alert(1)</script>", "find": "sweep=lr"})
        assert client.get("/explore/sweep.html?" + "&".join(f"run={n}" for n in range(300))).status_code == 400
    assert page.status_code == empty.status_code == hostile.status_code == 200
    assert "<script>alert" not in hostile.text
    first = re.search(r'<tbody><tr><th scope="row">([^<]*)</th><td class="number">([-0-9.]*)', page.text)
    assert first[1] == "config.optimizer.lr"
    assert float(first[2]) > 0.8
    assert "mean_step_time_s by label.shape" in page.text
    places = set(re.findall(r'"axis":"config.optimizer.lr","text":"[^"]*","place":([0-9.]+)', page.text))
    assert places == {"0.0", "0.5", "1.0"}  # 0.001, 0.01, 0.1: by their powers
    assert "No setting differs" in empty.text
    hidden = name_of(0.1, 0)
    role = Role("some", frozenset({"operational"}), frozenset(load_contracts()), runs=f"run <> '{hidden}'")
    with asking(lake, role) as client:
        text = client.get("/explore/sweep.html", params={"run": [hidden, name_of(0.1, 1), name_of(0.01, 1)]}).text
    assert f"{losses(0.1, 1)[-1]:.6g}" in text
    assert f"{losses(0.1, 0)[-1]:.6g}" not in text
