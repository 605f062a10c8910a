"""Playbooks: read with all faults at once, matched, claimed before they act, done once, limited, stopped, shown."""

import json
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from incident_rows import incident_row as row
from rollup_inputs import NOON, append

from ranklake.cli import run as command
from ranklake.insight.incidents.actions import actions
from ranklake.insight.incidents.incidents import incidents
from ranklake.insight.incidents.report import incidents_state
from ranklake.insight.runs.asking import asking
from ranklake.lake.audit import clock
from ranklake.lake.audit.proof import verify
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.rollups.incidents import id_of
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.playbooks import running
from ranklake.pipeline.playbooks.file import PlaybookError, Step, load_playbooks
from ranklake.pipeline.playbooks.running import Runner, incident_facts, run_cases
from ranklake.views.html.incident_pages import section
from ranklake.views.html.shell import render

EVIL = "$(touch pwned); `touch pwned` \"'; touch pwned #\x1b[2J\x00"
FILE = """
version: 1
receivers:
  ml-oncall: {command: [sh, -c, 'cat >> told']}
  nobody: {}
playbooks:
  jump:
    where: {detector: loss_spike, severity: [error, critical]}
    reason: A run that lost its way costs by the hour.
    owner: training
    per_hour: 6
    steps:
      - {name: call, tell: ml-oncall}
      - {name: once, query: SELECT * FROM incident WHERE findings = 1, expect: rows}
      - name: restart
        where: {environment: prod}
        propose: Restart from the last good checkpoint.
        command: [sh, -c, 'printf "%s\\n" "$INCIDENT_ID $INCIDENT_TITLE" >> ran']
        allow: true
      - name: cordon
        where: {environment: dev*}
        command: [cordon]
tests:
  - {given: {detector: loss_spike, environment: prod}, expect: [jump.call, jump.once, jump.restart]}
  - {given: {detector: loss_spike, environment: dev2}, expect: [jump.call, jump.once, jump.cordon]}
  - {given: {detector: loss_spike, severity: warning}, expect: []}
  - {given: {detector: iowait}, expect: []}
"""


@pytest.fixture
def place(tmp_path):
    """Give a folder of playbooks, in which their commands run."""
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "jump.yaml").write_text(FILE)
    return folder


@pytest.fixture
def lake(tmp_path):
    """Give a lake with an incident of a run in production, and one that is no matter for a playbook."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "incidents", [row("a", title=f"jumped {EVIL}"), row("b", kind="iowait", run="r2")])
    append(lake, "runs", [{"ts": NOON, "deployment_environment": "prod", "team": "ml", "labels": '{"model": "gpt"}'}])
    return lake


NAME = id_of(("run", "r1"), "a")


@pytest.fixture
def later(monkeypatch):
    """Give what sets the clock to some time after noon of that day; it stands at one hour."""

    def at(hours):
        monkeypatch.setattr(clock, "now", lambda: NOON + timedelta(hours=hours))

    at(1)
    return at


def runner(lake, place, **more):
    """Return what carries out the playbooks of a folder."""
    return Runner(lake, load_playbooks(place), "ops", lambda tables: (False, f"{len(tables)} failed"), **more)


def outcomes(states):
    """Return how steps stand, by name."""
    return {state.match.step.name: state.outcome for state in states}


def run(lake, place, *, act=True, again=False, **more):
    """Carry out what is due, and return how all steps stand."""
    known = runner(lake, place, **more)
    return outcomes(known.run(known.plan(again=again), act=act))


def lines(path):
    """Return the lines of a file; none where there is none."""
    return path.read_text().splitlines() if path.exists() else []


def changed(place, old, new):
    """Change the file of playbooks."""
    text = (place / "jump.yaml").read_text()
    assert old in text
    (place / "jump.yaml").write_text(text.replace(old, new))


def test_all_that_is_wrong_is_told_at_once(place):
    """Each with its line: unknown keys, detectors, receivers, tables, steps, kinds, and what cannot go together."""
    (place / "jump.yaml").write_text("""
