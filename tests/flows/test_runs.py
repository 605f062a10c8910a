"""What a Prefect server shows of flows: their runs, tasks, states, logs and names."""

import re
from itertools import pairwise

import pytest

from ranklake.pipeline.headlines import headline

pytestmark = pytest.mark.slow
MINUTE = r"\d{4}-\d\d-\d\dT\d\d:\d\d"


def test_each_unit_of_work_is_a_task(scenario):
    """Plan, batch of work and each commit are tasks with names, tags and an order; so are checks and rollups."""
    ingest = scenario.tasks("ingest")
    assert [one["name"] for one in ingest] == [
        "ingest",
        "plan what is new in the spool",
        "write plan 1: 3 segments, 1 table, 1 task",
        "commit steps 2026-03-01 plan 1",
        next(one["name"] for one in ingest if one["name"].startswith("commit segments")),
        "commit ingest_plans plan 1",
    ]
    assert {"ranklake", "unit:commit", "table:steps"} <= set(ingest[3]["tags"])
    for before, after in pairwise(ingest[1:]):
        assert [one["id"] for one in after["task_inputs"]["wait_for"]] == [before["id"]]
    assert "check steps 2026-03-01" in {one["name"] for one in scenario.tasks("check")}
    rollup = {one["name"]: one for one in scenario.tasks("rollup")}
    reads = {one["id"] for one in rollup["compute step_mfu 2026-03-01"]["task_inputs"]["wait_for"]}
    assert reads == {rollup[f"commit {table} 2026-03-01"]["id"] for table in ("step_rollup", "mfu")}
    assert all(one["state_type"] == "COMPLETED" for one in [*ingest, *rollup.values()])


def test_a_run_is_named_by_what_and_when_and_how_much(scenario):
    """Names of runs say the stage, the minute and a count."""
    names = [run["name"] for run in scenario.told["flow_runs"]]
    partitions = sum(len(rollup["partitions"]) for rollup in scenario.told["done"]["rollup"]["rollups"])
    for end in ("ingest T 3 segments", "check T 1 partition", f"rollup T {partitions} partitions", "pipeline T"):
        assert any(re.fullmatch(end.replace("T", MINUTE), name) for name in names), (end, names)


def test_what_the_rooms_log_is_in_the_log_of_their_run(scenario):
    """Each stage says in its run's log what it begins with and what came of it."""
    said = [text for name, text, of_task in scenario.said("ingest") if name.startswith("ranklake.") and of_task]
    assert said[0] == f"ingest of {scenario.folder}/lake begins"
    assert re.fullmatch(r"ingest ends after [\d.]+ s: 3 segments, 101 rows stored", said[-1])


def test_what_may_pass_is_tried_again_and_what_takes_too_long_ends(scenario):
    """An outage is tried again, a mistake is not; both show their error, as does a unit that takes too long."""
    runs = {one["name"]: one for one in scenario.tasks("probe")}
    assert (runs["outage"]["state_type"], runs["outage"]["run_count"]) == ("COMPLETED", 2)
    assert (runs["mistake"]["state_type"], runs["mistake"]["run_count"]) == ("FAILED", 1)
    assert "no lake is there" in runs["mistake"]["state"]["message"]
    assert (runs["hang"]["state_name"], runs["hang"]["run_count"]) == ("TimedOut", 1)
    assert not [text for _, text, _ in scenario.said("probe") if text.startswith("Timeout of")]


def test_a_stage_makes_no_more_tasks_than_a_page_shows(scenario):
    """What a stage does after so many units is done all the same, and told by its log."""
    made = [one for one in scenario.tasks("probe") if one["name"].startswith("many")]
    assert len(made) == 3
    told = [text for name, text, _ in scenario.said("probe") if name == "ranklake.flows.watching"]
    assert told[-2:] == ["many 2026-03-04", "many 2026-03-05"]


def test_logs_hold_no_credential(scenario):
    """What looks like a credential in a room's log is stored without it."""
    said, _ = [text for name, text, _ in scenario.said("probe") if name == "ranklake.lake.probe"]
    assert said.startswith("asked https://")
    assert "AKIAIOSFODNN7EXAMPLE" not in said


def test_a_stage_without_counts_has_no_headline():
    """A new stage needs no headline; damage is told of any."""
    assert headline("new", {}) == []
    assert headline("new", {"damaged": [1]}) == ["1 damaged file"]
