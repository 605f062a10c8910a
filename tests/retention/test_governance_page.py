"""The governance page: policies against what is stored, what is due and waits, numbers by their SQL, no person."""

import gc
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from archiving import STEPS, archived, policies_in
from governed import Site, any_rows
from page_read import compared
from retaining import POLICIES, TODAY, agree, bring_days, carry_out, days_ago, keeping, plan, with_period
from segments import step_rows
from subjects import ADA, EMAIL, VALUES, person_rows

from ranklake.cli import run
from ranklake.insight.catalog.refresh import refresh
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.plans.cancel import cancel
from ranklake.retention.proposals.proposals import ProposalKind
from ranklake.retention.report.facts import KINDS, governance, waiting
from ranklake.views.html import site as publishing
from ranklake.views.html.governance_pages import section
from ranklake.views.html.shell import render

LATER = TODAY + timedelta(days=100)
OVERDUE = replace(
    POLICIES,
    rules=tuple(replace(one, review=TODAY - timedelta(days=1)) if one.name == "raw" else one for one in POLICIES.rules),
)


def needs_of(lake, policies=POLICIES):
    """Return what needs a look, by what it is."""
    return {one.title: one for one in governance(lake, policies, TODAY).needs}


@pytest.mark.slow
def test_what_is_due_waits_went_and_is_held(site):
    """Due rows are in no plan, then a plan waits, then it is applied; a hold and an overdue review are told."""
    bring_days(site, [100, 95, 1])
    refresh(site.lake)
    found = governance(site.lake, POLICIES, TODAY)
    assert [(row["table"], row["partitions"], row["rows"], row["rules"]) for row in found.due] == [
        ("steps", 2, 20, "raw")
    ]
    steps = {row["table"]: row for row in found.tables.rows}["steps"]
    assert (steps["rule"], steps["period_days"], steps["oldest_days"], steps["over_days"]) == ("raw", 90, 100, 10)
    assert needs_of(site.lake)["What is due is in no plan"].detail.startswith("20 rows of 1 table ")
    made = plan(site)
    (need,) = needs_of(site.lake).values()
    assert (need.title, need.next_step) == (
        f"Retention plan {made.name} waits",
        f"ranklake retain approve {made.name}",
    )
    agree(site, made.name)
    assert [one.lacking for one in waiting(site.lake)] == ["nobody applied it"]
    carry_out(site, made.name)
    set_hold(site.lake, ["run=r1"], "about Ada Lovelace", LATER, "Lena Legal")
    found = governance(site.lake, OVERDUE, TODAY)
    assert ([row["rows"] for row in found.removals.rows], found.due, found.waiting) == ([20], (), ())
    assert list(needs_of(site.lake, OVERDUE)) == ["The review of rule raw is overdue"]
    site.bring(step_rows(7, incarnation=8, start=days_ago(99)))
    refresh(site.lake)
    found = governance(site.lake, OVERDUE, TODAY)
    assert (found.due, found.rows_held) == ((), 7)
    assert section(found).headline == "1 thing to look at; holds keep 7 rows"
    text = render(section(found).pages[0]).decode()
    assert compared(site.lake, text) > 60
    assert "run r1; until " in text
    assert not [name for name in ("Ada", "Lena", "Otto") if name in text]


@pytest.mark.slow
def test_what_left_its_table_and_what_it_costs_is_told(site, tmp_path):
    """Archived ranges, downsampled ones, growth, and a budget with what would mend it, as their commands tell them."""
    curves = "curves: {where: {table: scalars}, downsample: {after_days: 30, interval: 1m}, reason: curves stay}"
    small = "small: {where: {table: steps}, budget_bytes: 1, reason: disks are small}"
    found = with_period("raw", 900, policies_in(tmp_path, STEPS, curves, small))
    bring_days(site, [100, 95, 20, 10])
    values = {"metric": ["loss"] * 4, "value": [1.0] * 4, "kind": ["gauge"] * 4}
    site.bring(any_rows("scalars", 4, start=days_ago(50), **values), "scalars")
    archived(site, found)
    refresh(site.lake)
    told = governance(site.lake, found, TODAY)
    ((table, ranges, rows),) = [(row["table"], row["archives"], row["rows"]) for row in told.archives.rows]
    assert (table, ranges, rows) == ("steps", 2, 20)
    ((table, rows, kept),) = [(row["table"], row["rows"], row["kept_rows"]) for row in told.downsampled.rows]
    assert (table, rows, kept) == ("scalars", 4, 2)
    steps = {row["table"]: row for row in told.costs}["steps"]
    assert steps["rows"] == 20
    assert steps["bytes_per_day"] > 0
    assert [one.title for one in told.needs] == ["The budget of rule small is passed"]
    text = render(section(told).pages[0]).decode()
    assert compared(site.lake, text) > 60
    assert "ranklake retain cost --price NUMBER" in text