version: 1
playbooks:
  jump:
    where: {detector: los_spike}
    reason: why
    owner: me
    steps:
      - {name: a, tell: nobody}
      - {name: a, check: [step]}
      - {name: b, webhook: "ftp://x"}
      - {name: xz, webhook: "https://u:hunter22hunter@x"}
tests:
  - {given: {detector: los_spike}, expect: [jump.z]}
""")
    with pytest.raises(PlaybookError) as failure:
        load_playbooks(place)
    told = [str(error).partition("jump.yaml:")[2] for error in (failure.value, *failure.value.others)]
    assert told == [
        "5: there is no detector 'los_spike'; did you mean 'loss_spike'?",
        "9: there is no receiver 'nobody'; add it under receivers:",
        "10: two steps of 'jump' are called 'a'; rename one",
        "10: there is no table 'step'; did you mean 'steps'?",
        "11: a webhook begins with https:// or http://; or name where it is: env:NAME, file:/path",
        "12: the webhook holds a credential; name where it is instead: env:NAME or file:/path",
        "14: there is no detector 'los_spike'; did you mean 'loss_spike'?",
        "14: there is no step 'jump.z'; did you mean 'jump.xz'?",
    ]
    (place / "jump.yaml").write_text("""
version: 1
playbooks:
  jump:
    wher: {}
    where: {}
    reason: why
    owner: me
    steps:
      - {name: a}
      - {name: b, tell: x, command: [y]}
      - {name: c, query: SELECT 1, allow: true}
      - {name: d, command: "rm -rf /"}
""")
    with pytest.raises(PlaybookError) as failure:
        load_playbooks(place)
    told = "\n".join(map(str, (failure.value, *failure.value.others)))
    for text in (":5: unknown key 'wher'", ":10: ", "does nothing", ":11: ", "has tell and command", ":12: ",
                 "allow is for a step with a command", ":13: ", "must be a list, not text"):  # fmt: skip
        assert text in told


def test_tests_of_the_file_are_run(place, capsys):
    """They say which steps an incident leads to; a wrong expectation fails with both."""
    assert command(["playbooks", "test", "--playbooks", str(place)]) == 0
    assert capsys.readouterr().out == "4 tests, 0 failed\n"
    changed(place, "prod}, expect: [jump.call, jump.once, jump.restart]", "prod}, expect: [jump.call]")
    assert command(["playbooks", "test", "--playbooks", str(place)]) == 1
    out = capsys.readouterr().out
    assert "jump.yaml:24: loss_spike: expected jump.call, and it leads to jump.call, jump.once, jump.restart" in out


def test_files_of_a_folder_are_one(place):
    """Receivers and steps of one are known to the others, whatever they end in; two playbooks of a name are a fault."""
    (place / "more.yml").write_text("""
version: 1
receivers: {second: {}}
playbooks:
  slow:
    where: {cause: loss-spike, team: ml, tag: tier=gold, model: gpt*}
    reason: why
    owner: me
    steps: [{name: call, tell: ml-oncall}, {name: again, tell: second}]
tests:
  - given: {detector: loss_spike, team: ml, tags: {tier: gold, model: gpt-5}}
    expect: [jump.call, jump.once, slow.call, slow.again]
  - {given: {detector: loss_spike, cause: divergence, team: ml, tags: {tier: gold}}, expect: [jump.call, jump.once]}
  - {given: {detector: loss_spike, team: ml, tags: {model: gpt-5}}, expect: [jump.call, jump.once]}
  - {name: order, given: {detector: loss_spike}, expect: [jump.once, jump.call]}
