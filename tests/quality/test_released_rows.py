"""Rows in quarantine that pass under mended contracts go back to their tables, once, when somebody answers for it."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from governed import Site, any_rows, die_before, under
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segments import DAY, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.action_plan import compose, live_files
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.plan import Plan, RefusedPlanError, last_finished, row_files
from ranklake.lake.plans.verification import named_files
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read, read_some
from ranklake.quality.check import run_checks
from ranklake.quality.release import NothingToReleaseError, _write, apply, approve, passing_rows, plan_release
from ranklake.retention.proposals.proposals import VoidProposalError
from ranklake.retention.proposals.registers import with_time
from ranklake.retention.proposals.releases import REGISTER, RELEASES, TABLE

pytestmark = pytest.mark.slow

STRICT = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 3.0, on_fail: quarantine}
"""
MENDED = STRICT.replace("3.0", "30.0")


def lake_under(site, text):
    return under(site.lake, site.overlay(steps=text))


def freed(lake, reason="the bound was wrong"):
    """Release all that passes; return the release."""
    name = plan_release(lake, "Pia", reason).name
    approve(lake, name, "Ada")
    return apply(lake, name, "Otto")[0]


@pytest.fixture
def strict(site):
    """Give a lake with rows in quarantine, and all rows as they were before."""
    site.bring(step_rows(40))
    before = sorted(map(str, site.rows("steps")))
    run_checks(lake_under(site, STRICT))
    assert site.rows("rejects")
    return site, before


def test_rows_come_back_as_they_were(strict):
    """All of them, value for value; rejects is empty, the books add up, and the next check has nothing to take out."""
    site, before = strict
    with pytest.raises(NothingToReleaseError):
        plan_release(lake_under(site, STRICT), "Pia", "nothing was mended")
    lake = lake_under(site, MENDED)
    count = len(site.rows("rejects"))
    done = freed(lake)
    assert done.facts == {"partitions": 0, "rows": count}
    assert sorted(map(str, site.rows("steps"))) == before
    assert site.rows("rejects") == []
    balance = site.balances()["steps"]
    assert (balance.stored, balance.quarantined) == (40, 0)
    assert run_checks(lake).quarantined_rows == 0
    ledger = {row["plan"]: row for row in site.rows("ingest_plans")}[done.plan]
    assert (ledger["kind"], ledger["rows_stored"], ledger["rows_rejected"]) == ("release", 0, 0)
    site.balances()


def test_only_what_passes_goes(strict):
    """A bound half-way lets half of them go; the rest stays in rejects, whole, with its reason."""
    site, _ = strict
    losses = sorted(row["loss"] for row in site.rows("steps"))
    lake = lake_under(site, STRICT.replace("3.0", "3.1"))
    freed(lake)
    left = site.rows("rejects")
    assert left
    assert len(site.rows("steps")) + len(left) == 40
    assert max(row["loss"] for row in site.rows("steps")) <= 3.1
    assert losses[-1] < max(row["loss"] for row in site.rows("steps"))
    site.balances()
    assert {row["reason"] for row in left} == {"loss_small: loss outside … to 3.0"}


def test_what_changed_since_is_void(strict):
    """A contract that lets other rows pass than were approved releases none."""
    site, _ = strict
    name = plan_release(lake_under(site, MENDED), "Pia", "the bound was wrong").name
    lake = lake_under(site, STRICT.replace("3.0", "3.1"))
    approve(lake, name, "Ada")
    with pytest.raises(VoidProposalError, match="other rows pass today"):
        apply(lake, name, "Otto")
    site.balances()


@pytest.mark.parametrize("table", ["rejects", "steps", "quality_releases", "ingest_plans"])
def test_death_on_the_way_converges(strict, table):
    """Whichever commit a process dies before, the next one that applies it finishes it, once."""
    site, before = strict
    lake = lake_under(site, MENDED)
    name = plan_release(lake, "Pia", "the bound was wrong").name
    approve(lake, name, "Ada")
    with pytest.MonkeyPatch.context() as patched:
        die_before(patched, table)
        with pytest.raises(SystemExit):
            apply(lake, name, "Otto")
    done, _ = apply(lake, name, "Otto")
    assert done.state == "applied"
    assert sorted(map(str, site.rows("steps"))) == before
    site.balances()
    assert last_finished(site.lake.tables) == done.plan


