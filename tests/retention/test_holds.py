"""Legal holds: what they are about nothing takes, whatever rules say, until their day."""

import json
import re
import subprocess
from datetime import timedelta

import pytest
from governed import any_rows
from retaining import TODAY, agree, bring_days, carry_out, days_ago, keeping, plan, purge_after
from segments import step_rows
from ssh_keys import Keys, needs_ssh_keygen

from ranklake.cli import run
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.ssh_signatures import NAMESPACE
from ranklake.quality.check import run_checks
from ranklake.retention.erasure.apply import apply as erase
from ranklake.retention.erasure.apply import approve as approve_erasure
from ranklake.retention.erasure.archived import HeldError
from ranklake.retention.erasure.plan import make_plan as make_erasure
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.holds.hold import ACTION, HOLD_RELEASES, HoldError, all_holds, approve, begun_before, propose
from ranklake.retention.holds.holds import holds_of, rows_held, set_hold
from ranklake.retention.plans import purge
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.erasures import ERASURES
from ranklake.retention.proposals.examination import examine
from ranklake.retention.proposals.identities import NobodyError, name_of
from ranklake.retention.proposals.proposals import SameOperatorError, UnknownProposalError, VoidProposalError
from ranklake.retention.proposals.retention_plans import PURGE_BEGIN as BEGIN
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS

LATER = TODAY + timedelta(days=100)


def hold(site, *where, until=LATER, reason="the case of the lost checkpoint", **more):
    return set_hold(site.lake, where, reason, until, **({"by": "Lena Legal"} | more))


def test_a_held_run_stays_and_its_neighbours_go(site):
    """Rows of a held run stay in a partition of which all others go, and go when the hold ended."""
    for incarnation, name in ((7, "a"), (8, "b")):
        site.bring(step_rows(10, run=name, incarnation=incarnation, start=days_ago(100)))
    found = hold(site, "run=a")
    made = plan(site)
    assert [(item.rows, item.part_sha256 is not None) for item in made.items] == [(10, True)]
    agree(site, made.name)
    carry_out(site, made.name)
    assert {row["run"] for row in site.rows("steps")} == {"a"}
    assert plan(site) is None
    assert holds_of(site.lake, LATER - timedelta(days=1)) == [found]
    assert holds_of(site.lake, LATER) == []
    assert [item.rows for item in plan(site, LATER).items] == [10]


def test_a_hold_says_how_many_rows_it_is_about(site, monkeypatch, capsys):
    """Of a run, a table, a range of dates; none where a date is mistyped, for instance."""
    for incarnation, name in ((7, "a"), (8, "b")):
        site.bring(step_rows(10, run=name, incarnation=incarnation, start=days_ago(100)))
    about = {"run=a": 10, "table=steps": 20, f"date=..{days_ago(100).date()}": 20, f"date=..{days_ago(101).date()}": 0}
    assert {one: rows_held(site.lake, hold(site, "table=steps", one)) for one in about} == about
    monkeypatch.setenv("RANKLAKE_LAKE", site.lake.uri)
    assert run(["retain", "hold", "--where", "run=b", "--until", LATER.isoformat(), "--reason", "x"]) == 0
    assert "it protects 10 rows stored now" in capsys.readouterr().out


def test_a_hold_that_comes_after_the_approval(site):
    """It is looked at again when a plan is applied: the plan is void, and nothing went."""
    bring_days(site, [100, 200])
    made = plan(site)
    agree(site, made.name)
    hold(site, "table=steps", f"date={days_ago(210).date()}..{days_ago(190).date()}")
    with pytest.raises(VoidProposalError, match="is not due under the policies of today"):
        carry_out(site, made.name)
    assert len(site.rows("steps")) == 20
    again = plan(site)
    assert [(TODAY - item.partition_date).days for item in again.items] == [100]
    agree(site, again.name)
    carry_out(site, again.name)
    assert len(site.rows("steps")) == 10
    site.balances()


def while_it_is_recorded(monkeypatch, module, then):
    """Have something happen between the look of an application at the lake and its row in the audit log."""
    genuine, done = module.audit.record, []

    def record(*words, **more):
        if not done:
            done.append(then())
        return genuine(*words, **more)

    monkeypatch.setattr(module.audit, "record", record)


