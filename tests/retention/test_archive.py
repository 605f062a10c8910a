"""Rows that rules archive: copied, read again, taken out of the lake by an approved plan, found again."""

import json

import pytest
from archiving import STEPS, archived, data_files
from governed import die_before
from retaining import TODAY, agree, bring_days, carry_out, days_ago, plan
from segments import step_rows

from ranklake.cli import run
from ranklake.lake.plans.plan import RefusedPlanError
from ranklake.retention.archive.register import archives, examine
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.proposals.proposals import VoidProposalError


def test_a_partition_is_copied_and_leaves_the_lake(site, archiving, tmp_path):
    """Its files lie in the archive byte for byte, the register says so, the books add up, and the lake has no copy."""
    found = archiving(STEPS)
    bring_days(site, (40, 10))
    before = {path.name: path.read_bytes() for path in (site.folder / "lake/tables/steps").rglob("date=*/*.parquet")}
    (item,) = archived(site, found)
    assert (item.table, item.partition_date, item.rows) == ("steps", days_ago(40).date(), 10)
    assert item.archive_to == str(tmp_path / "archive")
    copies = data_files(tmp_path / "archive")
    assert copies
    assert all(before[path.name] == path.read_bytes() for path in copies)
    (one,) = archives(site.lake.tables)
    assert (one.table, one.rows, one.files, one.needs_approval) == ("steps", 10, 1, True)
    (looked,) = examine(site.lake.store, [one])
    assert (looked.files, looked.faults, looked.unread) == (1, (), 0)
    assert site.balances()["steps"].retired == 10
    assert removal_faults(site.lake) == []
    left = {path.name for path in (site.folder / "lake/tables/steps").rglob("date=*/*.parquet")}
    assert not left & {path.name for path in copies}
    assert plan(site, TODAY, found) is None


def test_rows_of_a_partition_are_archived_by_run(site, archiving, tmp_path):
    """Only the rows that a rule is about go; the others stay in the lake."""
    found = archiving("one: {where: {table: steps, run: r1}, archive: {after_days: 30, to: TO}, reason: old}")
    site.bring(step_rows(6, run="r1", start=days_ago(40)))
    site.bring(step_rows(4, run="r2", incarnation=8, start=days_ago(40)), run="r2", incarnation=8)
    (item,) = archived(site, found)
    assert item.rows == 6
    assert {row["run"] for row in site.rows("steps")} == {"r2"}
    (one,) = archives(site.lake.tables)
    assert one.rows == 6
    assert [looked.faults for looked in examine(site.lake.store, [one])] == [()]
    assert site.balances()["steps"].retired == 6


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest"])
def test_damaged_archives_are_named(site, archiving, tmp_path, damage):
    """Each file that is not what was written is named, and so is a manifest."""
    found = archiving(STEPS)
    bring_days(site, (40,))
    archived(site, found)
    (file,) = data_files(tmp_path / "archive")
    if damage == "manifest":
        (file,) = (tmp_path / "archive/manifests").iterdir()
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(raw[:-7] if damage == "cut" else raw)
    (looked,) = examine(site.lake.store, archives(site.lake.tables))
    assert len(looked.faults) == 1
    assert str(file) in looked.faults[0]


@pytest.mark.parametrize("table", ["steps", "archives", "retention_plans", "ingest_plans"])
def test_whoever_dies_is_followed_by_the_next(site, archiving, monkeypatch, table):
    """Killed before any commit, the next call archives what was planned, once."""
    found = archiving(STEPS)
    bring_days(site, (40,))
    made = plan(site, TODAY, found)
    agree(site, made.name)
    with monkeypatch.context() as patch:
        die_before(patch, table)
        with pytest.raises(SystemExit):
            carry_out(site, made.name, TODAY, found)
    carry_out(site, made.name, TODAY, found)
    assert [one.rows for one in archives(site.lake.tables)] == [10]
    assert site.rows("steps") == []
    assert removal_faults(site.lake) == []