def test_what_must_not_come_back_stays_out(strict):
    """A key that the table holds, a row that a person disowned, one with a column that nobody knows."""
    site, before = strict
    lake = lake_under(site, MENDED)
    rejects = read(lake.tables, contract("rejects"))

    def with_column(name, value):
        place = rejects.schema.get_field_index(name)
        return rejects.set_column(place, rejects.schema.field(place), pa.array([value] * len(rejects)))

    row = json.loads(rejects["row"][0].as_py())
    days = rejects["date"].unique().to_pylist()
    for rows in (with_column("source", "disown"), with_column("row", json.dumps({**row, "refused": "x"}))):
        replace_partitions(lake.tables, contract("rejects"), rows, days)
        with pytest.raises(NothingToReleaseError):
            plan_release(lake, "Pia", "the bound was wrong")
    replace_partitions(lake.tables, contract("rejects"), rejects, days)
    freed(lake)
    assert sorted(map(str, site.rows("steps"))) == before
    replace_partitions(lake.tables, contract("rejects"), rejects, days)
    with pytest.raises(NothingToReleaseError):
        plan_release(lake, "Pia", "again")


def test_other_tables_are_left_alone(site):
    """Rows that ingest refused come back, too, on the date that their time says; of named tables only."""
    bad = any_rows("scalars", 3, metric=["train/loss"] * 3, value=[1.0, 2.0, 3.0], start=DAY + timedelta(hours=1))
    site.bring(bad, "scalars")
    site.bring(step_rows(40))
    run_checks(lake_under(site, STRICT))
    with pytest.raises(NothingToReleaseError):
        plan_release(lake_under(site, MENDED), "Pia", "of scalars", ["scalars"])
    assert plan_release(lake_under(site, MENDED), "Pia", "of steps", ["steps"]).items


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bounds=st.lists(st.floats(2.7, 3.3), min_size=2, max_size=4))
def test_quarantine_and_release_are_inverse(tmp_path_factory, bounds):
    """Whatever bounds come one after another: each row is in the table or in rejects, once, and the books add up."""
    site = Site(tmp_path_factory.mktemp("inverse"))
    site.bring(step_rows(40))
    keys = site.keys()
    for bound in bounds:
        lake = lake_under(site, STRICT.replace("3.0", repr(bound)))
        run_checks(lake)
        try:
            freed(lake, f"bound {bound}")
        except NothingToReleaseError:
            assert all(row["loss"] <= bound for row in site.rows("steps"))
        site.balances()
    lake = lake_under(site, MENDED)
    if site.rows("rejects"):
        freed(lake)
    assert site.keys() == keys


def found(site, kind, facts, match):
    """Put a plan where the next is looked for; assert that it is refused, and remove it."""
    forged = Plan(last_finished(site.lake.tables) + 1, kind, 0, facts)
    path = Path(site.lake.path(forged.name))
    path.write_bytes(forged.to_json())
    try:
        with pytest.raises(RefusedPlanError, match=match):
            drive(site.lake, lambda _: None, InProcess())
    finally:
        path.unlink()


def test_a_release_that_nobody_approved_is_refused(strict):
    """A plan in the bucket frees nothing without an approval in the audit log, nor other rows than were approved."""
    site, _ = strict
    lake = lake_under(site, MENDED)
    release = plan_release(lake, "Pia", "the bound was wrong")
    rows = list(passing_rows(lake, ["steps"]))
    number = last_finished(lake.tables) + 1
    whole = _write(lake, release, "Otto", rows, number, alone=False)
    found(site, "release", whole.body, "without approval")
    approve(lake, release.name, "Ada")
    found(site, "release", whole.body, "was begun")
    steps = live_files(lake, "steps", [DAY.date()])
    for change, match in (
        ({"facts": {}}, "nobody may carry out"),
        ({"purge": True, "kept": {"rejects": [], "steps": []}}, "nobody may carry out"),
        ({"add": [one for one in whole.body["add"] if one["table"] != "quality_releases"]}, "nobody may carry out"),
        (compose(number, "release", remove={"steps": steps}, facts=whole.body["facts"]).body, "nobody may carry out"),
    ):
        found(site, "release", {**whole.body, **change}, match)
    assert len(site.rows("rejects")) == rows[0].rows.num_rows
    site.balances()


