"""The stage of alerts with real receivers: one line of configuration, a kill after delivery, two at once, commands."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from incident_rows import incident_row
from page_read import compared
from prefect.states import format_exception
from receivers import answer, serve
from rollup_inputs import append
from segments import put_segment, step_rows

from ranklake.cli import run as command
from ranklake.config import load_config
from ranklake.context import Context
from ranklake.doctor import books
from ranklake.insight.overview.alerts import alerts_state
from ranklake.lake.audit.trail import record
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.alerts import stage
from ranklake.pipeline.alerts.delivery import deliver_round
from ranklake.pipeline.alerts.file import packaged_alerts
from ranklake.pipeline.alerts.stage import (
    CLAIM,
    AlertsFailedError,
    alerts_once,
    configured_rules,
    pipeline_problems,
    raise_if_lost,
    run_round,
)
from ranklake.pipeline.calls import UnsoundError, doctor_once, refuse_unsound
from ranklake.views.html.alerts_pages import section
from ranklake.views.html.shell import render

ROUND = """
import os, signal, sys
from pathlib import Path
from ranklake.config import load_config
from ranklake.context import Context
from ranklake.pipeline.alerts import stage

def deliver(evaluation, *given, **more):
    print(*(each.id for each in evaluation.notifications), flush=True)
    return deliver_round(evaluation, *given, **more)

deliver_round, stage.deliver_round = stage.deliver_round, deliver
if sys.argv[2] == "kill":
    stage.write_history = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
print(stage.alerts_once(Context.of(load_config(Path(sys.argv[1]))))["messages"])
"""


def now():
    return datetime.now(UTC)


def hang(**more):
    """Return an incident that began ten minutes ago and goes on."""
    start = now() - timedelta(minutes=10)
    times = {"start_ts": start, "last_ts": start, "detected_ts": start, "date": start.date()}
    return incident_row("h", kind="hang", lasts=None, **{**times, "title": "Step 7 takes 12 minutes", **more})


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Give a lake with a run that hangs, and the folder of its configuration: one line asks for alerts."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "incidents", [hang()])
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{lake.uri}"\n[alerts]\nnotify = "env:CHAT_URL"\n')
    monkeypatch.chdir(tmp_path)
    return lake


@pytest.fixture
def chat(monkeypatch):
    """Give a receiver, whose URL the configuration's variable has."""
    with serve() as server:
        monkeypatch.setenv("CHAT_URL", f"json://127.0.0.1:{server.port}/token-nobody-sees")
        yield server


def titles(server):
    return [request.json["title"] for request in server.requests]


def test_one_line_tells_when_a_run_hangs(site, chat):
    """Once; the message has lake, run, evidence and runbook; no URL is on disk."""
    context = Context.of(load_config())
    done = raise_if_lost(alerts_once(context))
    assert (done["firing"], done["messages"], done["lost"], done["unknown"]) == (1, 1, {}, [])
    assert alerts_once(context)["messages"] == 0
    assert titles(chat) == ["[PAGE] 1 firing: run-hangs · r1"]
    text = chat.requests[0].json["message"]
    for words in (
        "lake: lake",
        "Step 7 takes 12 minutes",
        "run r1",
        "SQL: SELECT step, loss FROM steps",
        "evidence: hang",
    ):
        assert words in text
    assert not any(b"token-nobody-sees" in path.read_bytes() for path in Path(site.uri).rglob("*") if path.is_file())


def test_a_url_that_is_not_there_is_lost_before_anything_is_to_be_sent(site, tmp_path, chat, monkeypatch):
    """Who set it in another shell learns of that at once, and not by the silence of the first night."""
    assert alerts_once(Context.of(load_config()))["messages"] == 1
    monkeypatch.delenv("CHAT_URL")
    with pytest.raises(AlertsFailedError, match=r"default: \$CHAT_URL: the variable that should hold the URL is not"):
        raise_if_lost(alerts_once(Context.of(load_config())))