""")
    both = load_playbooks(place)
    assert (both.folder, list(both.playbooks), set(both.receivers)) == (
        place,
        ["jump", "slow"],
        {"ml-oncall", "nobody", "second"},
    )
    assert [result.case.name for result in run_cases(both) if not result.passed] == ["order"]
    assert load_playbooks(place / "jump.yaml").folder == place
    (place / "more.yml").write_text(FILE)
    with pytest.raises(PlaybookError, match="another file has a playbook 'jump', too; call it otherwise"):
        load_playbooks(place)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("nobody: {}", "nobody: {webhook: 'ftp://x'}", "a webhook begins with https://"),
        ("nobody: {}", "nobody: {webhook: 'https://x', command: [y]}", "has a command and a webhook"),
        ("tell: ml-oncall}", "tell: ml-oncall, expect: rows}", "expect is for a step with a query"),
        ("{environment: prod}\n", "{detector: los_spike}\n", "there is no detector 'los_spike'"),
    ],
)
def test_what_is_wrong_with_one_line_is_told(place, old, new, problem):
    """Of receivers as of steps, and of a step's branch as of its playbook's."""
    changed(place, old, new)
    with pytest.raises(PlaybookError, match=problem):
        load_playbooks(place)


def test_what_is_known_of_an_incident(lake):
    """Of its run what the last attempt said; its findings' detectors, and its likely causes by name."""
    early = {
        "ts": NOON - timedelta(hours=1),
        "deployment_environment": "dev",
        "team": "x",
        "labels": '{"model": "old"}',
    }
    append(lake, "runs", [early])
    facts = incident_facts(asking(lake), incidents(asking(lake)).listed)
    assert {key: set(values) for key, values in facts[NAME].items()} == {
        "severity": {"error"}, "run": {"r1"}, "detector": {"loss_spike"}, "cause": {"loss-spike"}, "model": {"gpt"},
        "team": {"ml"}, "environment": {"prod"}, "tag": {"model=gpt", "model", "gpt"}, "job": {"gpt"},
    }  # fmt: skip


def test_nothing_is_done_by_default(lake, place, later, capsys):
    """It is shown; with the pipeline's default it is written down once, as proposed, and nothing runs."""
    options = ["--playbooks", str(place), "--lake", lake.uri]
    assert command(["playbooks", "run", NAME, *options]) == 0
    out, err = capsys.readouterr()
    assert out.count("due") == 3
    assert "--apply does it" in err
    assert trail(lake.tables) == []
    for _ in range(2):
        assert run(lake, place, act=False) == dict.fromkeys(("call", "once", "restart"), "proposed")
    assert [row["action"] for row in trail(lake.tables)] == ["playbook.propose"] * 3
    assert not (place / "ran").exists()
    assert not (place / "told").exists()
    assert set(run(lake, place).values()) == {"done"}  # what was only proposed is due once it may act
    assert len(lines(place / "ran")) == 1


def test_a_step_is_done_once_with_values_as_values(lake, place, later):
    """Told, asked, done; again nothing; the run's words are no shell's, and in no argument. The audit log has it."""
    assert run(lake, place) == {"call": "done", "once": "done", "restart": "done"}
    assert run(lake, place) == {"call": "done", "once": "done", "restart": "done"}
    (line,) = lines(place / "ran")
    assert line.startswith(f"{NAME} jumped $(touch pwned); `touch pwned`")
    assert "\x1b" not in line
    assert not list(place.glob("pwned*"))
    body = json.loads((place / "told").read_text())
    assert body["text"].startswith("error: jumped $(touch pwned)")
    assert "\x1b" not in body["text"]
    assert (body["incident"]["run"], body["playbook"], body["last_good_checkpoint"]["name"]) == ("r1", "jump", None)
    rows = [row for row in trail(lake.tables) if "restart" in (row["details"] or "")]
    assert [row["action"] for row in rows] == ["playbook.claim", "playbook.outcome"]
    claim, outcome = (json.loads(row["details"]) for row in rows)
    assert rows[0]["actor"] == "ops"
    assert rows[0]["reason"] == "A run that lost its way costs by the hour."
    assert claim["before"] == {"severity": "error", "state": "closed", "findings": 1, "checkpoint": None}
    assert (outcome["after"]["outcome"], outcome["after"]["exit_code"]) == ("done", 0)
    assert verify(lake).broken is None if hasattr(verify(lake), "broken") else True


