"""What commands say to help: names that are near, what was recorded and not registered, endings, extras to install."""

from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from rollup_inputs import append

from ranklake import cli
from ranklake.commands.catalog import catalog
from ranklake.errors import did_you_mean
from ranklake.insight.diagnosis.run_spans import read_spans
from ranklake.insight.diagnosis.simulate import WhatIfError

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_recorded_metric_is_known(lake):
    """A metric that nobody registered is shown with what the lake has of it, and is among the names that are near."""
    append(lake, "scalars", [{"ts": NOON, "slot": n, "metric": "acc", "value": 0.5, "kind": "gauge"} for n in range(3)])
    shown = CliRunner().invoke(catalog, ["acc", "--lake", lake.uri])
    assert shown.exit_code == 0, shown.output
    assert "acc: recorded, and not registered" in shown.output
    assert "3 in 1 run" in shown.output
    told = CliRunner().invoke(catalog, ["acd", "--lake", lake.uri])
    assert "did you mean 'acc'?" in str(told.exception)


def test_of_many_names_the_nearest_are_shown():
    """Where none is near enough to be meant, those that hold or begin with the word come first."""
    names = [f"a{n}" for n in range(20)] + ["train/accuracy", "eval/acc_top5"]
    said = did_you_mean("acc", names)
    assert said.startswith("the nearest of 22 names: eval/acc_top5, train/accuracy, ")
    assert did_you_mean("x", ["b", "a"]) == "known: a, b"


def test_a_requested_signal_says_where_it_is_shown(tmp_path, monkeypatch, capsys):
    """Filed into a folder that the configuration does not name, it says how the catalog shows it."""
    monkeypatch.chdir(tmp_path)
    request = [
        "request-signal",
        "queue/depth",
        "--unit",
        "{request}",
        "--why",
        "w",
        "--owner",
        "o",
        "--contracts",
        "own",
    ]
    assert cli.run(request) == 0
    said = capsys.readouterr().out
    assert "`ranklake catalog queue/depth --contracts own` shows it" in said
    assert 'overlay = "own" under [contracts]' in said
    assert cli.run(["catalog", "queue/depth", "--contracts", "own"]) == 0
    (tmp_path / "ranklake.toml").write_text('[contracts]\noverlay = "own"\n')
    assert cli.run(request[:-2]) == 0
    assert "`ranklake catalog queue/depth` shows it\n" in capsys.readouterr().out


ENDINGS = "end it in .txt, .md, .csv, .json, .parquet, .pq, or say --format"


@pytest.mark.parametrize(("name", "hint"), [("x.xlsx", "write x.csv, which"), ("x", ENDINGS), ("x.feather", ENDINGS)])
def test_an_ending_that_cannot_be_written_is_refused(lake, tmp_path, capsys, name, hint):
    """No file of another kind than its name says."""
    code = cli.run(["sql", "SELECT 1 AS one", "--lake", lake.uri, "--output", str(tmp_path / name)])
    assert code == 2
    assert hint in capsys.readouterr().err
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(("module", "extra"), [("datafusion", "pipeline"), ("torch", "torch")])
def test_what_is_missing_names_what_brings_it(module, extra):
    """A package that is not installed is named with the extra that has it, and no other."""
    error = ModuleNotFoundError(name=module)
    assert cli._explain(error) == (f"{module} is not installed; pip install 'ranklake[{extra}]'", 2)


def test_what_if_of_a_run_without_phases_says_so(lake):
    """Spans that tell of no phase are the reason, not that other ranks have none."""
    append(lake, "runs", [{"ts": NOON, "world_size": 8}])
    save = {"ts": NOON, "name": "save", "kind": "checkpoint", "duration_ns": 10**9, "span_id": 1, "step": 3}
    append(lake, "spans", [save])
    with pytest.raises(WhatIfError, match="no phases and no operations of a pipeline in any step"):
        read_spans(lake, "r1")
