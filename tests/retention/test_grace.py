"""Grace: what a plan took can be brought back for some days, once, and nothing brings it back afterwards."""

import json
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from archiving import STEPS, archived, policies_in
from governed import Site, any_rows, die_before
from retaining import (
    POLICIES,
    TODAY,
    agree,
    bring_days,
    carry_out,
    days_ago,
    keeping,
    plan,
    purge_after,
    set_forward,
    with_period,
)
from segments import step_rows
from ssh_keys import Keys, needs_ssh_keygen

from ranklake.cli import run
from ranklake.lake.audit import clock
from ranklake.lake.audit import trail as audit
from ranklake.lake.audit.proof import prove
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.plan import RefusedPlanError, last_finished
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.archive.register import archives, examine
from ranklake.retention.archive.sweeping import sweep_archives
from ranklake.retention.erasure.apply import apply as erase
from ranklake.retention.erasure.apply import approve as approve_erasure
from ranklake.retention.erasure.archived import HeldError
from ranklake.retention.erasure.plan import make_plan as make_erasure
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.plans import purge
from ranklake.retention.plans.cancel import CancelError, cancel
from ranklake.retention.plans.purge import compose, purge_due
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.policies.read import PACKAGED
from ranklake.retention.proposals.kept import kept_plans
from ranklake.retention.proposals.retention_plans import PURGE_BEGIN as BEGIN
from ranklake.retention.proposals.retention_plans import register
from ranklake.retention.sweep import sweep

DAYS = 7
KEEPING = keeping(days=DAYS)
WHO = "Carla Canceller"


@pytest.fixture
def later(monkeypatch):
    """Return what sets the clock, and a machine's uptime with it, forward by days; or the clock alone."""
    return partial(set_forward, monkeypatch)


def applied(site, policies=KEEPING):
    """Plan, approve and apply what is due; return the plan."""
    made = plan(site, TODAY, policies)
    agree(site, made.name)
    return carry_out(site, made.name, TODAY, policies)[0]


def sound(site):
    """Look whether books, trail and removals add up; return the balances."""
    assert removal_faults(site.lake) == []
    assert prove(site.lake).whole
    return site.balances()


def data_files(site, table="steps"):
    return sorted(path.name for path in (site.folder / "lake/tables" / table).rglob("*.parquet"))


def test_rows_go_at_once_and_come_back(site):
    """An applied plan's rows are in no table; cancelled, every one is there again, once, and the books add up."""
    bring_days(site, [0, 91, 200])
    before = site.keys()
    done = applied(site)
    assert (done.state, site.rows("steps").__len__(), done.kept_until.date() >= TODAY) == ("applied", 10, True)
    assert sound(site)["steps"].retired == 20
    found, fresh = cancel(site.lake, done.name, WHO)
    assert (found.state, fresh) == ("cancelled", True)
    assert site.keys() == before
    assert sound(site)["steps"].retired == 0
    assert cancel(site.lake, done.name, WHO) == (found, False), "twice is once"
    assert site.keys() == before
    assert plan(site, TODAY, KEEPING).name != done.name, "the rows are due as before, in other files"


def test_nothing_comes_back_before_it_is_cancelled(site, later):
    """Upkeep, sweeps, replays' sources and the next plan leave kept files and their segments alone."""
    bring_days(site, [0, 91])
    done = applied(site)
    held = data_files(site)
    segments = list(site.spool.rglob("*.parquet"))
    assert sweep(site.lake, Spool(str(site.spool)), WHO).files == 0
    upkeep(site.lake, InProcess(), grace=timedelta(0))
    assert set(data_files(site)) <= set(held)
    assert [file.path.rpartition("/")[2] in data_files(site) for file in kept_plans(site.lake.tables)[0].files] == [
        True
    ]
    assert list(site.spool.rglob("*.parquet")) == segments
    assert plan(site, TODAY, KEEPING) is None
    assert len(site.rows("steps")) == 10
    later(DAYS + 1)
    assert purge_due(site.lake, WHO).plans == (done.name,)
    assert sweep(site.lake, Spool(str(site.spool)), WHO).segments == 1