def test_a_second_line_has_each_round_post_a_heartbeat(site, tmp_path, chat, monkeypatch, capsys):
    """Rules of one's own begin with those: they go on to tell the same."""
    config = tmp_path / "ranklake.toml"
    config.write_text(config.read_text() + 'heartbeat = "env:BEAT_URL"\n')
    with serve() as beats:
        monkeypatch.setenv("BEAT_URL", beats.url)
        assert alerts_once(Context.of(load_config()))["messages"] == 1
        assert len(beats.requests) == 1
    assert command(["alerts", "new", "alerts.yaml"]) == 0
    assert command(["alerts", "new", "alerts.yaml"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert command(["alerts", "test", "--rules", "alerts.yaml"]) == 0
    config.write_text(f'[lake]\nuri = "{site.uri}"\n[alerts]\nfile = "alerts.yaml"\n')
    assert configured_rules(Context.of(load_config())) == packaged_alerts()


def test_a_receiver_that_refuses_fails_the_stage_and_is_tried_again(site, chat, monkeypatch, capsys):
    """Its reason is told without the URL; the command exits 1; the next round sends."""
    with serve(answer(404)) as gone:
        monkeypatch.setenv("CHAT_URL", f"json://127.0.0.1:{gone.port}/token-nobody-sees")
        done = alerts_once(Context.of(load_config()))
    with pytest.raises(AlertsFailedError, match="did not take messages: default: status 404"):
        raise_if_lost(done)
    monkeypatch.setenv("CHAT_URL", f"json://127.0.0.1:{chat.port}/")
    assert alerts_once(Context.of(load_config()))["messages"] == 1
    assert command(["alerts", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["rule"], row["receivers"], row["messages"], row["failures"]) == ("run-hangs", "default", 1, 1)


def rounds(site, how, count=1):
    """Run rounds at once in processes of their own; return what each printed, and how it ended."""
    config = str(site.uri).removesuffix("lake") + "ranklake.toml"
    processes = [
        subprocess.Popen([sys.executable, "-c", ROUND, config, how], stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    return [(process.communicate(timeout=300)[0].split(), process.returncode) for process in processes]


def test_killed_between_delivery_and_storing_it_sends_again_with_the_same_id(site, chat):
    """While the claim of the dead process holds nobody sends; then one does, and nothing is lost."""
    (([identity], code),) = rounds(site, "kill")
    assert (code, len(chat.requests)) == (-signal.SIGKILL, 1)
    context, ids = Context.of(load_config()), []
    assert alerts_once(context)["is_left_to_another"]

    def deliver(evaluation, *given):
        ids.extend(each.id for each in evaluation.notifications)
        return deliver_round(evaluation, *given)

    for minutes in (0, 1):
        run_round(site, configured_rules(context), now() + CLAIM + timedelta(minutes=minutes), deliver)
    assert ids == [identity]
    assert len(chat.requests) == 2


@pytest.mark.slow
def test_of_processes_at_once_one_sends(site, chat):
    """Whoever comes second finds the claim, or its end."""
    results = rounds(site, "live", 3)
    assert [code for _, code in results] == [0, 0, 0]
    assert sorted(words[-1] for words, _ in results) == ["0", "0", "1"]
    assert len(chat.requests) == 1


def test_what_only_the_doctor_knew_is_a_problem_of_the_pipeline(site, tmp_path):
    """A trail that somebody changed, and a place without a backup; sound ones are none."""
    context = Context.of(load_config())
    checks = {"audit-trail", "signers", "keys", "backup"}
    record(site, "ada", "hold.place", "x", "because")
    assert not [each for each in pipeline_problems(context, now()) if each.check in checks]
    shutil.rmtree(tmp_path / "lake" / "tables" / "audit")
    with (tmp_path / "ranklake.toml").open("a") as file:
        file.write(f'[backup]\nto = ["{tmp_path}/backups"]\n')
    wrong = [each for each in pipeline_problems(Context.of(load_config()), now()) if each.check in checks]
    assert [each.check for each in wrong] == ["audit-trail", "backup"]
    assert "vouches for 1 rows" in wrong[0].message


def test_faults_of_the_file_and_of_the_role_are_told_and_stop_nothing(site, tmp_path):
    """Both are of the stage alone."""
    for lines, words in (
        ('file = "none.yaml"', "none.yaml"),
        ('notify = "env:CHAT_URL"\nrole = "teller"', "no roles are defined"),
    ):
        (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{site.uri}"\n[alerts]\n{lines}\n')
        done = alerts_once(Context.of(load_config()))
        assert words in done["fault"]
        with pytest.raises(AlertsFailedError, match=words):
            raise_if_lost(done)


def test_each_mistake_of_a_file_is_a_line_of_the_pipeline(site, tmp_path, capsys):
    wrong = WATCHED.replace("receivers: [chat]", "receivers: [lost]").replace("non_finite", "non_finit")
    (tmp_path / "alerts.yaml").write_text(wrong)
    config = f'[lake]\nuri = "{site.uri}"\n[spool]\nuri = "{tmp_path}/spool"\n[alerts]\nfile = "alerts.yaml"\n'
    (tmp_path / "ranklake.toml").write_text(config)
    assert command(["pipeline"]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alerts.yaml:")]
    assert ["there is no detector 'non_finit'" in lines[0], "there is no receiver 'lost'" in lines[1]] == [True, True]
    assert len(lines) == 2


def test_an_alert_without_a_message_is_listed_by_what_its_rule_says(site, tmp_path, chat, capsys):
    rule = "  x: {source: sql, owner: o, summary: Saving is slow., sql: SELECT 'llm-7' AS subject}"
    (tmp_path / "alerts.yaml").write_text(WATCHED.replace("rules:", f"rules:\n{rule}"))
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{site.uri}"\n[alerts]\nfile = "alerts.yaml"\n')
    alerts_once(Context.of(load_config()))
    assert command(["alerts", "list"]) == 0
    assert "Saving is slow." in capsys.readouterr().out
    assert chat.requests[0].json["message"].count("Saving is slow.") == 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('notify = "https://hooks.example/secret"', "env:NAME"),
        ('notify = "env:A"\nfile = "alerts.yaml"', "two ways"),
        ('notify = "env:A"\nheartbeat = "https://hc.example/secret"', "env:NAME"),
        ('heartbeat = "env:B"\nfile = "alerts.yaml"', "two ways"),
        ('heartbeat = "env:B"', "goes with notify"),
    ],
)
def test_settings_that_cannot_hold_are_refused(tmp_path, lines, words):
    path = tmp_path / "ranklake.toml"
    path.write_text(f"[alerts]\n{lines}\n")
    with pytest.raises(Exception, match=words) as raised:
        load_config(path)
    assert "secret" not in str(raised.value).replace("since it is a secret", "")


def test_what_was_told_is_listed_and_on_a_page(site, chat, capsys):
    """Firing first; then history; each number of the page is that of its SQL."""
    assert command(["alerts", "list"]) == 0
    assert capsys.readouterr().out.strip() == "no alert fires"
    page = section(alerts_state(site))
    assert (page.state, page.headline) == ("unchecked", "None ever fired")
    alerts_once(Context.of(load_config()))
    state = alerts_state(site)
    result = section(state)
    assert (result.state, result.headline) == ("failing", "1 alert firing, 1 critical")
    (page,) = result.pages
    assert compared(site, render(page).decode()) > 10
    assert command(["alerts", "list"]) == 0
    assert "run-hangs" in capsys.readouterr().out
    run_round(site, configured_rules(Context.of(load_config())), now() + timedelta(days=9), role=None)
    assert command(["alerts", "list", "--history", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["rule"] == "run-hangs"
    assert command(["alerts", "list", "--history", "--firing"]) == 2


def test_a_silence_is_printed_to_paste(capsys):
    """It is YAML of the file's form; what is no label or no length is named."""
    import yaml

    words = ["alerts", "silence", "rule=gpus-wasted,run=bench-*", "--reason", "A benchmark.", "--owner", "storage"]
    assert command([*words, "--for", "4h"]) == 0
    (entry,) = yaml.safe_load(capsys.readouterr().out)
    assert entry["where"] == {"rule": "gpus-wasted", "run": "bench-*"}
    assert timedelta(hours=3) < entry["until"] - now() <= timedelta(hours=4)
    assert command([*words, "--for", "soon"]) == 2
    assert "30m, 4h or 2d" in capsys.readouterr().err


WATCHED = """
version: 1
rules:
  diverges: {source: incidents, where: {kind: non_finite}, severity: critical, owner: o, summary: No number.}
receivers: {chat: {url: "env:CHAT_URL"}}
heartbeat: {url: "env:BEAT_URL"}
routes: [{receivers: [chat], kind: page}]
"""


def test_the_pipeline_tells_of_a_run_that_is_no_number_and_beats_though_a_stage_fails(
    tmp_path, chat, monkeypatch, capsys
):
    """From segments to one message; a round whose rollups cannot be computed is still a round of alerts."""
    rows = step_rows(60, start=now() - timedelta(minutes=5))
    losses = [None if step >= 20 else loss for step, loss in enumerate(rows["loss"].to_pylist())]
    flags = ["loss:nan" if loss is None else None for loss in losses]
    for name, values in (("loss", losses), ("non_finite", flags)):
        column = rows.schema.field(name)
        rows = rows.set_column(rows.schema.names.index(name), column, pa.array(values, column.type))
    put_segment(tmp_path / "spool", rows)
    (tmp_path / "alerts.yaml").write_text(WATCHED)
    config = f'[lake]\nuri = "{tmp_path}/lake"\n[spool]\nuri = "{tmp_path}/spool"\n[alerts]\nfile = "alerts.yaml"\n'
    (tmp_path / "ranklake.toml").write_text(config)
    monkeypatch.chdir(tmp_path)
    with serve() as beats:
        monkeypatch.setenv("BEAT_URL", beats.url)
        for count in (1, 2):
            command(["pipeline"])
            assert (titles(chat), len(beats.requests)) == (["[PAGE] 1 firing: diverges · r1"], count)
        assert "alerts  1 firing, 0 messages sent" in capsys.readouterr().out
        (tmp_path / "ranklake.toml").write_text(f'{config}[cost]\nprices = "none.csv"\n')
        assert command(["pipeline"]) == 2
        assert "none.csv" in capsys.readouterr().err
        assert len(beats.requests) == 3


def of_prefect(failure):
    """Answer as a Prefect server does whose deployment `doctor` ran once, and failed so."""
    ended = now().isoformat()
    run = {"deployment_id": "d", "state_type": "FAILED", "state": {"message": failure}, "end_time": ended, "name": "r"}
    deployment = {"id": "d", "name": "doctor", "work_pool_name": None}

    def respond(handler, server):
        rows = [{**run, "id": "i"}] if "flow_runs" in handler.path else [deployment]
        answer(body=json.dumps(rows).encode())(handler, server)

    return respond


def test_what_rounds_tell_the_doctors_deployment_does_not_tell_again(site, tmp_path, monkeypatch):
    """An overdue backup is one problem; what only the doctor finds is told, without what a round tells."""
    (tmp_path / "ranklake.toml").write_text(
        f'[lake]\nuri = "{site.uri}"\n[backup]\nto = ["{tmp_path}/backups"]\n[sql]\nroles = "none.yaml"\n'
    )
    context = Context.of(load_config())
    findings = [each for each in doctor_once(context)["findings"] if each["check"] in {"backup", "settings"}]
    assert [(each["check"], each["is_alerted"]) for each in findings] == [("settings", False), ("backup", True)]
    for some, expected in ((findings, ["deployment", "backup"]), (findings[1:], ["backup"])):
        with pytest.raises(UnsoundError) as raised:
            refuse_unsound({"findings": some})
        with serve(of_prefect(f"Flow run encountered an exception: {format_exception(raised.value)}")) as server:
            monkeypatch.setenv("PREFECT_API_URL", server.url)
            wrong = list(pipeline_problems(context, now()))
        assert [each.check for each in wrong] == expected
        assert not any("backups" in each.message for each in wrong if each.check == "deployment")


def test_a_round_looks_at_the_home_of_its_own_up(site, tmp_path, monkeypatch):
    """Not at that of the user, whose disk may be another."""
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{site.uri}"\n[health]\ndisk_free_ratio = 0.9999\n')
    context = Context.of(load_config())
    full = "the disk of the home is nearly full"
    assert not any(full in each.message for each in pipeline_problems(context, now()))
    monkeypatch.setenv("RANKLAKE_UP", str(tmp_path))
    assert any(full in each.message for each in pipeline_problems(context, now()))


def test_a_look_that_does_not_answer_neither_accuses_nor_resolves(site, tmp_path, chat, monkeypatch):
    """What was told goes on, and is over once that is known; of the rest nobody is told before a while."""
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "ranklake.toml"
    config.write_text(f'{config.read_text()}[backup]\nto = ["{tmp_path}/backups"]\n')
    context = Context.of(load_config())
    assert alerts_once(context)["firing"] == 2
    released = threading.Event()
    monkeypatch.setattr(stage, "LIMIT_S", 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(books, "recent_audit", lambda _: released.wait() and ())
        patch.setattr(books, "backup_ages", lambda _: released.wait() and ())
        problems = list(pipeline_problems(context, now()))
        done = alerts_once(context)
    released.set()
    assert {(each.check, each.unknown) for each in problems} >= {("look", "audit-trail"), ("look", "backup")}
    assert not {each.check for each in problems} & {"audit-trail", "backup"}
    assert (done["firing"], done["messages"]) == (2, 0)
    assert done["pending"] >= 1
    monkeypatch.undo()
    monkeypatch.setenv("CHAT_URL", f"json://127.0.0.1:{chat.port}/")
    config.write_text(config.read_text().partition("[backup]")[0])
    assert alerts_once(Context.of(load_config(config)))["firing"] == 1
    assert [title.partition(" ·")[0] for title in titles(chat) if "pipeline" in title] == [
        "[TICKET] 1 firing: pipeline-fails",
        "[Resolved] 1 resolved: pipeline-fails",
    ]