def test_a_release_of_other_rows_than_were_approved_is_refused(strict):
    """Who changes the plan that somebody began frees no more; put back, it is finished."""
    site, before = strict
    some = lake_under(site, STRICT.replace("3.0", "3.1"))
    name = plan_release(some, "Pia", "the bound was wrong").name
    approve(some, name, "Ada")
    with pytest.MonkeyPatch.context() as patched:
        die_before(patched, "rejects")
        with pytest.raises(SystemExit):
            apply(some, name, "Otto")
    number = last_finished(site.lake.tables) + 1
    path = Path(site.lake.path(Plan(number, "", 0).name))
    began = path.read_bytes()
    every = lake_under(site, MENDED)
    rows = list(passing_rows(every, ["steps"]))
    forged = _write(every, RELEASES.find(every, name), "Otto", rows, number, alone=False)
    path.write_bytes(forged.to_json())
    with pytest.raises(RefusedPlanError, match="other rows than were approved"):
        drive(site.lake, lambda _: None, InProcess())
    plan = Plan.from_json(began, str(path))
    entry = with_time([REGISTER.head_row(RELEASES.find(every, name), "approval", "Otto")])
    others = [one for one in plan.body["add"] if one["table"] != TABLE]
    (row,) = compose(number, "release", add=row_files(every.store, TABLE, entry, number)).body["add"]
    path.write_bytes(replace(plan, body={**plan.body, "add": [*others, row]}).to_json())
    with pytest.raises(RefusedPlanError, match="another row into the register than its own"):
        drive(site.lake, lambda _: None, InProcess())
    path.write_bytes(began)
    assert apply(lake_under(site, STRICT.replace("3.0", "3.1")), name, "Otto")[0].state == "applied"
    assert len(site.rows("steps")) + len(site.rows("rejects")) == len(before)
    assert site.rows("rejects")
    site.balances()


def begun(site, table, lake):
    """Begin to release all that passes, and die before a commit; return the release's name and the plan's file."""
    name = plan_release(lake, "Pia", "the bound was wrong").name
    approve(lake, name, "Ada")
    with pytest.MonkeyPatch.context() as patched:
        die_before(patched, table)
        with pytest.raises(SystemExit):
            apply(lake, name, "Otto")
    return name, Path(site.lake.path(Plan(last_finished(site.lake.tables) + 1, "", 0).name))


def other_rows(lake, plan, change):
    """Return a plan that brings other rows into steps, as many."""
    known = contract("steps")
    files = named_files([row for row in plan.body["add"] if row["table"] == "steps"])
    rows = pa.concat_tables([some for _, some in read_some(lake.tables, known, files)])
    made = compose(plan.number, "release", add=append_files(lake.store, known, change(rows), plan.number))
    others = [row for row in plan.body["add"] if row["table"] != "steps"]
    return replace(plan, body={**plan.body, "add": [*others, *made.body["add"]]})


def with_losses(rows):
    """Return rows with other values."""
    return rows.set_column(rows.schema.get_field_index("loss"), "loss", pa.array([9.0] * len(rows)))


def with_slots(rows):
    """Return rows of other keys."""
    return rows.set_column(
        rows.schema.get_field_index("slot"), "slot", pa.array(range(500, 500 + len(rows)), pa.int32())
    )


@pytest.mark.parametrize("table", ["steps", "rejects"])
@pytest.mark.parametrize("change", [with_losses, with_slots])
def test_as_many_rows_of_other_values_or_keys_are_refused(strict, table, change):
    """A count that is right is not enough, whichever commit is missing: rows come back as they were taken out."""
    site, before = strict
    name, path = begun(site, table, lake_under(site, MENDED))
    began = path.read_bytes()
    forged = other_rows(site.lake, Plan.from_json(began, str(path)), change)
    path.write_bytes(forged.to_json())
    with pytest.raises(RefusedPlanError, match="other rows than were approved"):
        drive(lake_under(site, MENDED), lambda _: None, InProcess())
    path.write_bytes(began)
    assert apply(lake_under(site, MENDED), name, "Otto")[0].state == "applied"
    assert sorted(map(str, site.rows("steps"))) == before
    site.balances()


def test_other_rows_of_the_quarantine_are_not_freed(strict):
    """As many rows of the same table, date and reason, but not those that passed when it was approved."""
    site, _ = strict
    some = lake_under(site, STRICT.replace("3.0", "3.1"))
    name, path = begun(site, "rejects", some)
    began = path.read_bytes()
    lake = lake_under(site, MENDED)
    count = RELEASES.find(lake, name).items[0].rows
    (every,) = passing_rows(lake, ["steps"])
    ranked = sorted(range(every.rows.num_rows), key=lambda at: -every.rows["loss"][at].as_py())[:count]
    other = replace(every, places=tuple(every.places[at] for at in ranked), rows=every.rows.take(pa.array(ranked)))
    plan = Plan.from_json(began, str(path))
    forged = _write(lake, RELEASES.find(lake, name), "Otto", [other], plan.number, alone=False)
    path.write_bytes(forged.to_json())
    with pytest.raises(RefusedPlanError, match="other rows than were approved"):
        drive(lake, lambda _: None, InProcess())
    path.write_bytes(began)
    assert apply(some, name, "Otto")[0].state == "applied"
    assert max(row["loss"] for row in site.rows("steps")) <= 3.1