def test_what_another_program_restored_is_neither_purged_nor_doubled(site, later):
    """The table has the kept files again: a purge would take them from it, and a cancellation bring rows twice."""
    bring_days(site, [0, 91, 200])
    done = applied(site)
    handle = delta_table(site.lake.store, "steps")
    version = handle.version()
    handle.restore(version - 1)
    before = site.keys()
    later(DAYS + 1)
    ((name, why),) = purge_due(site.lake, WHO).waiting
    assert name == done.name
    assert why.startswith("steps has 20 rows of it again: another program restored the table; with it, restore the ver")
    with pytest.raises(CancelError, match="steps has 20 rows of it again, by another program"):
        cancel(site.lake, done.name, WHO)
    assert site.keys() == before
    handle.update_incremental()
    handle.restore(version)
    assert purge_due(site.lake, WHO).plans == (done.name,)
    assert len(site.rows("steps")) == 10
    sound(site)


def test_after_its_grace_it_is_purged_for_good(site, later):
    """When the grace is over the files go by a numbered plan of its own; then a cancellation says why it cannot be."""
    bring_days(site, [0, 91, 200])
    done = applied(site)
    assert purge_due(site.lake, WHO).plans == ()
    assert len(data_files(site)) == 3
    later(DAYS + 1)
    before = last_finished(site.lake.tables)
    assert purge_due(site.lake, WHO).plans == (done.name,)
    assert len(data_files(site)) == 1
    assert last_finished(site.lake.tables) == before + 1
    assert purge_due(site.lake, WHO) == type(purge_due(site.lake, WHO))()
    with pytest.raises(CancelError, match="purged at"):
        cancel(site.lake, done.name, WHO)
    assert sound(site)["steps"].retired == 20


def test_what_cannot_be_cancelled_says_why(site):
    """A plan that was not applied, and one that kept nothing, are refused by name; nothing changes."""
    bring_days(site, [0, 91])
    made = plan(site)
    with pytest.raises(CancelError, match="was not applied"):
        cancel(site.lake, made.name, WHO)
    agree(site, made.name)
    carry_out(site, made.name)
    with pytest.raises(CancelError, match="without a grace period"):
        cancel(site.lake, made.name, WHO)
    assert len(site.rows("steps")) == 10


def test_a_clock_set_forward_purges_nothing(site, later):
    """Where the machine's uptime says that the days did not pass, the files stay, whatever the clock says."""
    bring_days(site, [0, 91])
    done = applied(site)
    later(DAYS + 1, up_too=False)
    if clock.uptime() is None:
        pytest.skip("this system tells no uptime")
    ((name, why),) = purge_due(site.lake, WHO).waiting
    assert name == done.name
    assert "ran only 0.0 of 7.0 days" in why
    assert cancel(site.lake, done.name, WHO)[1]
    assert len(site.rows("steps")) == 20


def test_a_hold_stops_the_purge(site, later):
    """A legal hold that is set in the grace keeps the files, and the plan can still be cancelled afterwards."""
    bring_days(site, [0, 91])
    done = applied(site)
    hold = set_hold(site.lake, ["table=steps", "run=r1"], "a case", TODAY + timedelta(days=99), "Lee Gal")
    later(DAYS + 1)
    ((_, why),) = purge_due(site.lake, WHO).waiting
    assert hold.name in why
    assert cancel(site.lake, done.name, WHO)[1]
    assert len(site.rows("steps")) == 20


def test_a_hold_that_is_set_while_it_is_purged(site, later, monkeypatch):
    """Set before the audit log has that the purge began, it keeps the files, although they were looked at before."""
    bring_days(site, [0, 91])
    done = applied(site)
    later(DAYS + 1)
    genuine, until = purge.audit.record, TODAY + timedelta(days=99)

    def record(*words, **more):
        with monkeypatch.context() as then:
            then.setattr(purge.audit, "record", genuine)
            set_hold(site.lake, ["table=steps", "run=r1"], "a case", until, "Lee Gal")
        return genuine(*words, **more)

    with monkeypatch.context() as then:
        then.setattr(purge.audit, "record", record)
        purge_due(site.lake, WHO)
    assert len(kept_plans(site.lake.tables)) == 1
    assert cancel(site.lake, done.name, WHO)[1]
    assert len(site.rows("steps")) == 20


