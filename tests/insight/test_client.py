"""Runs from Python: found as the command finds them, their history as recorded, as a role sees it, and noted."""

import json
import math
import sys
import warnings
from datetime import UTC, datetime, timedelta, timezone
from itertools import product

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from logged_runs import HOSTILE, logged_lake
from rollup_inputs import NOON, append

import ranklake.lake
from ranklake.cli import run as command
from ranklake.errors import RanklakeError
from ranklake.insight.arguments import ArgumentError
from ranklake.insight.runs.asking import UnseenError
from ranklake.insight.runs.find import NoSuchRunError
from ranklake.insight.runs.run import UnknownFrameError
from ranklake.lake.query.usage import logged_queries
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake

ROLES = """
roles:
  narrow: {classes: [operational], tables: [run_summary, step_rollup, steps, runs], runs: "run = 'big'"}
  rounded: {classes: [operational], tables: [run_summary, steps], masks: {steps.loss: "bucket:10"}}
"""
RANKS, STEPS = 3, 40


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of three runs as scripts log them."""
    return logged_lake(tmp_path_factory.mktemp("client"))


def _loss(attempt, rank, step):
    return float("nan") if (rank, step) == (1, 7) else 100.0 * attempt + step + rank / 4


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """Give a lake of a run of three ranks whose steps 30 to 39 were done twice, with a metric that each rank logs."""
    lake = Lake.create(str(tmp_path_factory.mktemp("big") / "lake"))
    append(lake, "runs", [{"run": "big", "ts": NOON, "world_size": RANKS}])
    steps, scalars = [], []
    for attempt, (first, last) in enumerate([(0, STEPS), (30, STEPS)]):
        for rank, step in product(range(RANKS), range(first, last)):
            key = {"run": "big", "attempt": attempt, "rank": rank, "step": step}
            key["ts"] = NOON + timedelta(hours=attempt, seconds=step)
            loss = _loss(attempt, rank, step)
            told = {"loss": loss} if math.isfinite(loss) else {"loss": None, "non_finite": "loss:nan"}
            steps.append({**key, **told, "tokens": 10, "step_time_s": 0.5 + rank})
            if step % 2 == 0:
                scalars.append({**key, "metric": "eval/acc", "value": step + rank + attempt / 2})
    append(lake, "steps", steps)
    append(lake, "scalars", scalars)
    run_rollups(lake)
    return lake


@pytest.mark.slow
def test_runs_are_those_of_the_command(lake, capsys):
    """Each condition and order finds what ``ranklake runs`` finds, with the same numbers."""
    for options, asked in (
        ([], {}), (["fir"], {"name": "fir"}), (["--config", "lr=0.1"], {"config": {"lr": 0.1}}),
        (["--tag", "stage=second"], {"tags": {"stage": "second"}}), (["--tag", "kept"], {"tags": "kept"}),
        (["--where", "metric:eval/loss<2"], {"where": "metric:eval/loss < 2"}),
        (["--where", "metric:eval/loss<2", "--where", "config:opt=adam"],
         {"where": "metrics.eval/loss < 2 and params.opt = 'adam'"}),
        (["--by", "summary:best acc", "--highest", "--limit", "1"],
         {"by": "summary:best acc", "highest": True, "limit": 1}),
        (["--sort", "oldest", "--since", "1h"], {"sort": "oldest", "since": datetime.now(UTC) - timedelta(hours=1)}),
    ):  # fmt: skip
        assert command(["runs", *options, "--json", "--lake", lake.uri]) == 0
        rows = json.loads(capsys.readouterr().out)["runs"]
        found = ranklake.lake.runs(**asked, lake=lake)
        assert [run.id for run in found] == [row["run"] for row in rows]
        assert [run.status for run in found] == [row["status"] for row in rows]
        assert [run.name for run in found] == [row["said"]["name"] for row in rows]


def test_a_run_has_what_its_script_said(lake):
    """Settings, tags, summary and history are what was recorded; NaN stays NaN; a value without a step comes last."""
    run = ranklake.lake.run("first", lake=lake)
    assert run.config == {"lr": 0.1, "opt": "adam", "model": {"depth": 2}}
    assert run.tags == {"kept": None, "stage": "first"}
    assert (run.summary["best acc"], run.summary["eval/loss"], run.summary["files"]) == (0.9, 0.5, 7)
    assert run.facts.run == "first"
    assert run.artifacts.num_rows == 0
    rows = run.history(["eval/*", HOSTILE, "files"])
    assert rows.column_names == ["step", "ts", "eval/loss", HOSTILE, "files"]
    assert rows.drop_columns("ts").to_pydict() == {
        "step": [0, 1, None], "eval/loss": [3.0, 0.5, None], HOSTILE: [0, 1, None], "files": [None, None, 7],
    }  # fmt: skip
    assert set(rows.column_names) == set(run.history().column_names)
    assert run.history("eval/loss", steps=(1, None))["step"].to_pylist() == [1]
    first, last = ranklake.lake.run("third", lake=lake).history("eval/loss")["eval/loss"].to_pylist()
    assert (first, math.isnan(last)) == (1.5, True)


def test_a_table_of_runs(lake):
    """A row a run: figures, settings, tags, summary values, and metrics that are asked for; mixed types are text."""
    found = ranklake.lake.runs(sort="oldest", lake=lake, as_="pandas")
    table = found.table(metrics=["eval/loss"])
    assert list(table["run"]) == ["first", "second", "third"]
    assert list(table["metric.eval/loss"]) == [0.5, 2.5, 1.5]
    assert list(table["config.lr"]) == ["0.1", "1", "auto"]
    assert list(table["summary.best acc"][:2]) == [0.9, 0.7]
    assert list(table["config.model.depth"][:1]) == [2]
    assert found[1:].table(as_="polars")["tag.stage"].to_list() == ["second", None]
    assert len(ranklake.lake.runs("nobody", lake=lake).table()) == 0


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_history_is_what_plain_loops_give(big, rank):
    """Of each step the last attempt counts: means over ranks, or one rank's values; pages are parts of the whole."""
    run = ranklake.lake.run("big", lake=big)
    rows = run.history(["loss", "eval/acc", "tokens", "step_time_s"], rank=rank)
    ranks = range(RANKS) if rank is None else [rank]
    for row in rows.to_pylist():
        step, loss, acc, tokens, time_s = (value for name, value in row.items() if name != "ts")
        attempt = int(step >= 30)
        expected = sum(_loss(attempt, one, step) for one in ranks) / len(ranks)
        assert loss == pytest.approx(expected, nan_ok=True)
        wanted = None if step % 2 else sum(step + one + attempt / 2 for one in ranks) / len(ranks)
        assert acc == wanted
        assert (tokens, time_s) == (10 * len(ranks), pytest.approx(0.5 + (1 if rank is None else rank)))
    assert rows["step"].to_pylist() == list(range(STEPS))
    pages = list(run.scan_history(["loss", "eval/acc", "tokens", "step_time_s"], rank=rank, page_rows=7))
    assert [page.num_rows for page in pages] == [7] * 5 + [5]
    assert str(pa.concat_tables(pages).to_pydict()) == str(rows.to_pydict())


