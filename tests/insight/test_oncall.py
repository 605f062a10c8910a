"""The on-call page: what needs a look, worst first, each with evidence, a next step, and numbers equal to their SQL."""

from datetime import timedelta

import pytest
from page_read import compared
from recorded_runs import EVIL, lake_of_runs
from rollup_inputs import NOON, append, told

from ranklake.cli import run as command
from ranklake.insight.overview import oncall as facts
from ranklake.insight.overview.oncall import of_failed, of_ranks, on_call
from ranklake.insight.runs.asking import asking
from ranklake.lake.ingest.status.liveness import RankState
from ranklake.lake.rollups.failures import library
from ranklake.lake.store.lake import Lake
from ranklake.views.html import site as publishing
from ranklake.views.html.oncall_pages import section
from ranklake.views.html.run_pages import href
from ranklake.views.html.shell import render

UNTIL = NOON + timedelta(hours=6)


def lives(run, rank, **more):
    """Return events of a rank that started, and beats once a minute."""
    start = {"run": run, "rank": rank, "event": "rank_start", "severity": "info", "incarnation": 90 + rank}
    return {**start, "ts": UNTIL - timedelta(hours=1), "attributes": '{"interval_s": 60, "world_size": 4}', **more}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake in which each kind of thing is wrong once, as of a moment."""
    lake = lake_of_runs(tmp_path_factory.mktemp("oncall"))
    append(lake, "events", [
        *(lives("delta", rank) for rank in range(3)),
        {**lives("delta", 1), "event": "heartbeat", "ts": UNTIL - timedelta(seconds=30),
         "attributes": '{"interval_s": 60, "still_s": 900, "begun": 5}'},
    ])  # fmt: skip
    append(lake, "ingest_plans", [{
        "plan": 1, "kind": "ingest", "created_ts": UNTIL, "committed_ts": UNTIL, "rows_stored": 10, "rows_rejected": 2,
        "date": UNTIL.date(),
    }])  # fmt: skip
    append(lake, "segments", [{
        "run": "delta", "attempt": 0, "rank": 0, "incarnation": 90, "segment": 0, "table": "events", "rows": 3,
        "ts_max": UNTIL - timedelta(hours=2), "sha256": "ab" * 32, "plan": 1, "date": UNTIL.date(),
        "uri_name": "x", "rows_stored": 3, "rows_rejected": 0, "rows_duplicate": 0, "bytes": 1,
    }, {
        "run": "beta", "attempt": 0, "rank": 0, "incarnation": 91, "segment": 0, "table": "steps", "rows": 2,
        "sha256": "cd" * 32, "plan": 1, "date": UNTIL.date(), "uri_name": "y", "rows_stored": 0, "rows_rejected": 0,
        "rows_duplicate": 0, "bytes": 1, "unreadable": "cut short",
    }])  # fmt: skip
    append(lake, "logs", [
        {"run": "alpha-1", "attempt": 0, "rank": rank, "ts": UNTIL - timedelta(minutes=minutes), "message": "it failed",
         "exception_type": name}
        for rank, minutes, name in ((0, 1, "RuntimeError"), (3, 2, "KeyError"), (1, 3, None))
    ])  # fmt: skip
    append(lake, "gpu_hourly", [
        {"hour": UNTIL - timedelta(hours=number), "device_uuid": f"GPU-{number}", "device_name": "H100",
         "holder_run": "alpha-2" if number == 1 else None, "sample_count": 1, "observed_s": 100.0,
         "busy_observed_s": 100.0, "energy_observed_s": 0.0, "throttled_s": 30.0 if number == 2 else 1.0,
         "ecc_uncorrected_count": 1 if number == 1 else 0, "xid_count": 0,
         "temperature_max_celsius": 95.0 if number == 3 else 60.0, "date": UNTIL.date()}
        for number in (1, 2, 3, 4)
    ])  # fmt: skip
    counters = ("nvlink_crc_data_error_count", "nvlink_recovery_error_count", "pcie_replay_count")
    append(lake, "gpu_samples", [
        {"ts": UNTIL - timedelta(minutes=ago), "device_uuid": f"GPU-{number}", "holder_run": "beta", "source": "nvml",
         "incarnation": 7 + begun, **dict(zip(counters, read, strict=True))}
        for number, ago, begun, read in (
            (5, 9, 0, (3, 1, 0)), (5, 8, 0, (5, 2, 0)), (5, 7, 1, (0, 0, 0)), (5, 6, 1, (1, 0, 0)),
            (6, 9, 0, (0, 0, 100)), (6, 8, 0, (0, 0, 201)), (7, 9, 0, (8, 8, 7)), (7, 8, 0, (8, 8, 9)),
        )
    ])  # fmt: skip
    append(lake, "quality_results", [
        {"check_run": f"c{number}", "table": "steps", "partition_date": NOON.date(), "suite": "steps",
         "expectation": "e", "check_id": "loss_small", "severity": "critical", "status": status, "rows_failed": 7,
         "rows_checked": 9, "ts": NOON + timedelta(minutes=number), "date": NOON.date()}
        for number, status in ((1, "passed"), (2, "failed"))
    ])  # fmt: skip
    return lake


def test_each_thing_is_told_once_with_its_evidence(lake):
    """Ranks that hang, are silent or missing; failed runs; devices, checks, unsaved work and lag; the worst first."""
    needs = on_call(lake).needs
    told = {(one.state, one.title): one for one in needs}
    assert [one.state for one in needs] == sorted((one.state for one in needs), reverse=False)
    assert told["failing", "1 rank of run delta hung"].detail.startswith("rank 1: ")
    assert "ranks 0, 2" in told["failing", "2 ranks of run delta silent"].detail
    assert told["failing", "1 rank of run delta missing"].run == "delta"
    failed = told["failing", "run alpha-1 failed"]
    assert failed.next_step == f"ranklake incidents show {failed.incident}"
    assert (
        "first exception: KeyError on rank 3; it saved no checkpoint; error; likely cause: the run ended early"
        in failed.detail
    )
    failing = told["failing", "check loss_small of steps failed"]
    assert failing.detail.startswith("critical: 1 partition")
    assert failing.runbook == "failed-checks"
    unreadable = told["failing", "1 segment of steps of run beta cannot be read"]
    assert (unreadable.next_step, unreadable.runbook) == ("ranklake status", "unreadable-segments")
    assert {one.runbook for one in needs} <= {"", *library()}
    assert told["failing", "device GPU-1"].detail == "1 uncorrected ECC error; held by alpha-2"
    assert told["warning", "device GPU-2"].detail == "throttled 30 % of the time"
    assert told["warning", "device GPU-3"].detail == "95 °C"
    assert ("warning", "device GPU-4") not in told
    assert told["failing", "links of GPU-5"].detail == "1 NVLink recovery, 3 NVLink CRC errors; held by beta"
    assert told["warning", "links of GPU-6"].detail == "101 PCIe replays; held by beta"
    assert not any("GPU-7" in what for _, what in told)
    assert (
        told["warning", "run beta has not saved"].detail == "never saved a checkpoint; 3.0 hours of work would be lost"
    )
    assert "the newest row came 2.0 hours late" in {what for _, what in told}


def test_a_run_that_failed_with_its_ranks_is_one_incident(lake):
    """What became of its ranks stands in the run's own card, once."""
    died = RankState("alpha-1", 0, 1, "abandoned")
    failed = on_call(lake).failed.rows
    (need,) = (one for one in of_failed(failed, [died]) if one.run == "alpha-1")
    assert need.title == "run alpha-1 failed"
    assert "30 steps (0 to 29)" in need.detail
    assert "; rank 1: its process died without an exit record; it saved no checkpoint" in need.detail
    assert list(of_ranks([died], failed)) == []
    assert [one.title for one in of_ranks([RankState("alpha-1", 1, 1, "abandoned")], failed)] == [
        "1 rank of run alpha-1 abandoned"
    ]