@pytest.mark.slow
def test_what_is_in_grace_is_told_with_its_end(site):
    """Until when each plan can be cancelled; one past its grace needs a look; cancelled ones came back."""
    bring_days(site, [100, 95, 1])
    made = plan(site, TODAY, keeping())
    agree(site, made.name)
    done, _ = carry_out(site, made.name, TODAY, keeping())
    found = governance(site.lake, POLICIES, TODAY)
    (row,) = found.grace.rows
    assert (row["retention_plan"], row["rows"], row["kept_until"]) == (made.name, 20, done.kept_until)
    assert [row["became"] for row in found.removals.rows] == ["in grace"]
    text = render(section(found).pages[0]).decode()
    assert compared(site.lake, text) > 10
    assert f"the last until {done.kept_until:%Y-%m-%d}" in text
    over = governance(site.lake, POLICIES, done.kept_until.date() + timedelta(days=1))
    assert f"What retention plan {made.name} took is there still" in {one.title for one in over.needs}
    cancel(site.lake, made.name, "Carla")
    found = governance(site.lake, POLICIES, TODAY)
    assert ([row["became"] for row in found.removals.rows], found.grace.rows) == (["came back"], ())


def test_every_kind_of_proposal_may_wait():
    """A new kind of proposal is on the page, or this fails."""
    kinds = [one for one in gc.get_objects() if type(one) is ProposalKind]
    known = {(one.noun, one.action) for one in kinds if one.command.startswith("ranklake ")}
    assert known == {(one.noun, one.action) for one in KINDS}


@pytest.mark.slow
def test_an_erasure_is_told_with_its_certificate_and_without_its_person(tmp_path):
    """The page of an erased person's lake names an erasure that left nothing, and neither the person nor her mail."""
    site = Site(tmp_path)
    person_rows(site, ADA, EMAIL, 100)
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    refresh(site.lake)
    reach = Reach(site.lake, Spool(str(site.spool)))
    subject = subject_of(site.lake, VALUES)
    made = make_plan(reach, subject)
    propose(site.lake, made, "Paula Proposer")
    waits = needs_of(site.lake)
    assert waits[f"Erasure {made.name} waits"].next_step == f"ranklake erase approve {made.name}"
    before = render(section(governance(site.lake, POLICIES, TODAY)).pages[0]).decode()
    approve(site.lake, made.name, "Anna Approver")
    apply(reach, made.name, subject, "Otto Operator")
    found = governance(site.lake, POLICIES, TODAY)
    (row,) = found.erasures.rows
    assert json.loads(row["details"])["is_clean"]
    text = render(section(found).pages[0]).decode()
    assert "nothing left: " in text
    assert compared(site.lake, text) > 60
    for page in (before, text):
        assert not [one for one in (ADA, EMAIL, "Paula", "Anna", "Otto") if one in page]


def test_a_lake_without_a_catalog_and_one_with_broken_policies_say_so(tmp_path, monkeypatch, capsys):
    """Nothing was looked at yet: unknown with the reason. A file that is no policy: its fault, and exit code 0."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    site = Site(tmp_path)
    out = str(tmp_path / "out")
    assert run(["report", "governance", "--out", out, "--lake", site.lake.uri]) == 0
    assert "nothing waits" in capsys.readouterr().out
    page = tmp_path / "out/governance/index.html"
    assert "ranklake catalog refresh" in page.read_text()
    (tmp_path / "bad.yaml").write_text("version: 1\nrules: {raw: {}}\n")
    (tmp_path / "ranklake.toml").write_text(f'[retention]\npolicies = "{tmp_path}/bad.yaml"\n')
    monkeypatch.chdir(tmp_path)
    assert run(["report", "governance", "--out", out, "--lake", site.lake.uri]) == 0
    assert "The policies cannot be used: " in capsys.readouterr().out
    assert "badge failing" not in page.read_text()
