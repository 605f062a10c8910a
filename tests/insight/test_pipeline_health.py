"""The pipeline's own health: metrics equal plain computations, name no run, and cost no more than their time limit."""

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rollup_inputs import append
from rollup_inputs import told as nought
from segments import put_segment, step_rows
from stores import s3_storage

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import lost_tables
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read
from ranklake.pipeline.health.declaration import BY_NAME, METRICS
from ranklake.retention.plans.plan import make_plan
from ranklake.retention.policies.policies import load_policies

ROOT = Path(__file__).resolve().parents[2]
UNITS = ("_seconds", "_bytes", "_total", "_rows", "_segments", "_files")
PLAIN = {"collector_success", "lake_up", "child_up", "prefect_up", "stage_overdue", "checks_unsound",
         "proposals_waiting", "pool_polled", "deployment_failed", "segments_unreadable",
         "segments_refused", "tables_lost", "alerts_firing"}  # fmt: skip
"""Counts and states, which have no unit."""


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Let nothing of this machine be looked at but what a test plants."""
    for name in list(os.environ):
        if name.startswith(("RANKLAKE_", "PREFECT_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RANKLAKE_LOCAL_SPOOL", str(tmp_path / "local"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def scraped(capsys, tmp_path):
    """Give the samples of `ranklake metrics`: values by name and labels."""

    def look(*options, code=0):
        assert run(["metrics", "--lake", str(tmp_path / "lake"), "--spool", str(tmp_path / "spool"), *options]) == code
        families = text_string_to_metric_families(capsys.readouterr().out)
        samples = [sample for family in families for sample in family.samples]
        result = {(sample.name.removeprefix("ranklake_"), *sorted(sample.labels.values())): sample.value
                  for sample in samples}  # fmt: skip
        assert len(result) == len(samples)
        return result

    return look


def brought_in(place, ages_s, **columns):
    """Put a segment each into the spool whose last row is so old, and bring them in; return the commit's moment."""
    now = datetime.now(UTC)
    for number, age_s in enumerate(ages_s):
        start = now - timedelta(seconds=age_s + 9)
        rows = step_rows(10, incarnation=7 + number, start=start, **columns)
        put_segment(place / "spool", rows, day=now.date().isoformat())
    lake = Lake.create(str(place / "lake"))
    ingest(lake, Spool(str(place / "spool")), InProcess())
    return lake


def test_names_follow_the_conventions():
    """Each metric ends in its unit or ``_total``, or is a count or a state, and says in a sentence what it is."""
    for metric in METRICS:
        assert metric.name.endswith(UNITS) or metric.name in PLAIN, metric.name
        assert metric.doc.endswith(".")
        assert re.fullmatch(r"[a-z_]+", metric.name)
        assert not {"run", "user", "host", "rank"} & set(metric.labels)
    assert len(BY_NAME) == len(METRICS)