def test_the_page_has_each_number_that_its_sql_gives(lake):
    """Figures and cells equal their SQL; runs with a page are linked, markup in names is text; made twice it is one."""
    made = section(on_call(lake))
    (page,) = made.pages
    text = render(page).decode()
    assert compared(lake, text) > 40
    assert f'href="../{href("alpha-1")}"' in text
    assert f'href="../{href("delta")}"' not in text  # it has no summary, so no page
    assert "<b>" not in text
    assert EVIL not in text
    assert made.state == "failing"
    assert made.headline.endswith("warnings")
    assert section(on_call(lake)).pages[0].fingerprint == page.fingerprint


def test_a_lake_that_nothing_was_ingested_into_says_so(tmp_path, monkeypatch, capsys):
    """No ingest: one sentence, no numbers, exit code 0; the command writes the runs' list, too."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    lake = Lake.create(str(tmp_path / "lake"))
    assert command(["report", "oncall", "--out", str(tmp_path / "out"), "--lake", lake.uri]) == 0
    assert "Nothing to tell yet: nothing was ingested" in capsys.readouterr().out
    assert "nothing was ingested" in (tmp_path / "out/oncall/index.html").read_text()
    assert (tmp_path / "out/runs/index.html").is_file()


def test_an_attempt_after_which_the_run_went_on_needs_no_look(tmp_path):
    """Of a run that was resumed, only attempts that failed after the last sound one are told."""
    lake = Lake.create(str(tmp_path / "lake"))
    ends = [("resumed", 0, "abandoned"), ("resumed", 1, "finished"), ("again", 0, "finished"), ("again", 1, "failed"),
            ("lost", 0, "failed"), ("lost", 1, "abandoned")]  # fmt: skip
    told(lake, "run_summary", [
        {"run": run, "attempt": attempt, "status": status, "end_ts": UNTIL} for run, attempt, status in ends
    ])  # fmt: skip
    failed = asking(lake)(facts._filled("failed", UNTIL)).rows
    assert [(row["run"], row["attempt"]) for row in failed] == [("again", 1), ("lost", 0), ("lost", 1)]