def test_a_hold_keeps_an_archive_that_ended(tmp_path, later):
    """Its rows are in no table, and its files are evidence all the same: the purge waits, and it can be cancelled."""
    site = Site(tmp_path)
    policies = policies_in(tmp_path, STEPS)
    bring_days(site, [0, 40])
    archived(site, found=policies)
    done = applied(site, replace(with_period("raw", 35, policies), grace_days=DAYS))
    hold = set_hold(site.lake, ["table=steps", "run=r1"], "a case", TODAY + timedelta(days=99), "Lee Gal")
    later(DAYS + 1)
    ((name, why),) = purge_due(site.lake, WHO).waiting
    assert (name, hold.name in why) == (done.name, True)
    sweep_archives(site.lake.tables)
    assert len(list((tmp_path / "archive").rglob("*.parquet"))) == 1
    cancel(site.lake, done.name, WHO)
    assert len(archives(site.lake.tables)) == 1


def test_a_hold_asks_for_a_column_without_values(site, later):
    """A file has no such column: its rows are none that the hold is about, neither for a purge nor for an erasure."""
    person = "ada@example.org"
    site.bring(any_rows("logs", 3, start=days_ago(99), message=[f"mail {person}"] * 3), "logs")
    done = applied(site)
    where = ["table=logs", "severity=error"]
    set_hold(site.lake, where, "a case", TODAY + timedelta(days=99), "Lee Gal")
    assert make_erasure(Reach(site.lake, Spool(str(site.spool))), subject_of(site.lake, [person])) is not None
    later(DAYS + 1)
    assert purge_due(site.lake, WHO).plans == (done.name,)


def test_some_rows_of_a_partition_come_back(tmp_path):
    """Of a partition that kept other rows, those that went come back beside them, and beside rows that came since."""
    site = Site(tmp_path)
    rules = "ones: {where: {table: logs, run: one}, delete_after_days: 5, reason: short}"
    policies = replace(policies_in(tmp_path, rules), grace_days=DAYS)
    for segment, name in enumerate(("one", "two")):
        rows = any_rows(
            "logs", 6, segment=segment, run=name, incarnation=segment + 1, start=days_ago(9), message=["a"] * 6
        )
        site.bring(rows, "logs", run=name, incarnation=segment + 1)
    upkeep(site.lake, InProcess())  # both in one file
    before = site.keys("logs")
    done = applied(site, policies)
    assert {row["run"] for row in site.rows("logs")} == {"two"}
    late = any_rows("logs", 3, run="two", incarnation=9, start=days_ago(9), message=["late"] * 3)
    site.bring(late, "logs", run="two", incarnation=9)
    upkeep(site.lake, InProcess(), grace=timedelta(0))
    assert cancel(site.lake, done.name, WHO)[1]
    assert site.keys("logs") - before == {(9, 0, slot): 1 for slot in range(3)}
    assert before - site.keys("logs") == {}
    sound(site)


def test_archived_rows_come_back_and_their_archive_goes(tmp_path):
    """Rows that moved are in their table again, and in no archive."""
    site = Site(tmp_path)
    policies = replace(policies_in(tmp_path, STEPS), grace_days=DAYS)
    bring_days(site, [0, 40])
    before = site.keys()
    archived(site, found=policies)
    assert len(list((tmp_path / "archive").rglob("*.parquet"))) == 1
    (done,) = register(site.lake.tables).values()
    cancel(site.lake, done.name, WHO)
    assert site.keys() == before
    assert archives(site.lake.tables) == []
    sweep_archives(site.lake.tables)
    assert list((tmp_path / "archive").rglob("*.parquet")) == []
    sound(site)