def test_the_checkpoint_to_go_back_to_is_from_before_the_trouble(lake, place, later):
    """Later ones are verified, too; programs get it as variables and in their body, and the audit log has it."""
    for name, minutes in (("good", -9), ("late", 5)):
        saved = {"name": name, "kind": "checkpoint", "uri": f"/ckpt/{name}", "sha256": "a" * 64, "step": 100}
        append(lake, "artifacts", [{**saved, "action": "created", "ts": NOON + timedelta(minutes=minutes)}])
        record(lake, "ops", "artifact.verify", saved["uri"], None, {
            "run": "r1", "name": name, "recorded_sha256": "a" * 64, "verified": True,
        })  # fmt: skip
    changed(place, "$INCIDENT_ID $INCIDENT_TITLE", "$CHECKPOINT_NAME $CHECKPOINT_URI $CHECKPOINT_STEP")
    run(lake, place)
    assert lines(place / "ran") == ["good /ckpt/good 100"]
    assert json.loads((place / "told").read_text())["last_good_checkpoint"]["name"] == "good"
    assert {action.before["checkpoint"] for action in actions(asking(lake)).listed} == {"good"}


def test_steps_of_one_name_are_apart_by_playbook(lake, place, later):
    """Each is claimed, and done; the hour of one is not the other's."""
    changed(place, "per_hour: 6", "per_hour: 3")
    other = (place / "jump.yaml").read_text().partition("tests:")[0]
    (place / "leap.yaml").write_text(other.replace("jump", "leap").replace("nobody: {}", "somebody: {}"))
    known = runner(lake, place)
    states = known.run(known.plan(), act=True)
    assert [(each.match.name, each.match.step.name, each.outcome) for each in states] == [
        (name, step, "done") for name in ("jump", "leap") for step in ("call", "once", "restart")
    ]


def test_steps_after_one_that_fails_wait(lake, place, later):
    """A query that is not met, too; --again repeats it under another number, and then the rest goes on."""
    changed(place, "findings = 1", "findings = 2")
    assert run(lake, place) == {"call": "done", "once": "not met", "restart": "waits"}
    assert outcomes(runner(lake, place).plan()) == {"call": "done", "once": "not met", "restart": "waits"}
    assert run(lake, place) == {"call": "done", "once": "not met", "restart": "waits"}
    changed(place, "findings = 2", "findings = 1")
    for again in (True, False):
        assert run(lake, place, again=again) == {"call": "done", "once": "done", "restart": "done"}
    assert [action.attempt for action in actions(asking(lake)).listed if action.step == "once"] == [1, 2]


def test_what_is_not_allowed_is_proposed(lake, place, later):
    """A command without allow is written down, whatever --apply says."""
    changed(place, "        allow: true\n", "")
    assert run(lake, place)["restart"] == "proposed"
    assert not (place / "ran").exists()


def test_checks_are_run_and_hold_the_rest_back(lake, place, later):
    """Checks that fail end the playbook there."""
    changed(place, "query: SELECT * FROM incident WHERE findings = 1, expect: rows", "check: [steps]")
    assert run(lake, place) == {"call": "done", "once": "not met", "restart": "waits"}


def test_what_goes_wrong_is_told_without_credentials(lake, place, later):
    """By whatever raises; what a step is about neither."""
    changed(place, "query: SELECT * FROM incident WHERE findings = 1, expect: rows", "check: [steps]")

    def failing(tables):
        raise ValueError(f"{tables}: password=hunter22hunter")

    known = Runner(lake, load_playbooks(place), "ops", failing)
    (_, once, restart) = known.run(known.plan(), act=True)
    assert (once.outcome, once.note, restart.outcome) == ("failed", "('steps',): password=[redacted]", "waits")
    about = {"command": ("x", "--token", "hunter22hunter"), "webhook": "https://h/x?token=hunter22hunter"}
    assert not any("hunter22" in running.subject_of(Step(name="a", **{key: value})) for key, value in about.items())
    assert running.subject_of(Step(name="a", webhook="command:pass show hook")) == "command:pass"