def test_a_hold_that_is_set_while_a_plan_is_applied(site, monkeypatch):
    """Set before the audit log has that the application began, it holds, although its rows were looked at before."""
    bring_days(site, [200])
    made = plan(site)
    agree(site, made.name)
    with monkeypatch.context() as then:
        while_it_is_recorded(then, lifecycle, lambda: hold(site, "table=steps"))
        with pytest.raises(VoidProposalError, match="is not due under the policies of today"):
            carry_out(site, made.name)
    assert len(site.rows("steps")) == 10
    assert removal_faults(site.lake) == []
    with pytest.raises(VoidProposalError):
        carry_out(site, made.name)
    site.balances()


def test_a_hold_that_is_set_while_somebody_is_erased(site, monkeypatch):
    """It goes before the erasure in the same way."""
    line = {"run": "shared", "incarnation": 5, "message": ["by ada@analytical.example"]}
    site.bring(any_rows("logs", 1, **line), "logs")
    reach = Reach(site.lake, Spool(str(site.spool)))
    subject = subject_of(site.lake, ["ada@analytical.example"])
    made = make_erasure(reach, subject)
    approve_erasure(site.lake, made.name, "Ada Approver")
    while_it_is_recorded(monkeypatch, lifecycle, lambda: hold(site, "run=shared"))
    with pytest.raises(HeldError):
        erase(reach, made.name, subject, "Otto")
    assert len(site.rows("logs")) == 1


def once_it_is_recorded(monkeypatch, module, action, then):
    """Have something happen just after the audit log has a row."""
    genuine = module.audit.record

    def record(lake, actor, what, *words, **more):
        number = genuine(lake, actor, what, *words, **more)
        if what == action:
            monkeypatch.setattr(module.audit, "record", genuine)
            then()
        return number

    monkeypatch.setattr(module.audit, "record", record)


def test_a_hold_that_comes_after_an_application_began_says_so(site, monkeypatch, capsys):
    """In a line, with the row that came first; other rows, and what ended before, are not spoken of."""
    bring_days(site, [200])
    site.bring(any_rows("logs", 1, start=days_ago(0)), "logs")
    made = plan(site)
    agree(site, made.name)
    monkeypatch.setenv("RANKLAKE_LAKE", site.lake.uri)
    words = ["retain", "hold", "--until", str(LATER), "--by", "Lena", "--reason", "case 7", "--where"]

    def set_them():
        assert run([*words, "table=logs"]) == 0
        assert run([*words, "table=steps", "--where", f"date={days_ago(9).date()}"]) == 0
        assert capsys.readouterr().err == ""
        assert run([*words, "table=steps"]) == 0

    once_it_is_recorded(monkeypatch, lifecycle, RETENTION_PLANS.begin, set_them)
    carry_out(site, made.name)
    assert site.rows("steps") == []
    (began,) = [row["seq"] for row in trail(site.lake.tables) if row["action"] == RETENTION_PLANS.begin]
    said = f"{made.name} had begun before the hold (row {began} of the audit log)"
    assert capsys.readouterr().err == f"{said}: the hold does not cover its data\n"
    assert run([*words, "table=steps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["begun_before"] == [{"proposal": made.name, "row": began}]
    assert run([*words, "table=steps", "--json", "--reason", "case 8"]) == 0
    assert json.loads(capsys.readouterr().out)["begun_before"] == []


def test_a_hold_that_comes_after_an_erasure_or_a_purge_began_says_so(site, monkeypatch):
    """As of any application; once files were purged, nothing is said any more."""
    line = {"run": "shared", "incarnation": 5, "message": ["by ada@analytical.example"]}
    site.bring(any_rows("logs", 1, **line), "logs")
    bring_days(site, [200])
    made = plan(site, TODAY, keeping())
    agree(site, made.name)
    carry_out(site, made.name, TODAY, keeping())
    told = []

    def set_it():
        told.append([one.proposal for one in begun_before(site.lake, hold(site, "run=*", reason=f"case {len(told)}"))])

    with monkeypatch.context() as then:
        once_it_is_recorded(then, purge, BEGIN, set_it)
        assert purge_after(site) == (made.name,)
    set_it()
    reach = Reach(site.lake, Spool(str(site.spool)))
    subject = subject_of(site.lake, ["ada@analytical.example"])
    for one in holds_of(site.lake, TODAY):
        propose(site.lake, one.name, "Petra")
        approve(site.lake, one.name, "Anna", "closed")
    erasure = make_erasure(reach, subject)
    approve_erasure(site.lake, erasure.name, "Ada Approver")
    once_it_is_recorded(monkeypatch, lifecycle, ERASURES.begin, set_it)
    erase(reach, erasure.name, subject, "Otto")
    assert told == [[made.name], [], [erasure.name]]


@pytest.mark.parametrize(
    "where", [("class=raw",), ("kind=traces",), ("table=*",), ("run=r*",), ("date=..2100-01-01", "run=r1")]
)
def test_whatever_it_is_about(site, where):
    """By class, kind, table, run or dates: what it is about stays."""
    bring_days(site, [200])
    hold(site, *where)
    assert plan(site) is None


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (["table=stepz"], "did you mean 'steps'?"),
        (["tabel=steps"], "did you mean 'table'?"),
        (["run=r2"], "there is no run 'r2'; known: r1"),
        (["steps"], "write key=text"),
        (["table="], "write key=text"),
        ([], "what it is about"),
        (["table=cost", "run=r1"], "no table has all of"),
        (["table=steps", "date=2026-13-01"], "is no range of dates"),
        (["table=steps", "date=2026-03-02..2026-03-01"], "is after"),
        (["severity=loud"], "there is no severity 'loud'"),
    ],
)
def test_a_hold_that_would_protect_nothing_is_refused(site, where, said):
    """A misspelt one is not set: nobody would notice until the rows are gone."""
    bring_days(site, [0])
    with pytest.raises(HoldError, match=said.replace("?", r"\?")):
        hold(site, *where)
    assert all_holds(site.lake.tables) == []


