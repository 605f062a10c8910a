"""Registers, ledgers and trails that do not agree: nothing goes by them, and status says what is missing."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from governed import Site
from retaining import APPROVER, agree, bring_days, carry_out, plan

from ranklake.cli import run
from ranklake.lake.audit import trail as audit
from ranklake.lake.audit.chain import GENESIS, digest
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.plan import Plan
from ranklake.lake.tables import commit
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.proposals.approvals import NoEvidenceError
from ranklake.retention.proposals.proposals import AlteredProposalError
from ranklake.retention.proposals.retention_plans import register


def rewrite(site, table, change):
    """Put other rows in the place of a table's, the way somebody with keys to the bucket would."""
    handle = delta_table(site.lake.store, table)
    rows = pa.Table.from_pylist(change(site.rows(table)), schema=arrow_schema(contract(table)))
    number = number_of(handle)
    new = append_files(site.lake.store, contract(table), rows, number) if rows.num_rows else []
    genuine, commit.number_of = commit.number_of, lambda _: -1
    also = {audit.ROWS: rows.num_rows} if table == "audit" else None
    try:
        assert swap(handle, number, add=new, remove=files(handle), also=also)
    finally:
        commit.number_of = genuine


def rechained(rows):
    """Return rows of a trail as a whole chain, which whoever may write the bucket can make."""
    before, done = GENESIS, []
    for place, row in enumerate(sorted(rows, key=lambda row: row["seq"])):
        linked = {**row, "seq": place, "prev_sha256": before}
        done.append({**linked, "sha256": digest(linked)})
        before = done[-1]["sha256"]
    return done


def without_action(site, action):
    """Take a row out of the audit log, and make it whole without it, heads and all."""
    rewrite(site, "audit", lambda rows: rechained([row for row in rows if row["action"] != action]))
    shutil.rmtree(site.folder / "lake/audit")


def without_kind(site, kind):
    rewrite(site, "retention_plans", lambda rows: [row for row in rows if row["row_kind"] != kind])


def swapped(site):
    """Give the plan's items the files of today."""
    (today,) = (row for row in site.rows("steps")[-1:])
    rewrite(
        site,
        "retention_plans",
        lambda rows: [{**row, "partition_date": today["date"]} if row["row_kind"] == "item" else row for row in rows],
    )


def without_plan_file(site):
    (one,) = register(site.lake.tables).values()
    Path(site.lake.path(Plan(one.plan, "", 0).name)).unlink()


def more_rows(site):
    rewrite(
        site,
        "ingest_plans",
        lambda rows: [{**row, "tables": '{"steps": -11}'} if row["kind"] == "retention" else row for row in rows],
    )


def of_kind(kind):
    def change(site):
        rewrite(
            site,
            "ingest_plans",
            lambda rows: [{**row, "kind": kind} if row["kind"] == "retention" else row for row in rows],
        )

    return change


MANIPULATIONS = {
    "no approval in the audit log": (lambda s: without_action(s, "retention.approve"), "the audit log has no approval"),
    "no begin in the audit log": (lambda s: without_action(s, "retention.apply"), "was begun"),
    "no end in the audit log": (
        lambda s: without_action(s, "retention.applied"),
        "was applied; run 'ranklake retain",
    ),
    "no trail": (lambda s: rewrite(s, "audit", lambda _: []), "the audit log is broken"),
    "no approval in the register": (lambda s: without_kind(s, "approval"), "the register has no approval"),
    "no plan in the register": (lambda s: without_kind(s, "plan"), "the register does not have the plan"),
    "no application in the register": (lambda s: without_kind(s, "application"), "the register has no plan that"),
    "no register": (lambda s: rewrite(s, "retention_plans", lambda _: []), "the register does not know it"),
    "items swapped": (swapped, "were altered"),
    "no plan file": (without_plan_file, "its plan file is gone"),
    "other rows in the ledger": (more_rows, "names other rows"),
    "a merge that removed": (of_kind("compaction"), "such a plan removes none"),
    "an erasure by nobody": (of_kind("erasure"), "nothing says who approved that"),
}
"""What is done to a lake after a retention, and what status says of it."""


@pytest.fixture(scope="module")
def retained(tmp_path_factory):
    """Give a lake in which a retention was applied."""
    site = Site(tmp_path_factory.mktemp("retained"))
    bring_days(site, [0, 200])
    made = plan(site)
    agree(site, made.name)
    carry_out(site, made.name)
    return site