@pytest.mark.slow
def test_an_archive_that_ended_is_there_again(tmp_path, later):
    """An archive that a plan ends keeps its files for the grace; cancelled, it is known as before."""
    site = Site(tmp_path)
    policies = policies_in(tmp_path, STEPS)
    bring_days(site, [0, 40])
    archived(site, found=policies)
    (before,) = archives(site.lake.tables)
    later_policies = replace(with_period("raw", 35, policies), grace_days=DAYS)
    done = applied(site, later_policies)
    assert archives(site.lake.tables) == []
    sweep_archives(site.lake.tables)
    assert len(list((tmp_path / "archive").rglob("*.parquet"))) == 1
    cancel(site.lake, done.name, WHO)
    assert archives(site.lake.tables) == [before]
    done = applied(site, later_policies)
    later(DAYS + 1)
    assert purge_due(site.lake, WHO).plans == (done.name,)
    assert list((tmp_path / "archive").rglob("*.parquet")) == []


@pytest.mark.slow
def test_downsampled_rows_come_back_and_aggregates_go(tmp_path):
    """Rows are there again, and their aggregates are not: a later plan counts each row once."""
    site = Site(tmp_path)
    rule = "curves: {where: {table: steps}, downsample: {after_days: 30, interval: 5m}, reason: curves}"
    policies = replace(policies_in(tmp_path, rule), grace_days=DAYS)
    bring_days(site, [0, 40, 41])
    before = site.keys()
    done = applied(site, policies)
    assert len(site.rows("steps")) == 10
    assert site.rows("downsampled")
    cancel(site.lake, done.name, WHO)
    assert site.keys() == before
    assert site.rows("downsampled") == []
    sound(site)
    applied(site, policies)
    assert sum(row["rows"] for row in site.rows("downsampled") if row["column"] is None) == 20
    sound(site)


@pytest.mark.slow
def test_masked_values_come_back(tmp_path):
    """Values that were masked are there again, in rows that are there; rows that came since stay as they are."""
    site = Site(tmp_path)
    rule = "people: {where: {table: runs, column: git_patch}, mask_after_days: 5, reason: enough}"
    policies = replace(policies_in(tmp_path, rule), grace_days=DAYS)
    site.bring(any_rows("runs", 4, start=days_ago(9), git_patch=["by ada"] * 4), "runs")
    done = applied(site, policies)
    assert "by ada" not in {row["git_patch"] for row in site.rows("runs")}
    late = any_rows("runs", 2, incarnation=9, start=days_ago(9), git_patch=["late"] * 2)
    site.bring(late, "runs", incarnation=9)
    upkeep(site.lake, InProcess(), grace=timedelta(0))
    cancel(site.lake, done.name, WHO)
    assert sorted(row["git_patch"] for row in site.rows("runs")) == ["by ada"] * 4 + ["late"] * 2
    sound(site)
    assert plan(site, TODAY, policies) is not None, "they are due as before"


@pytest.mark.parametrize("rule", ["column: command_line}, mask_after_days", "run: r1}, delete_after_days"])
@pytest.mark.slow
def test_of_two_plans_about_a_row_the_later_is_cancelled_first(tmp_path, rule):
    """Else what it masked would come back in clear by the earlier one's files, or what that one masked in no row."""
    site = Site(tmp_path)
    first = "patch: {where: {table: runs, column: git_patch}, mask_after_days: 5, reason: enough}"
    second = f"other: {{where: {{table: runs, {rule}: 6, reason: enough}}"
    told = {"git_patch": ["by ada"] * 4, "command_line": ["train --mail ada@example.org"] * 4}
    site.bring(any_rows("runs", 4, start=days_ago(9), **told), "runs")
    one = applied(site, replace(policies_in(tmp_path, first), grace_days=DAYS))
    two = applied(site, replace(policies_in(tmp_path, first, second), grace_days=DAYS))
    with pytest.raises(CancelError, match=f"{two.name} took, or masked.*cancel {two.name} first"):
        cancel(site.lake, one.name, WHO)
    assert "ada@example.org" not in str(site.rows("runs"))
    for done in (two, one):
        cancel(site.lake, done.name, WHO)
    assert {(row["git_patch"], row["command_line"]) for row in site.rows("runs")} == {
        ("by ada", "train --mail ada@example.org")
    }
    sound(site)


