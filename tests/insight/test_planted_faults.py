"""A lake in which much goes wrong: all of it is on the on-call page, first what matters most; incidents have pages."""

from datetime import timedelta

import pytest
from incident_rows import finding, on_node, rolled_up
from page_read import compared
from rollup_inputs import NOON, append, told

from ranklake.cli import run as command
from ranklake.insight.incidents.report import incidents_state
from ranklake.insight.overview.oncall import on_call
from ranklake.insight.runs.report import runs_state
from ranklake.lake.store.lake import Lake
from ranklake.views.html import run_pages
from ranklake.views.html.incident_pages import href, section
from ranklake.views.html.oncall_pages import section as oncall_section
from ranklake.views.html.shell import render

UNTIL = NOON + timedelta(hours=3)
EVIL = "<b>\u202eevil\x1b[2J"
RUNS = {
    "jump": finding("loss_spike", 5, run="jump", message="The loss jumped from 2 to 9", runbook="loss-spike"),
    "spike": finding("grad_norm_spike", 7, run="spike", message="The gradient's norm is 500", runbook="gradient-spike"),
    "zeros": finding("zero_gradients", 9, 30, run="zeros", message="100 gradients are zero", runbook="zero-gradients"),
    "halved": finding("throughput_drop", 30, None, run="halved", message="Tokens/s fell by half",
                      runbook="throughput-drop"),
    "diverged": finding("non_finite", 50, None, run="diverged", severity="critical", message="The loss is NaN",
                        runbook="non-finite"),
    "fine": finding("lr_schedule", 50, run="fine", severity="info", message="Nothing to fix here"),
}  # fmt: skip
NODES = [
    on_node("iowait", 20, 60, message=f"CPUs wait for disks 60 % of the time {EVIL}", runbook="storage"),
    on_node("low_sm", 20, 60, run="halved", host=None, device_uuid="GPU-7", message="SMs are busy 40 % of the time",
            runbook="idle-device"),
]  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with findings of six runs and two nodes, and what fails beside them."""
    lake = Lake.create(str(tmp_path_factory.mktemp("planted") / "lake"))
    told(lake, "run_summary", [
        *({"run": run, "attempt": 0, "status": "finished", "end_ts": UNTIL, "job": run} for run in RUNS),
        {"run": "diverged", "attempt": 1, "status": "failed", "end_ts": NOON + timedelta(minutes=55), "checkpoints": 0,
         "non_finite_steps": 9},
        {"run": "quiet-nan", "attempt": 0, "status": "finished", "end_ts": UNTIL, "non_finite_steps": 3,
         "last_loss_flag": "nan"},
    ])  # fmt: skip
    append(lake, "run_findings", list(RUNS.values()))
    append(lake, "node_findings", NODES)
    append(lake, "host_hourly", [
        {"hour": NOON, "host": "n1", "holder_run": "eats", "oom_kill_count": 1, "sample_count": 1, "observed_s": 60.0,
         "date": NOON.date()},
        {"hour": NOON, "host": "n2", "holder_run": "fine", "oom_kill_count": 0, "sample_count": 1, "observed_s": 60.0,
         "date": NOON.date()},
    ])  # fmt: skip
    append(lake, "artifacts", [
        {"ts": NOON, "run": "jump", "kind": "checkpoint", "name": "step-9.pt", "action": "save_failed",
         "exception_type": "OSError", "exception_message": "/home/ada"},
        {"ts": NOON, "run": "halved", "kind": "checkpoint", "name": "step-3.pt", "action": "loaded", "verified": False},
        {"ts": NOON, "run": "fine", "kind": "checkpoint", "name": "step-1.pt", "action": "loaded", "verified": True},
    ])  # fmt: skip
    append(lake, "quality_results", [
        {"check_run": "c", "table": "steps", "partition_date": NOON.date(), "suite": "steps", "expectation": "e",
         "check_id": "tokens_not_negative", "severity": "error", "status": "failed", "rows_failed": 7,
         "rows_checked": 9, "ts": NOON, "date": NOON.date()},
    ])  # fmt: skip
    append(lake, "ingest_plans", [{"plan": 1, "kind": "ingest", "created_ts": UNTIL, "committed_ts": UNTIL,
                                   "rows_stored": 10, "rows_rejected": 2, "date": UNTIL.date()}])  # fmt: skip
    segment = {"attempt": 0, "rank": 3, "incarnation": 90, "segment": 0, "table": "steps", "rows": 40, "plan": 1,
               "ts_max": UNTIL, "sha256": "ab" * 32, "date": UNTIL.date(), "uri_name": "x", "rows_stored": 0,
               "rows_rejected": 0, "rows_duplicate": 0, "bytes": 1}  # fmt: skip
    append(lake, "segments", [{**segment, "run": "cut", "unreadable": "cut short"}, {**segment, "run": "fine"}])
    rolled_up(lake)
    return lake


def test_all_of_it_stands_there_and_the_worst_first(lake):
    """Each fault once: by its incident, or by itself where no detector looks; what is fine is not there."""
    needs = on_call(lake).needs
    titles = [need.title for need in needs]
    failing = [need.title for need in needs if need.state == "failing"]
    assert titles[0] == "run diverged failed: The loss is NaN"
    assert set(failing) == {
        titles[0], "values of run quiet-nan are NaN or infinite", "1 kill for lack of memory of run eats",
        "1 segment of steps of run cut cannot be read", "check tokens_not_negative of steps failed",
        "a checkpoint of run jump could not be saved", "a checkpoint of run halved is not what was written",
    }  # fmt: skip
    warnings = [f"{need.title} {need.detail}" for need in needs if need.state == "warning"]
    for words in ("jumped from 2 to 9", "norm is 500", "100 gradients are zero", "fell by half", "60 % of the time"):
        assert sum(words in title for title in warnings) == 1, words
    assert not any("fine" in title or "Nothing to fix" in title for title in titles)
    halved = next(need for need in needs if need.run == "halved" and need.state == "warning")
    assert "(and 1 more finding)" in halved.title
    assert halved.next_step == f"ranklake incidents show {halved.incident}"
    assert "also: Tokens/s fell by half; likely cause: devices wait" in halved.detail
    assert "/home/ada" not in "".join(need.detail for need in needs)


def test_the_pages_have_each_number_that_their_sql_gives(lake):
    """On-call, the list and a page an incident: figures and cells equal their SQL, text is text, links lead there."""
    page = render(oncall_section(on_call(lake)).pages[0]).decode()
    assert compared(lake, page) > 40
    made = section(incidents_state(lake))
    texts = {one.path: render(one).decode() for one in made.pages}
    assert len(texts) == 8
    for path, text in texts.items():
        assert compared(lake, text) > 5, path
        assert "<b>" not in text
        assert EVIL not in text
        assert path in page or path == "incidents/index.html" or "Nothing to fix here" in text
    diverged = next(need.incident for need in on_call(lake).needs if need.run == "diverged")
    text = texts[href(diverged)]
    assert "docs/runbooks/non-finite.md" in text
    assert "SELECT 1" in text
    assert made.headline == "7 incidents to look at"
    assert section(incidents_state(lake)).pages[1].fingerprint == made.pages[1].fingerprint


def test_a_run_tells_of_its_incidents(lake, capsys):
    """At the prompt and on its page, but for those that are over; the page is made anew when one changes."""
    assert command(["show", "diverged", "--lake", lake.uri]) == 0
    assert "incident    critical: The loss is NaN; ranklake incidents show " in capsys.readouterr().out
    state = runs_state(lake, "diverged")
    page = next(one for one in run_pages.section(state).pages if one.path == run_pages.href("diverged"))
    text = render(page).decode()
    assert "The loss is NaN" in text
    assert compared(lake, text) > 5