def test_pages_of_values_without_steps(lake):
    """Pages go on with values that have no step, and end."""
    pages = list(ranklake.lake.run("first", lake=lake).scan_history(page_rows=1, as_="polars"))
    assert [page.height for page in pages] == [1, 1, 1]
    assert isinstance(pages[0], pl.DataFrame)
    assert pages[-1]["files"].to_list() == [7]


def test_mistakes_are_answered_in_a_line(lake, monkeypatch):
    """Unknown runs, metrics, kinds of tables and orders name the nearest; what is not installed, how to install it."""
    run = ranklake.lake.run("first", lake=lake)
    for wrong, kind, words in (
        (lambda: ranklake.lake.run("frist", lake=lake), NoSuchRunError, "did you mean 'first'"),
        (lambda: run.history("eval/los"), RanklakeError, "no metric 'eval/los'; did you mean 'eval/loss'"),
        (lambda: run.history("mfu", rank=0), RanklakeError, "it is of all ranks: leave rank out"),
        (lambda: run.history(as_="panda"), UnknownFrameError, "did you mean 'pandas'"),
        (lambda: ranklake.lake.runs(lake=lake, as_="nump"), UnknownFrameError, "unknown kind of table"),
        (lambda: ranklake.lake.runs(lake=lake, sort="best"), RanklakeError, "runs have no order 'best'"),
        (lambda: ranklake.lake.runs(lake=lake, where="conf:x<1"), RanklakeError, "names no value of runs"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words) as caught:
            wrong()
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UnknownFrameError, match="polars is not installed; pip install polars"):
        run.history(as_="polars")


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        *(("rank", value, "whole number") for value in ("0 or 1=1", "0", True, 1.0, np.float64(1), [0])),
        ("rank", -1, "out of range"), ("rank", 2**63, "out of range"),
        ("steps", ("0 or 1=1", None), "'0 or 1=1' is no whole number"),
        ("steps", (None, "9 or 1=1"), "no whole number"),
        ("steps", (False, 2), "no whole number"), ("steps", 3, "pass steps=.first, end."), ("steps", (1,), "no pair"),
        ("steps", (5, 1), "ends before it begins"), ("steps", None, "no pair"), ("metrics", 5, "a metric's name"),
        ("metrics", [None], "a metric's name"), ("metrics", {"loss": 1}, "a metric's name"),
        *(("page_rows", value, "1 or more") for value in (0, -1, "7; x", None, 2.5, True)),
    ],
)  # fmt: skip
def test_wrong_arguments_of_a_history_reach_no_sql(big, argument, value, words):
    """Whole numbers alone are pasted into SQL; all else is refused in a line that names the argument."""
    run = ranklake.lake.run("big", lake=big)
    asked = {"metrics": "loss", argument: value}
    with pytest.raises(ArgumentError, match=f"^{argument}: .*{words}") as caught:
        list(run.scan_history(**asked)) if argument == "page_rows" else run.history(**asked)
    assert "\n" not in str(caught.value)