@pytest.mark.parametrize("what", MANIPULATIONS)
def test_status_names_what_a_removal_lacks(retained, tmp_path, capfd, what):
    """Ledger, plan file, register and trail are held against one another; each that is missing is named, exit 1."""
    shutil.copytree(retained.folder / "lake", tmp_path / "lake")
    site = Site(tmp_path)
    assert removal_faults(site.lake) == []
    harm, said = MANIPULATIONS[what]
    harm(site)
    assert run(["status", "--lake", site.lake.uri]) == 1
    assert said in capfd.readouterr().err
    run(["status", "--json", "--lake", site.lake.uri])
    facts = json.loads(capfd.readouterr().out)
    assert facts["removals"] or not facts["audit"]["whole"]


def test_an_honest_lake_has_nothing_missing(retained, capfd):
    """After a retention, status is green."""
    assert run(["status", "--lake", retained.lake.uri]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("approved", [False, True])
def test_items_swapped_under_a_name_are_refused(site, approved):
    """A plan whose items are not those that its name stands for can be neither approved nor applied."""
    bring_days(site, [0, 200])
    made = plan(site)
    if approved:
        agree(site, made.name)
    swapped(site)
    with pytest.raises(AlteredProposalError, match="were altered"):
        (carry_out if approved else agree)(site, made.name)
    assert register(site.lake.tables)[made.name].state == "altered"
    assert len(site.rows("steps")) == 20


def test_an_approval_that_only_the_register_has_is_none(site):
    """A row in the register says nothing that the audit log does not, nor one of a plan with other numbers."""
    bring_days(site, [0, 200])
    made = plan(site)
    agree(site, made.name)
    without_action(site, "retention.approve")
    with pytest.raises(NoEvidenceError, match="has no approval"):
        carry_out(site, made.name)
    audit.record(site.lake, APPROVER, "retention.approve", made.name, None, {"items_sha256": "0" * 64})
    with pytest.raises(NoEvidenceError, match="other items"):
        carry_out(site, made.name)
    assert len(site.rows("steps")) == 20


def test_nothing_goes_by_a_broken_trail(site):
    """Where the audit log is not whole it vouches for nothing."""
    bring_days(site, [0, 200])
    made = plan(site)
    agree(site, made.name)
    audit.record(site.lake, APPROVER, "test.act", "one more")
    rewrite(site, "audit", lambda rows: rows[:1])
    with pytest.raises(NoEvidenceError, match="the audit log is broken"):
        carry_out(site, made.name)
    assert len(site.rows("steps")) == 20


@pytest.mark.parametrize("name", [APPROVER, APPROVER.upper(), f" {APPROVER} "])
def test_who_approved_may_not_apply(site, capfd, name):
    """However the name is spelt; unless there is one person alone, which every output then says."""
    bring_days(site, [0, 200])
    made = plan(site)
    agree(site, made.name)
    before = len(site.rows("audit"))
    assert run(["retain", "apply", made.name, "--by", name, "--lake", site.lake.uri]) == 2
    assert "--single-operator" in capfd.readouterr().err
    assert (len(site.rows("steps")), len(site.rows("audit"))) == (20, before)
    done = run(["retain", "apply", made.name, "--by", name, "--single-operator", "--lake", site.lake.uri])
    assert (done, "single operator" in capfd.readouterr().out) == (0, True)
    assert (run(["retain", "list", "--lake", site.lake.uri]), "single operator" in capfd.readouterr().out) == (0, True)
    run(["retain", "list", "--json", "--lake", site.lake.uri])
    assert json.loads(capfd.readouterr().out)[0]["single_operator"] is True
    told = [json.loads(row["details"]) for row in audit.trail(site.lake.tables) if row["action"] != "retention.approve"]
    assert [row["single_operator"] for row in told] == [True, True]


def test_two_people_are_no_single_operator(site):
    """The flag says nothing where another person applies."""
    bring_days(site, [0, 200])
    made = plan(site)
    agree(site, made.name)
    done, _ = carry_out(site, made.name)
    assert done.single_operator is False
    assert "single_operator" not in json.dumps([row["details"] for row in audit.trail(site.lake.tables)])