def test_steps_end_when_their_time_is_over(lake, place, later, monkeypatch):
    """A command as a webhook; both have what they were given by name, a URL without the end of its line."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{silent.getsockname()[1]}/\n")
        monkeypatch.setenv("MINE", "mine")
        changed(place, "{command: [sh, -c, 'cat >> told']}", "{webhook: 'env:HOOK'}")
        changed(place, "tell: ml-oncall}", "tell: ml-oncall, timeout_s: 1}")
        changed(place, "        allow: true\n", "        allow: true\n        timeout_s: 1\n        pass_env: [MINE]\n")
        changed(place, '"$INCIDENT_ID $INCIDENT_TITLE" >> ran', '"$MINE" >> ran; sleep 200')
        assert run(lake, place) == {"call": "timed out", "once": "done", "restart": "timed out"}
    assert lines(place / "ran") == ["mine"]


@pytest.mark.parametrize("where", ["before it acts", "while it acts"])
def test_killed_between_claim_and_record_it_is_not_done_twice(lake, place, later, where):
    """What is claimed may have run: it is not run again, says so, and is repeated only where somebody asks for that."""
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    if where == "while it acts":
        changed(place, "printf", "kill -9 $PPID; printf")
        code = "pass"
    else:
        changed(place, "{name: call, tell: ml-oncall}", "{name: call, tell: nobody}")
        code = f"from ranklake.pipeline.playbooks import running\nrunning.run_program = lambda *_, **__: exec({kill!r})"
    script = f"{code}\nimport sys\nfrom ranklake.cli import run\nsys.exit(run(sys.argv[1:]))"
    words = ["playbooks", "run", NAME, "--apply", "--playbooks", str(place), "--lake", lake.uri]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    later(24 * 365)
    known = runner(lake, place, max_age=timedelta(days=3650))
    assert outcomes(known.plan())["restart"] == "unknown"
    assert outcomes(known.run(known.plan(), act=True))["restart"] == "unknown"
    count = len(lines(place / "ran"))
    assert count <= 1
    changed(
        place, "kill -9 $PPID; " if where == "while it acts" else "printf", "" if where == "while it acts" else "printf"
    )
    states = outcomes(known.run(runner(lake, place, max_age=timedelta(days=3650)).plan(again=True), act=True))
    assert states["restart"] == "done"
    assert len(lines(place / "ran")) == count + 1


def test_two_at_once_do_it_once(lake, place, later):
    """Both plan it, one claims it; the other says that it is taken."""
    runners = [runner(Lake.open(lake.uri), place) for _ in range(4)]
    plans = [each.plan() for each in runners]
    results = [{} for _ in runners]
    start = threading.Barrier(len(runners))

    def work(number):
        start.wait()
        results[number] = outcomes(runners[number].run(plans[number], act=True))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(runners))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(place / "ran")) == 1
    told = (place / "told").read_text()
    assert told.count('"playbook": "jump"') == 1
    claims = [json.loads(row["details"])["step"] for row in trail(lake.tables) if row["action"] == "playbook.claim"]
    assert sorted(claims) == ["call", "once", "restart"]


def test_many_incidents_are_limited_and_the_worst_come_first(lake, place, later, monkeypatch):
    """40 incidents in a minute: six steps of the playbook in an hour, then none until the hour is over."""
    many = [row(f"m{number}", run=f"m{number}", title="x") for number in range(40)]
    worst = row("w", severity="critical", minutes=1, title="worst")
    append(lake, "incidents", [*many, worst])
    known, asked = runner(lake, place), []
    planned = known.plan()
    monkeypatch.setattr(running, "actions", lambda *given: asked.append(given) or actions(*given))
    states = list(known.run(planned, act=True))
    assert sum(state.outcome == "done" for state in states) == 6
    assert len(asked) <= 2 * 6 + 1, "the audit log is read for each step taken, and once to know that the hour is full"
    monkeypatch.undo()
    later(1)
    assert {state.outcome for state in states} == {"done", "limited"}
    assert states[0].incident.facts["title"] == "worst"
    assert states[0].outcome == "done"
    assert sum(row["action"] == "playbook.claim" for row in trail(lake.tables)) == 6
    assert "limited" in {state.outcome for state in known.run(known.plan(), act=True) if state.outcome != "done"}
    later(2.1)
    assert sum(state.outcome == "done" for state in known.run(known.plan(), act=True)) == 12
    later(3.3)
    assert sum(state.outcome == "done" for state in runner(lake, place, per_hour=2).run(known.plan(), act=True)) == 14


def test_a_rate_holds_for_two_at_once(lake, place, later):
    """Each sees room for one more; by the order of the audit log only one has it, and the other does not act."""
    append(lake, "incidents", [row("other", title="other")])
    known = runner(lake, place, per_hour=1)
    (first, second) = [state for state in known.plan() if state.match.step.name == "call"]
    before = known._rate_limit
    assert not before(first.match)
    seq = known._record(first, "playbook.claim", None, {"incident": "x", "playbook": "jump", "step": "call"})
    late = known._record(second, "playbook.claim", None, {"incident": "y", "playbook": "jump", "step": "call"})
    assert not known._rate_limit(first.match, seq)
    assert known._rate_limit(second.match, late) == "playbooks have taken 1 step within the hour"


@pytest.mark.parametrize("rival", ["claims", "stops"])
def test_what_comes_between_the_look_and_the_claim_counts(lake, place, later, monkeypatch, rival):
    """Another process takes the last step of the hour, or somebody throws the switch: what was claimed is not done."""

    def between(lake, actor, action, subject, *more, **options):
        if action == "playbook.claim" and rival == "claims":
            step = {"incident": "x", "playbook": "jump", "step": "call", "attempt": 1}
            record(lake, "other", action, "x", None, step)
        elif action == "playbook.claim":
            assert command(["playbooks", "stop", "--why", "fire", "--lake", lake.uri]) == 0
        return record(lake, actor, action, subject, *more, **options)

    monkeypatch.setattr(running, "record", between)
    states = run(lake, place, per_hour=1)
    assert states["call"] == {"claims": "limited", "stops": "stopped"}[rival]
    assert lines(place / "told") == []
    assert {action.outcome for action in actions(asking(lake)).listed if action.incident == NAME} == {states["call"]}
    monkeypatch.setattr(running, "record", record)
    if rival == "stops":
        assert command(["playbooks", "resume", "--why", "it is out", "--lake", lake.uri]) == 0
    later(2.1)
    assert run(lake, place)["call"] == "done"


def test_the_switch_is_looked_at_before_each_step(lake, place, later, capsys):
    """Thrown by the first step, it stops the second; nothing is claimed, and it goes on where it stood."""
    stop = f"{sys.executable} -m ranklake playbooks stop --why fire --lake {lake.uri}"
    changed(place, "cat >> told", f"cat >> told; {stop}")
    assert run(lake, place) == {"call": "done", "once": "stopped", "restart": "waits"}
    assert run(lake, place) == {"call": "done", "once": "stopped", "restart": "waits"}
    options = ["--playbooks", str(place), "--lake", lake.uri]
    assert command(["playbooks", "run", "--apply", *options]) == 2
    assert "somebody ran 'ranklake playbooks stop': fire" in capsys.readouterr().err
    command(["playbooks", "list", *options])
    assert "nothing acts: somebody ran" in capsys.readouterr().out
    assert command(["playbooks", "resume", "--why", "it is out", "--lake", lake.uri]) == 0
    assert run(lake, place, is_off=True)["once"] == "stopped"
    assert set(run(lake, place).values()) == {"done"}
    assert [row["action"] for row in trail(lake.tables) if row["action"][-4:] in {"stop", "sume"}] == [
        "playbook.stop", "playbook.resume",
    ]  # fmt: skip


def test_a_switch_that_cannot_be_read_stops_all(lake, place, later):
    """Nothing acts where nobody can say whether it may."""
    Path(lake.path("playbooks")).mkdir()
    Path(lake.path("playbooks/stopped")).mkdir()
    with pytest.raises(OSError, match="directory"):
        run(lake, place)
    assert trail(lake.tables) == []


def test_marked_old_and_muted_incidents_lead_to_nothing(lake, place, later):
    """Somebody works on it, or it is long over; by its id an old one is still taken."""
    append(lake, "incidents", [row("open", run="r3", lasts=None, title="seen last at noon")])
    mark = {"kind": "mark", "value": "acknowledged", "text": "looking", "author": "ana"}
    append(lake, "annotations", [{**mark, "key": NAME, "ts": NOON}])
    assert {state.incident.facts["run"] for state in runner(lake, place).plan()} == {"r3"}
    later(26)
    assert run(lake, place) == {}
    assert len(runner(lake, place).plan([NAME])) == 3


def test_what_was_done_is_shown(lake, place, later, capsys):
    """In the incident's words, JSON, retrospective and page; output of programs is on no page."""
    changed(place, "printf", "echo host-$((6+1)) is out; printf")
    run(lake, place)
    command(["incidents", "show", NAME, "--lake", lake.uri])
    out = capsys.readouterr().out
    assert "jump.restart: command sh -c" in out
    command(["incidents", "show", NAME, "--json", "--lake", lake.uri])
    steps = json.loads(capsys.readouterr().out)["playbooks"]
    assert [(step["step"], step["outcome"]) for step in steps] == [
        ("call", "done"),
        ("once", "done"),
        ("restart", "done"),
    ]
    assert steps[2]["output"] == "host-7 is out"
    command(["incidents", "show", NAME, "--markdown", "--lake", lake.uri])
    assert "jump.call: tell ml-oncall: done" in capsys.readouterr().out
    (page,) = (
        render(each).decode() for each in section(incidents_state(lake)).pages if each.title == f"Incident {NAME}"
    )
    assert "jump.restart" in page
    assert "host-7" not in page