@pytest.mark.slow
def test_what_was_masked_since_for_good_stays_masked(tmp_path):
    """A later plan without a grace masked other values of the rows: nothing of them comes back; other dates do."""
    site = Site(tmp_path)
    first = "patch: {where: {table: runs, column: git_patch}, mask_after_days: 5, reason: enough}"
    second = "line: {where: {table: runs, column: command_line}, mask_after_days: 20, reason: enough}"
    for segment, age in enumerate((9, 30)):
        told = {"git_patch": ["by ada"], "command_line": [f"mail ada@example.org {age}"]}
        site.bring(any_rows("runs", 1, segment=segment, start=days_ago(age), **told), "runs", rows_before=segment)
    one = applied(site, replace(policies_in(tmp_path, first), grace_days=DAYS))
    applied(site, policies_in(tmp_path, first, second))
    cancel(site.lake, one.name, WHO)
    assert sorted((row["git_patch"], row["command_line"]) for row in site.rows("runs") if row["git_patch"]) == [
        ("by ada", "mail ada@example.org 9")
    ]
    assert "ada@example.org 30" not in str(site.rows("runs"))
    sound(site)


@pytest.mark.parametrize("table", ["steps", "retention_plans", "ingest_plans", "audit"])
@pytest.mark.slow
def test_a_cancellation_that_died_is_finished(site, table, monkeypatch):
    """Whoever comes after a process that died in a cancellation finishes it; rows are there once."""
    bring_days(site, [0, 91, 200])
    before = site.keys()
    done = applied(site)
    with monkeypatch.context() as patched:
        die_before(patched, table)
        with pytest.raises(SystemExit):
            cancel(site.lake, done.name, WHO)
    upkeep(site.lake, InProcess())
    cancel(site.lake, done.name, WHO)
    assert site.keys() == before
    sound(site)


@pytest.mark.parametrize("table", ["retention_plans", "ingest_plans", "audit"])
def test_a_purge_that_died_is_finished(site, table, monkeypatch, later):
    """Whoever comes after a process that died in a purge finishes it."""
    bring_days(site, [0, 91])
    done = applied(site)
    later(DAYS + 1)
    with monkeypatch.context() as patched:
        die_before(patched, table)
        with pytest.raises(SystemExit):
            purge_due(site.lake, WHO)
    upkeep(site.lake, InProcess())
    purge_due(site.lake, WHO)
    assert register(site.lake.tables)[done.name].purged is not None
    assert len(data_files(site)) == 1
    sound(site)


@pytest.mark.parametrize("table", ["retention_plans", "ingest_plans"])
def test_a_purge_that_died_is_finished_under_a_clock_set_back(site, table, monkeypatch):
    """The audit log says that the grace was over when it was begun: whoever finds it finishes it, on any clock."""
    bring_days(site, [0, 91])
    done = applied(site)
    with monkeypatch.context() as patched:
        die_before(patched, table)
        with pytest.raises(SystemExit):
            purge_after(site, DAYS + 1)
    assert len(data_files(site)) == 1
    site.bring(step_rows(3, segment=7, incarnation=44, start=days_ago(1)), incarnation=44)
    assert register(site.lake.tables)[done.name].purged is not None
    sound(site)


@pytest.mark.slow
def test_a_purge_in_the_grace_is_refused(site):
    """A plan whose row of the audit log is missing, or was written in the grace, deletes nothing, by name."""
    bring_days(site, [0, 91])
    done = applied(site)
    before = data_files(site)
    purge, number = kept_plans(site.lake.tables)[0], last_finished(site.lake.tables) + 1
    for begun, match in ((False, "does not say that it was begun"), (True, "was begun in the grace")):
        if begun:
            audit.record(site.lake, WHO, BEGIN, done.name, None, {})
        found = compose(site.lake.store, purge, WHO, number)
        forged = Path(site.lake.path(found.name))
        forged.write_bytes(found.to_json())
        with pytest.raises(RefusedPlanError, match=match):
            upkeep(site.lake, InProcess())
        forged.unlink()
    assert data_files(site) == before
    assert cancel(site.lake, done.name, WHO)[1]