def test_nothing_leaves_the_lake_whose_archive_does_not_verify(site, archiving, tmp_path, monkeypatch):
    """A plan that is found is refused where its archive is damaged; the application copies anew and goes on."""
    found = archiving(STEPS)
    bring_days(site, (40,))
    made = plan(site, TODAY, found)
    agree(site, made.name)
    with monkeypatch.context() as patch:
        die_before(patch, "steps")
        with pytest.raises(SystemExit):
            carry_out(site, made.name, TODAY, found)
    (file,) = data_files(tmp_path / "archive")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(RefusedPlanError, match="does not verify"):
        site.bring(step_rows(1, segment=9, start=days_ago(1)), rows_before=10)
    assert len(site.rows("steps")) == 10
    carry_out(site, made.name, TODAY, found)
    assert [looked.faults for looked in examine(site.lake.store, archives(site.lake.tables))] == [()]
    assert not [row for row in site.rows("steps") if row["date"] == days_ago(40).date()]


def test_a_plan_says_what_it_leaves_for_the_next(site, archiving, tmp_path, monkeypatch, capsys):
    """Rows of a date that go to another place wait, and the command names the date."""
    found = archiving(
        "one: {where: {table: steps, run: r1}, archive: {after_days: 30, to: TO}, reason: old}",
        "two: {where: {table: steps, run: r2}, archive: {after_days: 30, to: TO-2}, reason: old}",
    )
    site.bring(step_rows(6, run="r1", start=days_ago(40)))
    site.bring(step_rows(4, run="r2", incarnation=8, start=days_ago(40)), run="r2", incarnation=8)
    monkeypatch.chdir(site.folder)
    (site.folder / "ranklake.toml").write_text(
        f'[lake]\nuri = "{site.lake.uri}"\n[retention]\npolicies = "{tmp_path}/policies"\n'
    )
    assert run(["retain", "plan"]) == 0
    assert f"steps {days_ago(40).date()}: more is due there than one plan takes" in capsys.readouterr().err
    (item,) = archived(site, found)
    assert item.rows == 6
    assert run(["retain", "plan", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["left_for_next"], said["plan"]["rows"]) == ({}, 4)


def test_what_a_hold_is_about_is_not_archived(site, archiving):
    """A legal hold keeps rows where they are."""
    found = archiving(STEPS)
    bring_days(site, (40,))
    set_hold(site.lake, ["table=steps"], "a case", TODAY.replace(year=TODAY.year + 1), "Lee Gal")
    assert plan(site, TODAY, found) is None


def test_another_place_than_was_approved_voids_the_plan(site, archiving, tmp_path):
    """Who approved one place approved no other."""
    bring_days(site, (40,))
    made = plan(site, TODAY, archiving(STEPS))
    agree(site, made.name)
    with pytest.raises(VoidProposalError, match="elsewhere"):
        carry_out(site, made.name, TODAY, archiving(STEPS, to=tmp_path / "another"))
    assert len(site.rows("steps")) == 10


def test_archives_end_by_their_own_period(site, archiving, tmp_path):
    """Rows that no rule keeps any longer end as archives do: by an approved plan; a hold keeps the archive."""
    found = archiving(STEPS)
    bring_days(site, (40,))
    archived(site, found)
    later = days_ago(-60).date()
    (item,) = plan(site, later, found).items
    assert (item.table, item.partition_date) == ("archive/steps", days_ago(40).date())
    (done,) = archived(site, found, later)
    assert done == item
    assert archives(site.lake.tables) == []
    assert removal_faults(site.lake) == []
    assert plan(site, later, found) is None


def test_a_hold_keeps_an_archive(site, archiving):
    """What a hold may be about stays archived."""
    found = archiving(STEPS)
    bring_days(site, (40,))
    archived(site, found)
    set_hold(site.lake, ["run=r1"], "a case", TODAY.replace(year=TODAY.year + 1), "Lee Gal")
    assert plan(site, days_ago(-60).date(), found) is None
