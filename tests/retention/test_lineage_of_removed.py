"""The way back where retention removed, archived or masked what was read: no fault, and said."""

from datetime import timedelta

from archiving import STEPS, archived
from people import PEOPLE, bring_runs
from retaining import TODAY, bring_days, days_ago

from ranklake.insight.lineage.walk import walk
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.rollups.runner import run_rollups
from ranklake.retention.archive.rehydration import approve, propose, rehydrate, select_archives, write_down


def way(site, table, run="r1"):
    """Return the way of a run's rows of a table."""
    return walk(site.lake, contract(table), run, None, Spool(str(site.spool)))


def test_what_was_computed_of_archived_rows_says_so(site, archiving):
    """The rollup stays, its inputs' files are gone: a note names the plan, and the rest is verified."""
    policies = archiving(STEPS)
    bring_days(site, (40, 10))
    run_rollups(site.lake)
    assert way(site, "step_rollup").notes == ()
    archived(site, policies)
    result = way(site, "step_rollup")
    assert result.faults == ()
    day = days_ago(40).date()
    removed = [
        each for each in result.computations[0].inputs + result.computations[1].inputs if "removed" in each.state
    ]
    assert {(each.table, each.partition) for each in removed} == {("steps", f"date={day}")}
    assert all("(retention)" in each.state for each in removed)


def test_archived_rows_that_are_back_are_followed(site, archiving):
    """Their copies and their segments are verified."""
    policies = archiving(STEPS)
    bring_days(site, (40, 10))
    archived(site, policies)
    assert [each.state for each in way(site, "steps").segments] == ["verified"]
    found = select_archives(site.lake.tables, "steps", days_ago(90).date(), TODAY)
    made = write_down(site.lake, found, TODAY + timedelta(days=7), "Ann Author", "an incident")
    propose(site.lake, made, "Ann Author")
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", policies)
    result = way(site, "steps")
    assert [each.state for each in result.segments] == ["verified"] * 2
    assert ([each.state for each in result.files], result.faults) == (["verified"] * 2, ())
    assert "rows are back from an archive" in result.notes[0].text


def test_masked_rows_reach_their_segments(keyed, policies):
    """Their file is another, their keys are the same, and no value is printed."""
    site, rules = keyed, policies(PEOPLE)
    bring_runs(site, 3, age=40)
    run_rollups(site.lake)
    archived(site, rules)  # the same steps: plan, approval, application
    for table in ("runs", "attempt_facts"):
        result = way(site, table)
        assert (result.faults, [each.state for each in result.segments]) == ((), ["verified"]), table
        assert "person-" not in repr(result)