def test_numpy_integers_are_whole_numbers(big):
    """As loops over arrays give them."""
    run = ranklake.lake.run("big", lake=big)
    pages = [*run.scan_history("loss", rank=np.int64(2), steps=(np.int32(3), np.uint8(5)), page_rows=np.int64(1))]
    assert [page["loss"].to_pylist() for page in pages] == [[3.5], [4.5]]
    assert len(ranklake.lake.runs(lake=big, limit=np.int64(1))) == 1


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("since", "2d", "pass a datetime"), ("until", 5, "pass a datetime"), ("since", pd.NaT, "is no time"),
        ("since", datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), "out of range"),
        ("limit", "5", "a whole number of runs"), ("limit", -1, "a whole number of runs"),
        ("limit", True, "a whole number of runs"), ("config", "lr", "{'lr': 0.1}"), ("config", ["lr"], "{'lr': 0.1}"),
        ("labels", {1: 2}, "values by name"), ("tags", 5, "names, or values"), ("tags", [5], "names, or values"),
        ("where", 5, "metric:loss < 2"), ("where", {"loss": 2}, "metric:loss < 2"), ("name", None, "a text"),
        ("status", "finshed", "did you mean 'finished'"), ("status", 5, "one of failed"), ("job", 5, "a text"),
        ("sort", None, "a text"), ("sort", "new", "did you mean"), ("by", 5, "metric:loss"),
        ("by", "x:y", "metric:NAME"),
        ("highest", "no", "True or False"), ("highest", True, "a value to sort by"), ("where", "x:y<1", "metric:NAME"),
        ("lake", 5, "its URI"), ("role", 5, "a role's name"), ("as_", 5, "one of arrow"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_runs(lake, argument, value, words):
    """Each is refused in a line that names the argument as Python writes it."""
    with pytest.raises(RanklakeError, match=f"^{argument}: .*{words}") as caught:
        ranklake.lake.runs(**{"lake": lake, argument: value})
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)