def test_ids_of_before_count(lake, place, later):
    """An incident that began earlier than was known has another id, and its steps are not done once more."""
    run(lake, place)
    record(lake, "x", "test", "y")
    later(1.1)
    early = json.loads(row("a")["evidence"])[0]
    first = {**early, "finding_id": "0", "start_ts": (NOON - timedelta(minutes=3)).isoformat()}
    moved = row("0", minutes=-3, title="moved", evidence=json.dumps([first, early]))
    append(lake, "incidents", [moved])
    known = runner(lake, place)
    states = [state for state in known.plan() if state.incident.facts["title"] == "moved"]
    assert outcomes(states) == {"call": "done", "once": "done", "restart": "done"}


def test_a_receiver_that_cannot_be_told_holds_nothing_back(lake, place, later):
    """The steps after it go on, now and when it is told again."""
    changed(place, "cat >> told", "exit 3")
    assert run(lake, place) == {"call": "failed", "once": "done", "restart": "done"}
    changed(place, "{name: call, tell: ml-oncall}", "{name: call, tell: ml-oncall}\n      - {name: more, tell: nobody}")
    assert run(lake, place) == {"call": "failed", "more": "done", "once": "done", "restart": "done"}
    changed(place, "exit 3", "cat >> told")
    assert run(lake, place, again=True)["call"] == "done"
    assert len(lines(place / "ran")) == 1