def test_days_and_reasons(site):
    """A day that is past, and no reason, are refused; the same hold is set once, by a row of the audit log."""
    bring_days(site, [0])
    with pytest.raises(HoldError, match="is past"):
        hold(site, "table=steps", until=TODAY)
    with pytest.raises(HoldError, match="needs a reason"):
        hold(site, "table=steps", reason=" ")
    assert hold(site, "table=steps").name == hold(site, "table=steps").name
    (row,) = [row for row in trail(site.lake.tables) if row["action"] == "retention.hold"]
    assert (row["actor"], row["reason"]) == ("Lena Legal", "the case of the lost checkpoint")


def test_the_commands(site, monkeypatch, capfd):
    """A hold shows in its list, in plans with the rows that it keeps, and in explanations, where it decides."""
    monkeypatch.chdir(site.folder)
    monkeypatch.setenv("RANKLAKE_LAKE", str(site.folder / "lake"))
    site.bring(any_rows("logs", 3, start=days_ago(100)), "logs")
    until = str(LATER)
    assert run(["retain", "hold", "--where", "table=logs", "--reason", "case 7", "--until", until, "--by", "Lena"]) == 0
    name = capfd.readouterr().out.split(":")[0]
    assert run(["retain", "holds", "--json"]) == 0
    assert [one["hold"] for one in json.loads(capfd.readouterr().out)] == [name]
    assert run(["retain", "plan"]) == 0
    out, err = capfd.readouterr()
    assert "nothing is due" in out
    assert f"{name}: table=logs until {until}: case 7" in err
    assert "logs: 3 rows past retention, kept by legal holds" in err
    assert run(["retain", "plan", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["held_rows"], told["holds"][0]["hold"]) == ({"logs": 3}, name)
    assert run(["retain", "explain", "logs", str(days_ago(100).date()), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["decided_by"], told["rule"], told["due_from"]) == ("hold", name, None)
    assert run(["retain", "hold", "--where", "table=logz", "--reason", "x", "--until", until]) == 2


def test_a_hold_is_released_by_two_people(site):
    """Proposed by one person and approved by another it holds no more; what it kept is due again."""
    bring_days(site, [100])
    found = hold(site, "run=r1")
    assert plan(site) is None
    with pytest.raises(HoldError, match="nobody proposed"):
        approve(site.lake, found.name, "Anna")
    with pytest.raises(UnknownProposalError):
        propose(site.lake, "hold-000000000000", "Petra")
    propose(site.lake, found.name, "Petra")
    assert plan(site) is None
    with pytest.raises(SameOperatorError):
        approve(site.lake, found.name, "petra ")
    assert holds_of(site.lake, TODAY) == [found]
    assert approve(site.lake, found.name, "Anna", "the case is closed")[1]
    assert not approve(site.lake, found.name, "Anna")[1]
    assert holds_of(site.lake, TODAY) == []
    assert all_holds(site.lake.tables) == [found]
    assert len(plan(site).items) == 1


def test_a_row_in_the_trail_releases_nothing(site):
    """Who writes that a hold was released, without an approval, releases nothing."""
    found = hold(site, "table=logs")
    record(site.lake, "Eve", HOLD_RELEASES.applied, f"release-of-{found.name}", None, {"hold": found.name})
    assert holds_of(site.lake, TODAY) == [found]


@needs_ssh_keygen
def test_a_hold_is_signed_where_approvals_are(site, tmp_path, monkeypatch, capsys):
    """By whoever sets it, here or elsewhere; one written into the audit log by hand holds, and is named as a fault."""
    keys = Keys(tmp_path / "keys")
    keys.allow("lea")
    site.lake = site.lake.configured(approvals=keys.section())
    with pytest.raises(NobodyError, match="takes signatures only"):
        name_of(site.lake, "ranklake retain hold", "Eve")
    (site.folder / "ranklake.toml").write_text(
        f'[lake]\nuri = "{site.lake.uri}"\n[approvals]\nallowed_signers = "{keys.file}"\n'
    )
    monkeypatch.chdir(site.folder)
    words = ["retain", "hold", "--where", "table=logs", "--reason", "a claim", "--until", LATER.isoformat()]
    assert run([*words, "--by", "Eve"]) == 2
    assert all_holds(site.lake.tables) == []
    capsys.readouterr()
    assert run([*words, "--by", "lea@example.org", "--statement"]) == 0
    (site.folder / "s.json").write_text(capsys.readouterr().out)
    sign = ["ssh-keygen", "-q", "-Y", "sign", "-n", NAMESPACE, "-f", str(keys.path("lea")), "s.json"]
    subprocess.run(sign, check=True, cwd=site.folder, stdin=subprocess.DEVNULL)
    assert run([*words, "--signed", "s.json"]) == 0
    assert run([*words, "--key", str(keys.path("lea"))]) == 0
    assert len(all_holds(site.lake.tables)) == 1
    found = hold(site, "table=steps", **keys.by("lea"))
    looked = examine(site.lake)
    assert (looked.signed, looked.faults) == (2, ())
    details = {"where": {"table": ["spans"]}, "until": LATER.isoformat(), "items_sha256": "0" * 64}
    record(site.lake, "eve", ACTION, "hold-000000000000", "mine", details)
    assert [one.name for one in holds_of(site.lake, TODAY)][1:] == [found.name, "hold-000000000000"]
    assert [fault.partition(": ")[2] for fault in examine(site.lake).faults] == ["it is not signed, and approvals were"]


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (["team=vison"], "there is no team 'vison'; did you mean 'vision'?; if rows with that name are yet to come"),
        (["tag=ner-2"], "there is no tag 'ner-2'; did you mean 'ner'?"),
        (["tag=task=nre"], "there is no tag 'task=nre'; did you mean 'task=ner'?"),
        (["environment=prd"], "there is no environment 'prd'; did you mean 'prod'?"),
        (["metric=eval/los"], "there is no metric 'eval/los'; did you mean 'eval/loss'?"),
        (["metric=train/acuracy"], "there is no metric 'train/acuracy'; did you mean 'train/accuracy'?"),
        (["team=visi?"], "there is no team 'visi?'; did you mean 'vision'?"),
        (["team=vision", "run=other"], "no run has all of team=vision, run=other"),
    ],
)
def test_a_name_that_no_rows_have_is_refused(site, where, why):
    """A misspelt name of any key is, unless rows with it are said to come; names and globs of what is there are not."""
    labels = [json.dumps({"task": "ner"})]
    facts = {"team": ["vision"], "labels": labels, "deployment_environment": ["prod"]}
    site.bring(any_rows("runs", 1, run="r1", incarnation=5, **facts), "runs")
    site.bring(any_rows("runs", 1, run="other", incarnation=6, team=["nlp"]), "runs")
    values = {"metric": ["train/accuracy"], "value": [1.0], "kind": ["gauge"]}
    site.bring(any_rows("scalars", 1, run="r1", incarnation=7, **values), "scalars")
    with pytest.raises(HoldError, match=re.escape(why)):
        hold(site, *where)
    assert all_holds(site.lake.tables) == []
    hold(site, *where, future_names=True)
    for good in ("team=vision", "tag=task=n*", "tag=ner", "environment=prod", "metric=train/acc*", "metric=eval/loss"):
        hold(site, good)
    hold(site, "team=vision", "run=r1", "table=scalars")
    assert len(all_holds(site.lake.tables)) == 8