def test_plans_keep_what_is_theirs(site, later):
    """Of two plans about one date each brings back, or purges, only what it took."""
    bring_days(site, [0, 91])
    first = applied(site)
    late = step_rows(5, segment=7, incarnation=44, start=days_ago(91))
    site.bring(late, incarnation=44)
    second = applied(site, POLICIES)
    assert second.kept_until is None
    assert len(kept_plans(site.lake.tables)[0].files) == 1
    assert cancel(site.lake, first.name, WHO)[1]
    assert len(site.rows("steps")) == 20
    sound(site)


@pytest.mark.slow
def test_what_an_erasure_took_does_not_come_back(tmp_path):
    """A person who is erased in the grace is in no kept file; the rows of others come back, and the books add up."""
    site = Site(tmp_path)
    rules = "ones: {where: {table: logs, run: one}, delete_after_days: 5, reason: short}"
    policies = replace(policies_in(tmp_path, rules), grace_days=DAYS)
    person = "ada.lovelace@example.org"
    lines = [f"mail {person}", *["by nobody"] * 3]
    for segment, (name, age) in enumerate((("one", 9), ("two", 9), ("one", 40))):
        own = {"run": name, "incarnation": segment + 1, "start": days_ago(age), "message": lines}
        site.bring(any_rows("logs", 4, segment=segment, **own), "logs", run=name, incarnation=segment + 1)
    upkeep(site.lake, InProcess())
    done = applied(site, policies)
    reach, subject = Reach(site.lake, Spool(str(site.spool))), subject_of(site.lake, [person])
    made = make_erasure(reach, subject)
    approve_erasure(site.lake, made.name, "Ada Approver")
    assert erase(reach, made.name, subject, "Otto Operator").certificate.is_clean
    assert site.places_of(person) == []
    assert len(site.rows("logs")) == 3
    assert cancel(site.lake, done.name, WHO)[1]
    assert [row["message"] for row in site.rows("logs")] == ["by nobody"] * 9
    assert site.places_of(person) == []
    sound(site)


@pytest.mark.slow
def test_an_erasure_goes_into_archives_that_ended(tmp_path):
    """A person who is erased in the grace is in no archive that a cancellation brings back."""
    site = Site(tmp_path)
    person = "ada.lovelace@example.org"
    rule = "cold: {where: {table: logs}, archive: {after_days: 10, to: TO}, reason: rarely read}"
    policies = policies_in(tmp_path, rule)
    site.bring(any_rows("logs", 2, start=days_ago(20), message=[f"mail {person}", "by nobody"]), "logs")
    archived(site, found=policies)
    done = applied(site, replace(with_period("logs", 15, policies), grace_days=DAYS))
    reach, subject = Reach(site.lake, Spool(str(site.spool))), subject_of(site.lake, [person])
    made = make_erasure(reach, subject)
    approve_erasure(site.lake, made.name, "Ada Approver")
    assert erase(reach, made.name, subject, "Otto Operator").certificate.is_clean
    cancel(site.lake, done.name, WHO)
    (back,) = archives(site.lake.tables)
    assert back.rows == 1
    assert [one.faults for one in examine(site.lake.store, [back])] == [()]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and person.encode() in path.read_bytes()]


def test_nobody_is_erased_from_what_a_hold_keeps(tmp_path):
    """A legal hold about a person's rows in kept files refuses the erasure, as it does in tables."""
    site = Site(tmp_path)
    person = "ada.lovelace@example.org"
    site.bring(any_rows("logs", 1, start=days_ago(99), message=[f"mail {person}"]), "logs")
    applied(site)
    hold = set_hold(site.lake, ["table=logs", "run=r1"], "a case", TODAY + timedelta(days=99), "Lee Gal")
    with pytest.raises(HeldError, match=hold.name):
        make_erasure(Reach(site.lake, Spool(str(site.spool))), subject_of(site.lake, [person]))


