"""Incidents at the prompt: listed, shown with causes of findings and log lines, marked, muted, opened again."""

import json

import pytest
from incident_rows import EVIL, MINUTE, evidence_row
from incident_rows import incident_row as row
from rollup_inputs import NOON, append, told

from ranklake.cli import run as command
from ranklake.insight.incidents.incidents import incidents
from ranklake.insight.incidents.report import incidents_state
from ranklake.insight.runs.asking import asking
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.incidents import id_of
from ranklake.lake.store.lake import Lake
from ranklake.views.html.incident_pages import section
from ranklake.views.html.shell import render


@pytest.fixture
def lake(tmp_path):
    """Give a lake with incidents, log lines, and a spool beside it."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "incidents", [
        row("a"), row("b", minutes=100), row("c", minutes=200, severity="critical"),
        row("d", kind="iowait", minutes=300), row("e", run="r2", job="other", minutes=90),
        row("f", kind="straggler", run="r3", lasts=None, severity="warning"),
    ])  # fmt: skip
    line = {"run": "r1", "severity_number": 17, "stream": "stderr"}
    append(lake, "logs", [
        {**line, "ts": NOON - 5 * MINUTE, "message": f"OSError: [Errno 28] No space left on device {EVIL}"},
        {**line, "ts": NOON + 40 * MINUTE, "message": "CUDA out of memory"},
        {**line, "ts": NOON, "message": "loading", "severity_number": 9, "stream": "stdout"},
    ])  # fmt: skip
    told(lake, "run_summary", [{"run": name, "status": "finished", "end_ts": NOON} for name in ("r1", "r2", "r3")])
    return lake


def states(lake):
    """Return the state of each incident by the finding that it began with."""
    return {incident.evidence[0]["finding_id"]: incident.state for incident in incidents(asking(lake)).listed}


@pytest.fixture
def said(lake, capsys):
    """Give a caller of commands, which returns code, output and errors."""

    def call(*words):
        spool = ["--spool", f"{lake.uri}-spool"] if "mark" in words or words[0] == "ingest" else []
        code = command([*words, *spool, "--lake", lake.uri])
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


def test_incidents_are_listed_worst_first(lake, said):
    """By severity, those that go on first; of one run; as JSON with the SQL that gives the same rows."""
    listed = [incident.evidence[0]["finding_id"] for incident in incidents(asking(lake)).listed]
    assert listed == ["c", "d", "b", "e", "a", "f"]
    code, out, _ = said("incidents")
    assert (code, EVIL in out, "\x1b" in out, len(out.splitlines())) == (0, False, False, 7)
    facts = json.loads(said("incidents", "--run", "r3", "--json")[1])
    assert [(one["state"], one["evidence"][0]["value"]) for one in facts["incidents"]] == [("open", 9.0)]
    assert query(lake, facts["sql"]).num_rows == 1


def test_a_lake_whose_runs_are_not_summed_up_lists_those_of_a_run(tmp_path, capsys):
    """By the run's whole name; of one without incidents it says that it knows no run, and what to do."""
    made = Lake.create(str(tmp_path / "lake"))
    append(made, "incidents", [row("a")])
    assert command(["incidents", "--run", "r1", "--json", "--lake", made.uri]) == 0
    assert len(json.loads(capsys.readouterr().out)["incidents"]) == 1
    assert command(["incidents", "--run", "r2", "--lake", made.uri]) == 2
    assert capsys.readouterr().err == "ranklake: no run 'r2': the lake tells of no run; run 'ranklake pipeline' first\n"


def test_one_is_shown_with_causes_of_findings_and_log_lines(said):
    """The line logged before it counts, a later one does not; ten letters of an id are enough, a wrong one is told."""
    name = id_of(("run", "r1"), "a")
    code, out, _ = said("incidents", "show", name[:10])
    assert (code, "\x1b" in out) == (0, False)
    assert "1. No space, quota or inodes are left" in out
    assert "runbook: docs/runbooks/disk-full.md" in out
    assert "2. A bad batch" in out
    assert "out of memory" not in out
    assert "1.333\u00a0h of devices, no price is known" in out
    facts = json.loads(said("incidents", "show", name, "--json")[1])
    assert [cause["name"] for cause in facts["causes"]] == ["disk-full", "loss-spike"]
    code, _, err = said("incidents", "show", "zz")
    assert code == 2
    assert "there is no incident 'zz'" in err
    assert "there is no incident ''" in said("incidents", "show", "")[2]


def test_a_severity_that_is_none_keeps_no_page_from_being_made(lake):
    """Whatever a row has: the list and the incident's own page are there, and say it."""
    append(lake, "incidents", [row("g", severity="dire", minutes=400)])
    pages = section(incidents_state(lake)).pages
    name = id_of(("run", "r1"), "g")
    texts = [render(page).decode() for page in pages if page.path.endswith("index.html") or name in page.path]
    assert ["dire" in text for text in texts] == [True, True]


def test_what_to_do_first_depends_on_the_checkpoints_there_are(lake, said):
    """None: begin again. One that nobody verified: once it is. One that is: that one, by name and step."""
    name, saved = id_of(("run", "r1"), "b"), NOON + 5 * MINUTE

    def everywhere(text):
        page = next(page for page in section(incidents_state(lake)).pages if name in page.path)
        assert text in said("incidents", "show", name)[1]
        assert text in said("incidents", "show", name, "--markdown")[1].replace("\\", "")
        assert text in render(page).decode()
        assert text in json.loads(said("incidents", "show", name, "--json")[1])["causes"][0]["fix"]

    everywhere("begin again (no checkpoint from before it is left) and skip the batches")
    digest = "ab" * 32
    made = {"kind": "checkpoint", "run": "r1", "name": "c1", "sha256": digest, "step": 40}
    append(lake, "artifacts", [{**made, "action": "created", "ts": saved}])
    everywhere("resume from c1 (once it is verified)")
    append(lake, "artifacts", [{**made, "action": "verified", "verified": True, "ts": saved + MINUTE}])
    everywhere("resume from c1 of step 40 and skip the batches")


