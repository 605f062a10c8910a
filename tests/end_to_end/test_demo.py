"""The main job, end to end: a real training run on two ranks, recorded, ingested, checked and rolled up."""

import json
import os
import pydoc_data.topics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from lineage_of_pages import followed
from notebooks import NOTEBOOKS, run_notebook

from ranklake.cli import run
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake

STEPS = 60
"""Some more than ranks are judged by (`thresholds.MIN_STEPS`)."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return one folder for all demos of this module: runs of one lake must not disturb one another."""
    return tmp_path_factory.mktemp("demo")


def demo(folder, *options):
    command = [
        sys.executable,
        "-m",
        "ranklake",
        "demo",
        "--dir",
        str(folder),
        "--steps",
        str(STEPS),
        "--json",
        *options,
    ]
    environment = {**os.environ, "RANKLAKE_CAPTURE_SAMPLERS": "auto"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False, env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    for stage in ("1/5", "2/5", "3/5", "ingest", "check", "rollup", "4/5", "5/5"):
        assert stage in done.stderr
    said = json.loads(done.stdout)
    page = Path(said["report"])
    assert page == folder / "report" / "index.html"
    assert said["run"] in (page.parent / "runs" / "index.html").read_text(encoding="utf-8")
    return said


def stragglers(said):
    return [row["rank"] for row in said["health"]["rows"] if row["is_straggler"]]


@pytest.fixture(scope="module")
def plain(folder):
    """Return what a demo without faults says of itself."""
    return demo(folder)


def test_ten_numbers_of_the_page_reach_their_segments(plain, folder, capsys):
    """Each by the command that the page shows for it: data files and segments, all digests verified."""
    (page,) = (folder / "report/runs").glob(f"run-{plain['run']}-*.html")
    places = ["--lake", str(folder / "lake"), "--spool", str(folder / "spool")]
    assert len(followed(page.read_text(encoding="utf-8"), places, capsys)) == 10


def test_every_step_the_trainer_counted_is_stored(plain):
    """Steps per rank equal the trainer's own count, nothing is in gaps or quarantine, checks pass, nobody is slow."""
    said = plain
    assert [(row["rank"], row["n"]) for row in said["ranks"]["rows"]] == [(0, STEPS), (1, STEPS)]
    assert said["counted"] == {"0": STEPS, "1": STEPS}
    assert (said["lost"], said["repeated"], said["books_add_up"]) == (0, 0, True)
    assert sum(item["gaps"] + item["quarantined"] + item["in_flight"] for item in said["balances"]) == 0
    assert set(said["checks"]["checks"]) <= {"passed", "skipped"}, said["checks"]["unsound"]
    assert stragglers(said) == []
    (summary,) = said["summary"]["rows"]
    assert (summary["status"], summary["injected"]) == ("finished", None)
    assert said["loss"]["rows"][-1]["loss"] < said["loss"]["rows"][0]["loss"]
    assert all(0.98 <= row["phases_ratio"] <= 1.0 for row in said["shares"]["rows"])


def test_the_demo_is_held_against_a_known_truth(folder, plain):
    """The short form of calibration went through a lake of its own: what is counted is exact, durations are near."""
    told = plain["calibration"]["comparisons"]
    assert len(told) == 14
    assert [one for one in told if not one["passed"]] == []
    assert (folder / "calibration" / "lake" / "ranklake.json").exists()
    assert plain["calibration"]["run"] not in {row["run"] for row in plain["summary"]["rows"]}


def test_what_is_recorded_beside_steps(folder, plain, monkeypatch, capsys):
    """Host samples, code, the data's fingerprint, a checkpoint that hashes to what was recorded, and log lines."""
    said = plain
    assert said["host"]["rows"][0]["n"] > 0
    assert said["gpu"]["rows"][0]["n"] or said["no_gpu"]["rows"]
    assert said["code"]["rows"][0]["packages"]
    (data,) = said["datasets"]["rows"]
    source = Path(pydoc_data.topics.__file__).read_bytes()
    assert data["bytes"] == len(source)
    assert len(data["merkle_root_sha256"]) == 64
    assert said["verified"] == {"checkpoint.pt": "verified"}
    assert {row["severity"]: row["n"] for row in said["logs"]["rows"]}["INFO"] == 2 * (1 + -(-STEPS // 100))
    monkeypatch.chdir(allowing(folder))
    assert run(["verify-artifact", "checkpoint.pt", "--lake", str(folder / "lake")]) == 0
    assert "verified" in capsys.readouterr().out


def allowing(folder):
    """Allow commands in a folder to open artifacts below it; return the folder."""
    (folder / "ranklake.toml").write_text(f'[artifacts]\nallow = ["{folder}"]\n')
    return folder


def test_the_run_can_be_shown_later(folder, plain, capsys):
    """The demo's summary of its run is what `ranklake show` tells of it, but for what the trainer counted itself."""
    assert run(["show", plain["run"], "--json", "--lake", str(folder / "lake")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("ended_metrics") == []  # the demo's summary does not look for these
    del shown["checkpoint"]  # another test has verified it since
    assert {name: plain[name] for name in shown} == shown


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run_on_it(folder, plain, name, monkeypatch, capsys):
    """Each cell of each, of the latest run; what a demo has none of is said, and raises nothing."""
    monkeypatch.setenv("RANKLAKE_LAKE", str(folder / "lake"))
    monkeypatch.delenv("RUN", raising=False)
    found = run_notebook(name)
    said = capsys.readouterr().out
    if name == "data-skew":
        assert (list(found["ranks"]["rank"]), len(found["skewed"])) == ([0, 1], 0)
    elif name == "utilization-and-loss":
        assert len(found["training"]) > 0
    else:
        assert said.count("\n") == 1


def test_mfu_says_what_it_rests_on(folder):
    """The demo's MFU lies between nothing and the measured peak, and names its peak, number format and convention."""
    lake = Lake.open(str(folder / "lake"))
    (row,) = query(lake, "SELECT * FROM mfu ORDER BY hour LIMIT 1").to_pylist()
    assert 0 < row["mfu_ratio"] < 1
    assert row["mfu_ratio"] == pytest.approx(row["model_flops"] / row["peak_flops"])
    assert row["peak_source"] == "measured: calibration matrix product"
    assert (row["peak_dtype"], row["flops_convention"]) == ("float32", "counted")


def test_counted_flops_are_those_of_the_model(folder):
    """Counted FLOPs of a token are 6 per weight of every matrix product, plus attention, within two percent."""
    lake = Lake.open(str(folder / "lake"))
    (row,) = query(
        lake, "SELECT value FROM scalars WHERE metric = 'model/flops_per_token' AND rank = 0 LIMIT 1"
    ).to_pylist()
    layers, width, context, vocabulary = 3, 128, 64, 256
    matrices = layers * 12 * width**2 + vocabulary * width
    attention = 12 * layers * width * context
    assert row["value"] == pytest.approx(6 * matrices + attention, rel=0.02)


def test_goodput_adds_up_to_wall_time(folder):
    """The kinds of time of a run add up to its wall time, to the nanosecond."""
    rows = query(Lake.open(str(folder / "lake")), "SELECT * FROM goodput").to_pylist()
    kinds = ("init", "productive", "checkpoint", "evaluation", "restart", "lost_work", "stall", "unattributed")
    for row in rows:
        assert sum(row[f"{kind}_ns"] for kind in kinds) == row["wall_ns"]


def test_a_second_ingest_commits_nothing(folder, capsys):
    """Ingest over the same spool again says that there is nothing new, and no table has a new version."""
    tables = sorted((folder / "lake" / "tables").iterdir())
    before = {table.name: DeltaTable(str(table)).version() for table in tables}
    assert run(["ingest", "--lake", str(folder / "lake"), "--spool", str(folder / "spool")]) == 0
    assert capsys.readouterr().out == "nothing new in the spool; nothing committed\n"
    assert {table.name: DeltaTable(str(table)).version() for table in tables} == before


@pytest.mark.crash
def test_a_slowed_rank_is_named(folder):
    """With an injected slow rank the run is labelled as injected and the summary names that rank and no other."""
    said = demo(folder, "--slow-rank", "1")
    assert stragglers(said) == [1]
    assert [(row["straggler_rank"], row["injected"]) for row in said["summary"]["rows"]] == [(1, "slow rank 1")]


@pytest.mark.crash
def test_a_killed_rank_loses_nothing_it_acknowledged(folder):
    """After SIGKILL half-way every step a rank had journalled is stored, once, and the run is not called finished."""
    said = demo(folder, "--kill-rank", "1")
    assert (said["lost"], said["repeated"], said["books_add_up"]) == (0, 0, True)
    assert said["counted"]["1"] == STEPS // 2
    assert all(row["n"] >= said["counted"][str(row["rank"])] for row in said["ranks"]["rows"])
    (summary,) = said["summary"]["rows"]
    assert summary["status"] in {"failed", "abandoned"}
    assert summary["injected"] == "killed rank 1"


@pytest.mark.leaky("polars keeps its thread pool")
def test_other_readers_see_the_same(folder):
    """Polars on the Delta log and DuckDB on its files count the same rows and sum the same values as our SQL."""
    lake = Lake.open(str(folder / "lake"))
    for table in ("runs", "steps", "scalars", "spans", "events", "step_rollup", "rank_health", "run_summary"):
        path = str(folder / "lake" / "tables" / table)
        (ours,) = query(lake, f"SELECT count(*) AS n FROM {table}").to_pylist()
        assert pl.scan_delta(path).select(pl.len()).collect().item() == ours["n"] > 0
        files = DeltaTable(path).file_uris()
        assert duckdb.read_parquet(files, hive_partitioning=True).aggregate("count(*)").fetchall()[0][0] == ours["n"]
    ours = query(
        lake, "SELECT run, rank, count(*) AS n, sum(tokens) AS tokens FROM steps GROUP BY run, rank"
    ).to_pylist()
    frame = pl.scan_delta(str(folder / "lake" / "tables" / "steps"))
    theirs = frame.group_by("run", "rank").agg(pl.len().alias("n"), pl.col("tokens").sum()).collect().to_dicts()
    assert Counter(tuple(row.values()) for row in theirs) == Counter(tuple(row.values()) for row in ours)


def test_sql_prints_a_table_and_json_that_parses(folder, capsys):
    """The documented question prints a table, and as JSON it parses."""
    question = "SELECT rank, count(*) n, avg(step_time_s) FROM steps GROUP BY rank"
    command = ["sql", question, "--lake", str(folder / "lake")]
    assert run(command) == 0
    assert capsys.readouterr().out.splitlines()[0].split("|")[0].strip() == "rank"
    assert run([*command, "--format", "json"]) == 0
    assert sorted(row["rank"] for row in json.loads(capsys.readouterr().out)) == [0, 1]