def test_proposals_are_written_while_the_switch_is_off(lake, place, later):
    """They act upon nothing. One without a command stays a proposal, and is written once."""
    changed(place, '        command: [sh, -c, \'printf "%s\\n" "$INCIDENT_ID $INCIDENT_TITLE" >> ran\']\n', "")
    changed(place, "        allow: true\n", "")
    assert set(run(lake, place, act=False, is_off=True).values()) == {"proposed"}
    for _ in range(2):
        assert run(lake, place) == {"call": "done", "once": "done", "restart": "proposed"}
    rows = [json.loads(each["details"]) for each in trail(lake.tables) if each["action"] == "playbook.propose"]
    assert [(each["step"], each.get("propose")) for each in rows] == [
        ("call", None), ("once", None), ("restart", "Restart from the last good checkpoint."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "expected", "note"),
    [
        ("'SELECT * FROM incident WHERE findings = 2'", "done", "0 rows"),
        ("'SELECT * FROM incident;  '", "done", "1 row"),
        ("SELECT * FROM incident -- the one", "done", "1 row"),
        ("SELECT * FROM incident, expect: no rows", "not met", "1 row"),
        ("SELECT * FROM incident WHERE findings = 2, expect: no rows", "done", "0 rows"),
        ("SELECT * FROM range(5000)", "done", "1,000 rows"),
        ("'SELECT * FROM \"password=hunter22hunter\"'", "failed", "unknown table"),
    ],
)
def test_a_query_is_asked_as_it_stands(lake, place, later, query, expected, note):
    """Without an expectation its rows are only counted; one that cannot be asked fails, and the rest waits."""
    changed(place, "SELECT * FROM incident WHERE findings = 1, expect: rows", query)
    known = runner(lake, place)
    states = {state.match.step.name: state for state in known.run(known.plan(), act=True)}
    assert states["once"].outcome == expected
    assert states["restart"].outcome == ("done" if expected == "done" else "waits")
    assert note in states["once"].note
    assert "hunter22" not in states["once"].note