@pytest.fixture
def command(site, monkeypatch, capfd):
    """Run a command on the lake; return its exit code, its output and what it told beside."""
    monkeypatch.chdir(site.folder)
    monkeypatch.setenv("HOME", str(site.folder))
    (site.folder / "policies").mkdir()
    (site.folder / "policies/all.yaml").write_text(
        (PACKAGED / "defaults.yaml").read_text().replace("version: 1", f"version: 1\ngrace_days: {DAYS}")
    )
    (site.folder / "ranklake.toml").write_text('[retention]\npolicies = "policies"\n')

    def call(*args):
        code = run([*args, "--lake", str(site.folder / "lake")])
        return code, *capfd.readouterr()

    return call


@pytest.mark.slow
def test_as_people_run_it(site, command, later):
    """The grace of the policies is told when a plan is applied and listed; cancelled and purged likewise."""
    bring_days(site, [0, 91])
    name = json.loads(command("retain", "plan", "--json")[1])["plan"]["retention_plan"]
    command("retain", "approve", name, "--by", "Ada")
    _, out, _ = command("retain", "apply", name, "--by", "Otto")
    assert f"ranklake retain cancel {name}" in out
    assert f"ranklake retain cancel {name}" in command("retain", "list")[1]
    assert f"{name} keeps what it took: it can be cancelled until" in command("upkeep")[1]
    code, out, _ = command("retain", "cancel", name, "--by", "Carla")
    assert (code, "10 rows of 1 partition are back by plan" in out) == (0, True)
    code, out, _ = command("retain", "cancel", name, "--by", "Carla")
    assert (code, "cancelled already" in out) == (0, True)
    assert "cancelled" in command("retain", "list")[1]
    name = json.loads(command("retain", "plan", "--json")[1])["plan"]["retention_plan"]
    command("retain", "approve", name, "--by", "Ada")
    command("retain", "apply", name, "--by", "Otto")
    later(DAYS + 1)
    assert json.loads(command("upkeep", "--dry-run", "--json")[1])["retention"]["plans"] == [name]
    assert f"what retention plans kept deleted: {name}" in command("upkeep")[1]
    code, _, told = command("retain", "cancel", name, "--by", "Carla")
    assert (code, "purged at" in told) == (2, True)
    assert "purged since" in command("retain", "list")[1]


@needs_ssh_keygen
@pytest.mark.slow
def test_where_approvals_are_signed_another_person_agrees(site, command):
    """One person proposes to cancel, another approves; until then nothing comes back, and the audit log verifies."""
    bring_days(site, [0, 91])
    keys = Keys(site.folder / "keys")
    keys.allow("pia", "ada", "otto")
    with (site.folder / "ranklake.toml").open("a") as file:
        file.write(f'[approvals]\nallowed_signers = "{keys.file}"\n')

    def by(who, *args):
        return command("retain", *args, "--key", str(keys.path(who)))

    name = json.loads(by("pia", "plan", "--json")[1])["plan"]["retention_plan"]
    code, out, _ = by("ada", "approve", name)
    assert (code, f"apply it with 'ranklake retain apply {name} --key" in out) == (0, True)
    assert by("otto", "apply", name)[0] == 0
    code, out, _ = by("pia", "cancel", name)
    assert (code, "another person" in out) == (0, True)
    assert by("otto", "cancel", name)[0] == 2, "nobody approved it"
    assert by("pia", "cancel", name, "--approve")[0] == 2, "its author"
    assert len(site.rows("steps")) == 10
    assert by("ada", "cancel", name, "--approve", "--reason", "by mistake")[0] == 0
    assert by("ada", "cancel", name)[0] == 2, "whoever approved it"
    code, out, _ = by("otto", "cancel", name)
    assert (code, "are back" in out) == (0, True)
    assert len(site.rows("steps")) == 20
    assert command("audit", "verify")[0] == 0
    sound(site)