def test_other_wrong_arguments(lake):
    """Names that are none, and limits of an answer."""
    for wrong, words in (
        (lambda: ranklake.lake.run(None, lake=lake), "^name: .*a run's name"),
        (lambda: ranklake.lake.runs(lake=lake).table(metrics=5), "^metrics: .*a metric's name"),
        (lambda: ranklake.lake.sql("SELECT 1", lake, limit="5"), "^limit: .*a whole number of rows"),
        (lambda: ranklake.lake.sql(None, lake), "^text: .*one SELECT"),
    ):
        with pytest.raises(ArgumentError, match=words):
            wrong()


def test_losses_of_steps_are_found_by_each_of_their_names(big):
    """A column of steps is one metric: bare, as ranklake or MLflow name it, and as its registered name."""
    last = float(np.mean([_loss(1, rank, STEPS - 1) for rank in range(RANKS)]))
    for name in ("loss", "metric:loss", "metrics.loss", "metric:train/loss"):
        below = [len(ranklake.lake.runs(lake=big, where=f"{name} < {last + more}")) for more in (-0.01, 0.01)]
        assert below == [0, 1]
        assert ranklake.lake.runs(lake=big, by=name, limit=1)[0].id == "big"
    table = ranklake.lake.runs(lake=big).table(metrics="loss")
    assert table["metric.loss"].to_pylist() == [last]
    with pytest.raises(RanklakeError, match="no run has metric:los; did you mean 'loss'"):
        ranklake.lake.runs(lake=big, where="los < 2")


def test_a_role_sees_its_own_runs(big, tmp_path, monkeypatch):
    """By the name of a role of the configuration: its runs and tables alone, no numbers of rounded values."""
    (tmp_path / "roles.yaml").write_text(ROLES)
    text = f'[lake]\nuri = "{big.uri}"\n[sql]\nroles = "{tmp_path}/roles.yaml"\n[query]\nconsumer = "notebook"\n'
    (tmp_path / "ranklake.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    (run,) = ranklake.lake.runs(role="narrow")
    assert set(run.history().column_names) == {"step", "ts", "loss", "tokens", "step_time_s", "tokens_per_s"}
    assert run.history("loss", rank=2, steps=(3, 4))["loss"].to_pylist() == [3.5]
    assert "eval/acc" not in run.summary
    with pytest.raises(UnseenError, match="role rounded sees"):
        ranklake.lake.run("big", role="rounded").history("loss", rank=0)
    with pytest.raises(RanklakeError, match="did you mean 'narrow'"):
        ranklake.lake.runs(role="narow")
    noted = [one for one in logged_queries(big.store, datetime.now(UTC).date()) if one.role == "narrow"]
    assert {one.consumer for one in noted} == {"notebook"}
    assert {table for one in noted for table in one.columns} >= {"run_summary", "step_rollup", "steps"}


def test_what_was_read_is_noted_once_a_call(lake):
    """The query log has a line a call, with the columns that it used."""
    before = len(list(logged_queries(lake.store, datetime.now(UTC).date())))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranklake.lake.sql("SELECT count(metric) AS n FROM scalars", lake)
        ranklake.lake.run("first", lake=lake).history("eval/loss")
    noted = sorted(logged_queries(lake.store, datetime.now(UTC).date()), key=lambda one: one.id)[before:]
    assert [sorted(one.columns) for one in noted] == [["scalars"], ["run_summary"], ["scalars"]]
    assert {"metric", "value", "step"} <= set(noted[-1].columns["scalars"])
