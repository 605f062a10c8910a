"""The table `stage_runs`: each run of a stage is a row, however it ended; metrics and the page are drawn from it."""

import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from page_read import compared
from rollup_inputs import append
from segments import put_segment, step_rows

from ranklake.config import Config
from ranklake.context import Context
from ranklake.insight.overview.pipeline import pipeline_state
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read
from ranklake.pipeline.health.collection import pipeline_health
from ranklake.pipeline.stages import ALERTS, CHECK, INGEST, PIPELINE, ROLLUP, Stage, carry_out, pipeline_once, round_of
from ranklake.views.html import pipeline_pages
from ranklake.views.html.shell import render


@pytest.fixture
def context(tmp_path):
    """Give the context of a lake, and of a spool with a segment."""
    put_segment(tmp_path / "spool", step_rows(10, start=datetime.now(UTC)), day=datetime.now(UTC).date().isoformat())
    Lake.create(str(tmp_path / "lake"))
    return Context.of(Config(), {"lake.uri": str(tmp_path / "lake"), "spool.uri": str(tmp_path / "spool")})


def rows(context):
    """Return the rows, in order."""
    return read(context.open_lake().tables, contract("stage_runs")).sort_by("ts").to_pylist()


def test_a_round_of_the_pipeline_is_one_commit(context):
    """Each step is a row with its time and CPU time, in one commit; a round that finds nothing to do is one, too."""
    began = time.monotonic()
    pipeline_once(context)
    took_s = time.monotonic() - began
    kept = rows(context)
    wanted = [step.stage.name for step in PIPELINE if step.is_wanted(context)]
    assert [row["stage"] for row in kept] == wanted
    assert len({row["round"] for row in kept}) == 1
    assert {row["outcome"] for row in kept} == {"ok"}
    assert sum(row["duration_s"] for row in kept) <= took_s
    assert all(row["cpu_s"] >= 0 for row in kept)
    assert sum(row["cpu_s"] for row in kept) > 0
    assert kept[0]["headline"] == "1 segment, 10 rows stored"
    versions = read(context.open_lake().tables, contract("stage_runs"))
    pipeline_once(context)
    assert len(rows(context)) == 2 * versions.num_rows
    assert len({row["round"] for row in rows(context)}) == 2


def test_a_round_opens_the_lake_once(context, monkeypatch):
    """What ingest has made is opened once for all steps after it, so that each table's log is read once."""
    opened = []
    genuine = Lake.open

    def counted(*given):
        opened.append(given)
        return genuine(*given)

    monkeypatch.setattr(Lake, "open", counted)
    pipeline_once(context)
    assert len(opened) == 2, "once for the steps, and once for what the round leaves of them"


def test_cpu_time_is_that_of_the_process_and_of_what_it_starts(context):
    """A second of work in a child counts, also where the child has ended; waiting does not."""
    busy = "import time\nwhile time.process_time() < 1.1: pass"  # the kernel counts ticks, and may count one too few

    def work():
        subprocess.run([sys.executable, "-c", busy], check=True)
        return {"rollups": []}

    carry_out(ROLLUP, context, work)
    carry_out(ROLLUP, context, lambda: time.sleep(0.3) or {"rollups": []})
    first, second = rows(context)
    assert first["cpu_s"] >= 1
    assert second["duration_s"] >= 0.3
    assert second["cpu_s"] < second["duration_s"]
    remote = Context.of(Config(), {"lake.uri": context.lake_uri, "dask.address": "tcp://elsewhere:8786"})
    carry_out(ROLLUP, remote, lambda: {"rollups": []})
    assert rows(context)[-1]["cpu_s"] is None


def test_a_stage_that_fails_is_a_row_and_raises(context):
    """What ran before it is kept, with it, and the error's class; its text, in which anything may stand, is not."""

    def fail():
        raise ValueError("secret-project of alice")

    def both():
        with round_of(context):
            carry_out(INGEST, context, lambda: INGEST.work(context))
            carry_out(ROLLUP, context, fail)

    with pytest.raises(ValueError, match="secret"):
        both()
    first, second = rows(context)
    assert (first["stage"], first["outcome"], first["error"]) == ("ingest", "ok", None)
    assert (second["outcome"], second["error"], second["headline"]) == ("failed", "ValueError", None)
    assert first["round"] == second["round"]


def test_findings_are_an_outcome_of_their_own(context):
    """A check that fails did its work; what it returns comes back."""
    done = {"passed": False, "unsound": [], "standing": [], "partitions": 1, "checks": {"failed": 1}}
    assert carry_out(CHECK, context, lambda: done) is done
    (row,) = rows(context)
    assert (row["outcome"], row["error"]) == ("findings", "ChecksFailedError")


@pytest.mark.parametrize("fails", ["rollup", "alerts", "report"])
def test_alerts_are_evaluated_once_a_round_whatever_raises(context, monkeypatch, fails):
    """Another stage before it or after it, or the stage of alerts itself, which the next round tries again."""
    evaluated = []

    def run(stage, _context, **_options):
        if stage is ALERTS:
            evaluated.append(stage)
        if stage.name == fails:
            raise ValueError(fails)
        return {}

    monkeypatch.setattr(Stage, "run", run)
    wants = {"alerts.notify": "env:CHAT_URL", "report.out": "pages"}
    with pytest.raises(ValueError, match=fails):
        pipeline_once(Context.of(Config(), {"lake.uri": context.lake_uri, **wants}))
    assert evaluated == [ALERTS]


def test_a_row_that_cannot_be_written_stops_nothing(context, tmp_path, caplog):
    """The lake goes away while a stage works: what the stage did comes back, and a line tells that it is not kept."""

    def work():
        (tmp_path / "lake").rename(tmp_path / "gone")
        return {"rollups": []}

    assert carry_out(ROLLUP, context, work) == {"rollups": []}
    assert "is not kept" in caplog.text


def test_metrics_and_page_equal_plain_sums(context):
    """Runs, time and CPU time by stage and outcome; the page has the last seven days of them, as its SQL says."""
    pipeline_once(context)
    now = datetime.now(UTC)
    old = {"ts": now - timedelta(days=9), "date": (now - timedelta(days=9)).date(), "stage": "check", "round": "o",
           "outcome": "failed", "duration_s": 3.0, "cpu_s": 1.0}  # fmt: skip
    append(context.open_lake(), "stage_runs", [old])
    kept = rows(context)
    health = pipeline_health(context)
    counts = Counter((row["stage"], row["outcome"]) for row in kept)
    found = {(one.labels["stage"], one.labels["outcome"]): one.value for one in health.values("stage_runs_total")}
    assert found == counts
    for sample in health.values("stage_duration_seconds_total"):
        wanted = sum(row["duration_s"] for row in kept
                     if (row["stage"], row["outcome"]) == tuple(sample.labels.values()))  # fmt: skip
        assert sample.value == pytest.approx(wanted)
    lake = context.open_lake()
    state = pipeline_state(lake, 3600)
    costs = {row["stage"]: row for row in state.costs.rows}
    assert costs["check"]["runs"] == counts["check", "ok"]
    assert costs["check"]["failed"] == 0
    (page,) = pipeline_pages.section(state).pages
    html = render(page).decode()
    assert compared(lake, html) > 50
    assert "Cost of stages" in html
    assert "Time from recorded to queryable" in html