def test_the_page_lists_each_metric():
    """docs/monitoring.md has a line for each metric, with its labels and what it means, in their order."""
    page = ROOT / "docs" / "monitoring.md"
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `ranklake_")]
    assert lines == [
        f"| `{metric.full_name}` | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.doc} |"
        for metric in METRICS
    ]


def test_figures_equal_plain_computations(tmp_path, scraped):
    """Rows by fate, lag by percentile, sizes and what waits are those of the tables and the spool."""
    ages = [0, 30, 60, 600, 5000]
    lake = brought_in(tmp_path, ages)
    put_segment(tmp_path / "spool", step_rows(5, incarnation=99, start=datetime.now(UTC)))  # waits
    path = put_segment(tmp_path / "spool", step_rows(7, incarnation=98, start=datetime.now(UTC)))
    before = time.time() - 7200
    os.utime(path, (before, before))
    found = scraped()
    (plan,) = read(lake.tables, contract("ingest_plans")).to_pylist()
    segments = read(lake.tables, contract("segments")).to_pylist()
    lags = [(plan["committed_ts"] - row["ts_max"]).total_seconds() for row in segments]
    for share in (50, 90, 99):
        assert found["ingest_lag_seconds", str(share), "steps"] == pytest.approx(np.percentile(lags, share), abs=0.01)
    assert found["ingest_rows_total", "stored"] == 50
    assert found["ingest_segments_total",] == 5
    took_s = (plan["committed_ts"] - plan["created_ts"]).total_seconds()
    assert found["ingest_duration_seconds_total",] == pytest.approx(took_s, abs=1e-3)
    assert found["ingest_last_commit_timestamp_seconds",] == pytest.approx(plan["committed_ts"].timestamp())
    assert (found["spool_backlog_segments",], found["spool_backlog_rows",]) == (2, 12)
    assert found["spool_backlog_age_seconds",] == pytest.approx(7200, abs=120)
    assert found["stage_overdue", "ingest"] == 1
    assert found["stage_waiting_seconds", "ingest"] == found["spool_backlog_age_seconds",]
    assert (found["stage_overdue", "check"], found["stage_overdue", "upkeep"]) == (0, 0)
    assert all(found["collector_success", name] for name in ("lake", "spool", "ingests", "stages", "checks", "people"))


def test_imported_rows_were_not_late(tmp_path, scraped):
    """Rows of March that are sealed now are an import: no lag is reckoned from them, and none is made up."""
    put_segment(tmp_path / "spool", step_rows(10), day=datetime.now(UTC).date().isoformat())
    ingest(Lake.create(str(tmp_path / "lake")), Spool(str(tmp_path / "spool")), InProcess())
    found = scraped()
    assert not [key for key in found if key[0] == "ingest_lag_seconds"]
    assert found["ingest_rows_total", "stored"] == 10


def test_many_runs_make_no_more_series(tmp_path, scraped, capsys):
    """With 40 runs there are as many series as with one, and no name of a run is among them."""
    brought_in(tmp_path, [5], run="secret-project")
    few = scraped()
    lake = Lake.open(str(tmp_path / "lake"))
    for number in range(40):
        rows = step_rows(2, incarnation=100 + number, run=f"secret-{number}", start=datetime.now(UTC))
        put_segment(tmp_path / "spool", rows)
    ingest(lake, Spool(str(tmp_path / "spool")), InProcess())
    many = scraped()
    assert many.keys() == few.keys()
    assert many["ingest_segments_total",] == 41
    run(["metrics", "--lake", str(tmp_path / "lake"), "--json"])
    assert "secret" not in capsys.readouterr().out


def test_what_waits_for_a_person_is_counted(tmp_path, scraped):
    """A retention plan that nobody approved waits, since it was made; kinds of which none waits are 0."""
    lake = brought_in(tmp_path, [0])
    old = step_rows(3, incarnation=500, start=datetime(2020, 1, 1, tzinfo=UTC))
    put_segment(tmp_path / "spool", old)
    ingest(lake, Spool(str(tmp_path / "spool")), InProcess())
    assert scraped()["proposals_waiting", "retention plan"] == 0
    make_plan(lake, lake.contracts(), load_policies(lake.contracts()), datetime.now(UTC).date(), "somebody")
    found = scraped()
    assert found["proposals_waiting", "retention plan"] == 1
    assert 0 <= found["proposals_waiting_seconds", "retention plan"] < 600
    assert found["proposals_waiting", "erasure"] == 0


def test_unreadable_segments_and_failing_checks_are_counted(tmp_path, scraped):
    """A segment of 80 rows whose bytes are cut is counted for seven days; a check that fails, as long as it does."""
    lake = brought_in(tmp_path, [0])
    path = put_segment(tmp_path / "spool", step_rows(80, incarnation=50, start=datetime.now(UTC)))
    path.write_bytes(path.read_bytes()[:100])
    ingest(lake, Spool(str(tmp_path / "spool")), InProcess())
    now = datetime.now(UTC)
    append(lake, "quality_results", [
        {"check_run": "c", "table": "steps", "partition_date": now.date(), "suite": "s", "expectation": "e",
         "check_id": "loss", "severity": "error", "status": "failed", "rows_checked": 10, "rows_failed": 1,
         "duration_s": 2.5, "ts": now, "date": now.date()}
    ])  # fmt: skip
    found = scraped()
    assert (found["segments_unreadable",], found["segments_refused",]) == (1, 0)
    assert found["checks_unsound", "error", "failed"] == 1
    assert (found["checks_total",], found["checks_duration_seconds_total",]) == (1, 2.5)


def test_alerts_and_backups_are_counted(tmp_path, scraped):
    """By the last row of each alert; of each configured place by its last good backup, and nothing of one without."""
    lake, now = brought_in(tmp_path, [0]), datetime.now(UTC)
    rows = [("a", 0, "firing", "critical", 1, 1), ("a", 5, "resolved", "critical", 2, 3),
            ("b", 1, "firing", "warning", 4, 0), ("c", 2, "firing", "warning", 1, 0)]  # fmt: skip
    append(lake, "alerts", [
        {"alert_id": name, "ts": now + timedelta(seconds=second), "date": now.date(), "rule": "r", "subject": "s",
         "state": state, "severity": severity, "messages": taken, "failures": lost, "since_ts": now, "fired_ts": now}
        for name, second, state, severity, taken, lost in rows
    ])  # fmt: skip
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    append(lake, "backups", [
        {"ts": now - timedelta(hours=hours), "date": now.date(), "kind": kind, "place": here, "outcome": outcome,
         "as_of_ts": now - timedelta(hours=hours), "duration_s": 1.0}
        for hours, kind, outcome in ((30, "backup", "ok"), (9, "backup", "ok"), (2, "drill", "ok"),
                                     (1, "backup", "failed"))
    ])  # fmt: skip
    (tmp_path / "ranklake.toml").write_text(f'[backup]\nto = ["{here}", "{there}"]\n')
    found = scraped()
    firing = {name: found["alerts_firing", name] for name in ("critical", "error", "warning", "info")}
    assert firing == {"critical": 0, "error": 0, "warning": 2, "info": 0}
    assert (found["notifications_total", "delivered"], found["notifications_total", "lost"]) == (7, 3)
    assert found["backup_age_seconds", here] == pytest.approx(9 * 3600, abs=120)
    assert ("backup_age_seconds", there) not in found


@pytest.mark.leaky("a client that waits for a store that never answers: it ends with the process")
def test_a_store_that_hangs_costs_the_time_limit(tmp_path, capsys):
    """What needs no lake is known all the same; the lake is down, and the reason stands on stderr. Exit 1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        storage = s3_storage(f"http://127.0.0.1:{server.getsockname()[1]}")
        lines = ["[storage]", *(f"{key} = {json.dumps(value)}" for key, value in storage.items())]
        (tmp_path / "ranklake.toml").write_text("\n".join(lines) + "\n")
        began = time.monotonic()
        assert run(["metrics", "--lake", "s3://bucket/lake", "--limit-s", "1"]) == 1
        assert time.monotonic() - began < 30
    out, error = capsys.readouterr()
    assert "ranklake_lake_up 0.0" in out
    assert 'ranklake_disk_free_bytes{place="local_spool"}' in out
    assert "no answer within 1 s" in error


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_next_round_goes_on(tmp_path):
    """A file that cannot grow, as on a full disk: exit 2 in one line that names it; with room, all rows come in."""
    put_segment(tmp_path / "spool", step_rows(3000, start=datetime.now(UTC)))
    command = [sys.executable, "-m", "ranklake", "pipeline", "--lake", "lake", "--spool", "spool"]

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))

    options = {"cwd": tmp_path, "capture_output": True, "text": True}
    full = subprocess.run(command, check=False, preexec_fn=limited, **options)
    assert full.returncode == 2
    assert "cannot be written" in full.stderr
    assert "make room" in full.stderr
    assert "Traceback" not in full.stderr
    done = subprocess.run(command, check=False, **options)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "ingest  3,000 rows stored, 0 quarantined")


def test_no_lake_is_told_and_the_rest_is_known(tmp_path, scraped):
    """A folder without a lake: down, and its parts are not known rather than 0."""
    found = scraped(code=1)
    assert found["lake_up",] == 0
    assert found["collector_success", "ingests"] == 0
    assert ("ingest_rows_total", "stored") not in found


@pytest.mark.parametrize(
    ("lost", "collector", "metric"),
    [
        ("ingest_plans/_delta_log", "ingests", ("ingest_plans_total",)),
        ("ingest_plans", "ingests", ("ingest_plans_total",)),
        ("segments/_delta_log", "spool", ("spool_backlog_segments",)),
        ("segments", "spool", ("spool_backlog_segments",)),
        ("quality_results/_delta_log", "checks", ("checks_total",)),
        ("steps/_delta_log", None, None),
        ("steps", None, None),
    ],
)
def test_a_lost_table_is_not_counted_as_an_empty_one(tmp_path, capsys, lost, collector, metric):
    """Its log goes, or all of it: what is drawn from it is not known, the rest is, and the exit code tells."""
    brought_in(tmp_path, [0])
    nought(Lake.open(str(tmp_path / "lake")), "quality_results", [{"status": "passed", "severity": "error"}])
    tables = tmp_path / "lake/tables"
    shutil.rmtree(tables / lost)
    if not lost.startswith("steps"):  # whose rows the ledger has: no first commit is under way
        assert lost_tables(Lake.open(str(tmp_path / "lake"))) == []
        for path in tables.rglob("*.*"):
            os.utime(path, (time.time() - 900,) * 2)
    options = ["metrics", "--lake", str(tmp_path / "lake"), "--spool", str(tmp_path / "spool")]
    assert run(options) == 1
    captured = capsys.readouterr()
    families = text_string_to_metric_families(captured.out)
    found = {(each.name.removeprefix("ranklake_"), *each.labels.values()): each.value
             for family in families for each in family.samples}  # fmt: skip
    assert found["tables_lost",] == 1
    assert found["lake_up",] == 1
    assert f"logs: not known: tables: {lost.partition('/')[0]}: the log is gone" in captured.err
    if collector:
        assert found["collector_success", collector] == 0
        assert metric not in found
    assert found["collector_success", "tables"] == 1
    file = tmp_path / "ranklake.prom"
    assert run([*options, "--textfile", str(file)]) == 1
    assert "ranklake_tables_lost 1.0" in file.read_text()


def test_a_textfile_is_whole_or_not_written(tmp_path, capsys):
    """Written in one move, readable by the collector; where it cannot be written, the old one stays, in one line."""
    brought_in(tmp_path, [0])
    file = tmp_path / "collector" / "ranklake.prom"
    options = ["metrics", "--lake", str(tmp_path / "lake"), "--textfile", str(file)]
    assert run(options) == 2
    assert f"{file.parent}: no such folder; make it" in capsys.readouterr().err
    assert run([*options, "--json"]) == 2
    assert "--json and --textfile exclude each other" in capsys.readouterr().err
    file.parent.mkdir()
    file.write_text("old")
    assert run(options) == 0
    assert "ranklake_lake_up 1.0" in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == ["ranklake.prom"]
    assert list(text_string_to_metric_families(file.read_text()))


def test_json_says_why_something_is_not_known(tmp_path, capsys):
    """Unknown is null with a reason: Prefect where there is none, lag where nothing came."""
    Lake.create(str(tmp_path / "lake"))
    assert run(["metrics", "--lake", str(tmp_path / "lake"), "--json"]) == 0
    samples = {sample["metric"]: sample for sample in json.loads(capsys.readouterr().out)["samples"]}
    assert samples["prefect_up"]["value"] is None
    assert "ranklake up" in samples["prefect_up"]["reason"]
    assert samples["ingest_lag_seconds"]["value"] is None
    assert samples["ingest_lag_seconds"]["reason"]
    assert samples["table_rows"]["reason"]