def test_a_failed_run_shows_its_first_exception(lake, said):
    """What a log line says of it comes before that there was one; of others, the exception itself is shown."""
    append(lake, "incidents", [row("x", run="r9", kind="run_failed", causes='["crash"]',
                                   evidence=json.dumps([evidence_row("run_failed", "x")]))])  # fmt: skip
    raised = {"run": "r9", "ts": NOON, "severity_number": 21, "stream": "excepthook"}
    append(lake, "logs", [{**raised, "rank": 3, "exception_type": "KeyError", "exception_message": "'x'"}])
    assert "last good: none: no checkpoint was saved before" in said("incidents", "show", id_of(("run", "r9"), "x"))[1]
    assert "log: rank 3: KeyError: 'x'" in said("incidents", "show", id_of(("run", "r9"), "x"))[1]
    append(lake, "logs", [{**raised, "rank": 4, "message": "OSError: [Errno 28] No space left on device"}])
    out = said("incidents", "show", id_of(("run", "r9"), "x"))[1]
    assert out.index("1. No space") < out.index("2. The run ended early")


def test_a_retrospective_is_markdown_whose_text_is_text(said):
    """Headings, evidence with its SQL, causes; markup of messages is escaped."""
    code, out, _ = said("incidents", "show", id_of(("run", "r1"), "a"), "--markdown")
    assert code == 0
    assert out.startswith("# Incident ")
    assert "\\<b\\>" in out
    assert "<b>" not in out.replace("\\<b\\>", "").replace("`", "").split("Log:")[0]
    assert "```sql\nSELECT step, loss FROM steps\n```" in out
    assert "nothing was marked" in out


def test_marks_have_a_history_and_the_last_counts(lake, said):
    """Acknowledged, then resolved: not open any more; each mark stays, with its reason."""
    name = id_of(("run", "r1"), "d")
    for mark, why in (("--ack", "looking"), ("--resolved", "bad disk out")):
        assert said("incidents", "mark", name, mark, "--why", why)[0] == 0
        assert said("ingest")[0] == 0
    assert states(lake)["d"] == "resolved"
    _, out, _ = said("incidents", "show", name)
    assert out.index("acknowledged: looking") < out.index("resolved: bad disk out")
    assert name not in said("incidents", "--open")[1]
    assert query(lake, "SELECT count(*) AS n FROM annotations").to_pylist() == [{"n": 2}]
    assert said("incidents", "mark", name, "--why", "x")[2].startswith("ranklake: ranklake incidents mark: no mark")
    assert "several marks are named" in said("incidents", "mark", name, "--ack", "--false", "--why", "x")[2]
    assert said("incidents", "mark", name, "--ack", "--why", " ")[0] == 2


def test_what_comes_after_it_was_resolved_opens_it_again(lake, said):
    """A mark says that it was over when it was made; a finding after that says that it is not."""
    name = id_of(("run", "r1"), "later")
    append(lake, "incidents", [row("later", minutes=60 * 24 * 365 * 40)])
    said("incidents", "mark", name, "--resolved", "--why", "it is over")
    said("ingest")
    assert states(lake)["later"] == "open"


def test_a_false_one_mutes_its_detector_for_the_job_until_it_is_reopened(lake, said):
    """Later ones of the job by the same detector are muted, but no critical one, no other job, no other detector."""
    name = id_of(("run", "r1"), "a")
    code, _, err = said("incidents", "mark", name, "--false", "--why", "warm-up")
    assert (code, err.strip()) == (0, "that mutes loss_spike for gpt until somebody reopens the incident")
    said("ingest")
    known = states(lake)
    assert known == {"a": "false", "b": "muted", "c": "closed", "d": "closed", "e": "closed", "f": "open"}
    assert f"since incident {name} was marked false" in said("incidents", "show", id_of(("run", "r1"), "b"))[1]
    said("incidents", "mark", name, "--reopen", "--why", "it was one")
    said("ingest")
    assert states(lake) == {**known, "a": "open", "b": "closed"}


def test_marks_stay_with_an_incident_that_began_earlier_than_was_known(lake, said):
    """A finding that comes late changes the id, and the mark of the former id counts; a host has marks, too."""
    said("incidents", "mark", id_of(("run", "r1"), "a"), "--ack", "--why", "looking")
    said("ingest")
    append(lake, "incidents", [
        row("z", run="r1", minutes=-5,
            evidence=json.dumps([evidence_row("x", "z", -5), evidence_row("loss_spike", "a")])),
        row("n", run=None, job=None, host="node-1", incident_id=id_of(("host", "node-1"), "n")),
    ])  # fmt: skip
    assert states(lake)["z"] == "acknowledged"
    assert said("incidents", "mark", id_of(("host", "node-1"), "n"), "--false", "--why", "rack test")[0] == 0
    said("ingest")
    assert states(lake)["n"] == "false"
    assert query(lake, "SELECT DISTINCT run FROM annotations ORDER BY run").to_pylist() == [
        {"run": "r1"}, {"run": "ranklake-agent-incidents"},
    ]  # fmt: skip