@needs_ssh_keygen
def test_a_release_is_signed_where_approvals_are(site, tmp_path):
    """By keys of two people; a row without a signature releases nothing, and one that expired since stays released."""
    keys = Keys(tmp_path / "keys")
    keys.allow("pia", "ada")
    site.lake = site.lake.configured(approvals=keys.section())
    found = hold(site, "table=logs", **keys.by("ada"))
    propose(site.lake, found.name, **keys.by("pia"))
    name = f"release-of-{found.name}"
    record(
        site.lake,
        "eve",
        HOLD_RELEASES.approve,
        name,
        None,
        {"items_sha256": HOLD_RELEASES.find(site.lake, name).items_sha256},
    )
    record(site.lake, "eve", HOLD_RELEASES.applied, name, None, {"hold": found.name})
    assert holds_of(site.lake, TODAY) == [found]
    approve(site.lake, found.name, reason="closed", **keys.by("ada"))
    assert holds_of(site.lake, TODAY) == []


def test_the_commands_release(site, capsys, monkeypatch):
    """A hold is proposed to be released, released, and listed as such."""
    monkeypatch.setenv("RANKLAKE_LAKE", site.lake.uri)
    found = hold(site, "table=logs")
    assert run(["retain", "release", "approve", found.name, "--by", "Anna"]) == 2
    assert run(["retain", "release", "plan", found.name, "--by", "Petra"]) == 0
    assert run(["retain", "release", "approve", found.name, "--by", "Anna", "--reason", "closed"]) == 0
    capsys.readouterr()
    assert run(["retain", "holds"]) == 0
    assert "(released " in capsys.readouterr().out
    assert run(["retain", "holds", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["released"]


def test_an_incident_holds_what_it_rests_on(site, monkeypatch, capsys):
    """Rows of its table, those set aside and results of checks stay from its first date on; all else goes."""
    for age, incarnation in ((200, 7), (100, 9)):
        site.bring(step_rows(50, incarnation=incarnation, run=f"of-{age}", start=days_ago(age)))
        ranks = 50 if age == 200 else 30
        site.bring(step_rows(ranks, rank=1, incarnation=incarnation + 1, run=f"of-{age}", start=days_ago(age)))
    run_checks(site.lake, ["steps"])
    monkeypatch.chdir(site.folder)
    (site.folder / "ranklake.toml").write_text(f'[lake]\nuri = "{site.folder}/lake"\n')
    given = ["retain", "hold", "--reason", "a claim", "--until", LATER.isoformat(), "--json", "--where"]
    assert run([*given, "incident=steps/steps_of_all_ranks"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["where"] == {"table": ["quality_results", "rejects", "steps"]}
    assert (found["first_date"], found["last_date"]) == (str(days_ago(100).date()), None)
    assert {item.partition_date for item in plan(site).items if item.table == "steps"} == {days_ago(200).date()}
    assert run([*given, "incident=steps/steps_of_all_rank"]) == 2
    assert "steps/steps_of_all_ranks" in capsys.readouterr().err
    assert run([*given, "incident=steps/steps_of_all_ranks", "--where", "run=of-100"]) == 2
    assert "cannot be combined with other conditions" in capsys.readouterr().err
