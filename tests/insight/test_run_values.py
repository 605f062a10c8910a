"""Runs sorted and filtered by what their scripts logged: any metric, summary value or setting; and compared by them."""

import json

import pytest

from ranklake import capture
from ranklake.cli import run as command
from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.compare import compare
from ranklake.insight.runs.values import RunValue, ValueCondition, runs_where, values_of_runs
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake

RUNS = {
    "r1": ({"lr": 0.1, "opt": {"name": "adam"}}, [3.0, 0.5], 0.9),
    "r2": ({"lr": 0.01, "opt": {"name": "sgd"}}, [0.1, 2.5], 0.7),
    "r3": ({"lr": "auto"}, [1.5, float("nan")], None),
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of three recorded runs."""
    folder = tmp_path_factory.mktemp("values")
    for name, (config, losses, best) in RUNS.items():
        with capture.start(
            run=name, spool=str(folder / "spool"), local_dir=str(folder), config=config, samplers="off"
        ) as run:
            for step, loss in enumerate(losses):
                run.log({"eval/loss": loss}, step=step)
            if best is not None:
                run.summary["best acc"] = best
    lake = Lake.create(str(folder / "lake"))
    ingest(lake, Spool(str(folder / "spool")), InProcess())
    run_rollups(lake)
    return lake


def test_values(lake):
    """Of a metric the last finite one, of a summary the number, of a setting the value, also one within another."""
    ask = asking(lake)
    for text, wanted in {
        "metric:eval/loss": {"r1": 0.5, "r2": 2.5, "r3": 1.5}, "summary:best acc": {"r1": 0.9, "r2": 0.7},
        "config:lr": {"r1": 0.1, "r2": 0.01, "r3": "auto"}, "config:opt.name": {"r1": "adam", "r2": "sgd"},
    }.items():  # fmt: skip
        assert values_of_runs(ask, RunValue.parse(text)) == wanted


@pytest.mark.parametrize(
    ("conditions", "runs"),
    [
        (["metric:eval/loss<1.5"], ["r1"]), (["metric:eval/loss<=1.5"], ["r1", "r3"]), (["config:lr>0.05"], ["r1"]),
        (["config:lr=0.010"], ["r2"]), (["config:lr!=0.01"], ["r1", "r3"]), (["summary:best acc>=0.7"], ["r1", "r2"]),
        (["summary:best acc>0.7", "metric:eval/loss>2"], []), (["config:opt.name=sgd"], ["r2"]),
    ],
)  # fmt: skip
def test_conditions(lake, conditions, runs):
    """Signs compare numbers; equality also texts; several go together; a run without the value never meets one."""
    assert runs_where(asking(lake), map(ValueCondition.parse, conditions)) == tuple(runs)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loss<1", "no run has metric:loss"), ("conf:lr<1", "'conf:lr' names no value of runs"),
        ("metric:eval/loss", "is no condition"),
        ("metric:eval/loss<x", "'x' is no number"), ("metric:eval/los<1", "no run has metric:eval/los; did you mean"),
    ],
)  # fmt: skip
def test_mistakes(lake, text, words):
    """One line says what was meant."""
    with pytest.raises(RanklakeError, match=words):
        runs_where(asking(lake), [ValueCondition.parse(text)])


def test_the_command(lake, capsys):
    """Sorted lowest or highest first, with the value in a column; runs without it come last."""

    def names(*options):
        assert command(["runs", "--lake", lake.uri, "--json", *options]) == 0
        return [(row["run"], row.get("value")) for row in json.loads(capsys.readouterr().out)["runs"]]

    assert names("--by", "metric:eval/loss") == [("r1", 0.5), ("r3", 1.5), ("r2", 2.5)]
    assert names("--by", "summary:best acc", "--highest", "--limit", "3") == [("r1", 0.9), ("r2", 0.7), ("r3", None)]
    assert names("--by", "config:lr") == [("r2", 0.01), ("r1", 0.1), ("r3", "auto")]
    assert names("--where", "metric:eval/loss>1", "--where", "config:lr=0.01") == [("r2", None)]
    assert command(["runs", "--lake", lake.uri, "--by", "metric:eval/loss"]) == 0
    head, *_ = capsys.readouterr().out.splitlines()
    assert "metric:eval/loss" in head
    assert command(["runs", "--lake", lake.uri, "--highest"]) == 2
    assert "give a value to sort by" in capsys.readouterr().err


def test_compare_has_summary_values(lake, capsys):
    """Side by side, a dash where a run has none."""
    (row,) = compare(asking(lake), ("r1", "r2", "r3")).summary
    assert (row.name, row.values) == ("best acc", ("0.9", "0.7", None))
    assert command(["compare", "r1", "r3", "--lake", lake.uri]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines() if "best acc" in line] == [
        ["best", "acc", "0.9", "-"]
    ]