def test_a_webhook_that_is_named_and_is_none_fails(lake, place, later, monkeypatch):
    """What a variable holds is looked at when it is used; it may be a secret, and is in no message."""
    monkeypatch.setenv("PAGER", "hunter22hunter")
    changed(place, "{command: [sh, -c, 'cat >> told']}", "{webhook: 'env:PAGER'}")
    known = runner(lake, place)
    (call, *_) = known.run(known.plan(), act=True)
    assert (call.outcome, "https://" in call.note, "hunter22" in call.note) == ("failed", True, False)


def test_what_is_not_known_is_in_no_variable(lake, place, later):
    """Rather than the word None; a long text is cut, there and in the audit log."""
    changed(place, "SELECT * FROM incident WHERE findings = 1", f"SELECT '{'y' * 9000}' FROM incident")
    append(lake, "incidents", [row("long", run="r9", title="x" * 9000, severity="critical")])
    append(lake, "runs", [{"run": "r9", "ts": NOON, "deployment_environment": "prod"}])
    changed(place, "$INCIDENT_ID $INCIDENT_TITLE", "${INCIDENT_HOST-none} $CHECKPOINT_NAME ${#INCIDENT_TITLE}")
    changed(place, "per_hour: 6", "per_hour: 60")
    run(lake, place)
    assert lines(place / "ran")[0] == "none  4096"
    assert {len(action.subject) for action in actions(asking(lake)).listed if action.step == "once"} == {4096}


def test_what_another_process_does_now_is_not_done_again(lake, place, later):
    """Its claim is some seconds old: it runs, whoever asks for it once more."""
    changed(place, "{name: call, tell: ml-oncall}", "{name: call, tell: ml-oncall, timeout_s: 600}")
    record(lake, "x", "playbook.outcome", "y", None, {"claim": [1]})
    known = runner(lake, place)
    (call, *_) = known.plan()
    known._record(call, "playbook.claim", None, running._details(call))
    for again in (False, True):
        assert outcomes(known.plan(again=again))["call"] == "running"
    assert run(lake, place, again=True)["call"] == "running"
    for minutes, outcome in ((9, "running"), (12, "unknown")):
        later(1 + minutes / 60)
        assert outcomes(known.plan())["call"] == outcome
    assert not (place / "told").exists()
