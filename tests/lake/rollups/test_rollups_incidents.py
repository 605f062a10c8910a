"""The rollup ``incidents``: which findings belong together, what an incident says, and that order changes nothing."""

import json
import random
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from incident_rows import finding, on_node, rolled_up
from rollup_inputs import DAY, NOON, append, computed, context

from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.declaration import Input
from ranklake.lake.rollups.incidents import MOST_EVIDENCE, groups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

MINUTE = timedelta(minutes=1)
GAP = 30 * MINUTE
MONDAY = date(2026, 3, 2)


def rolled(run=(), node=(), days=(DAY,), **more):
    """Return the incidents of findings, as rows."""
    rows = computed(context(run_findings=list(run), node_findings=list(node), **more), "incidents", days).to_pylist()
    return sorted(rows, key=lambda row: (row["start_ts"], row["incident_id"]))


def test_findings_of_a_run_that_follow_each_other_are_one_incident():
    """Within half an hour of the end of one before it; a minute later is another incident."""
    first, second = rolled([
        finding("loss_spike", 0, 10), finding("run_failed", 40, severity="critical", message="run r1 failed", step=7),
        finding("loss_spike", 71, message="it came back"),
    ])  # fmt: skip
    assert (first["findings"], first["severity"], first["kind"]) == (2, "critical", "run_failed")
    assert first["title"] == "run r1 failed (and 1 more finding)"
    assert (first["start_ts"], first["end_ts"]) == (NOON, NOON + 40 * MINUTE)
    assert (first["time_to_detect_s"], first["time_to_recover_s"], first["status"]) == (300, 2400, "closed")
    assert (second["findings"], second["title"]) == (1, "it came back")
    assert json.loads(first["detectors"]) == {"loss_spike": 1, "run_failed": 1}
    evidence = json.loads(first["evidence"])
    assert [row["detector"] for row in evidence] == ["loss_spike", "run_failed"]
    assert evidence[1]["evidence_sql"] == "SELECT 1"
    assert json.loads(first["causes"]) == ["crash", "loss-spike"]


@pytest.mark.parametrize(
    ("findings", "causes"),
    [
        ([("loss_spike", 0), ("gradient_spike", 0)], ["loss-spike", "gradient-spike"]),
        ([("loss_spike", 0), ("learning_rate", 0)], ["learning-rate", "loss-spike"]),
        ([("loss_spike", 1), ("gradient_spike", 0)], ["gradient-spike", "loss-spike"]),
        ([("divergence", 1), ("gradient_spike", 0)], ["divergence", "gradient-spike"]),
        ([("straggler", 0), ("data_stall", 5)], ["straggler", "data-loading"]),
    ],
)
def test_what_is_worst_and_began_first_is_the_likelier_cause(findings, causes):
    """A jump of the loss comes before the jump of its own step's gradients, and after one of earlier gradients."""
    severity = {"divergence": "error"}
    rows = [finding(name, at, 2, severity=severity.get(name, "warning"), runbook=None) for name, at in findings]
    (row,) = rolled(rows)
    assert json.loads(row["causes"]) == causes


def test_while_one_lasts_whatever_begins_belongs_to_it():
    """A finding without an end keeps its incident open."""
    (row,) = rolled([finding("straggler", 0, None), finding("loss_spike", 300), finding("loss_spike", 600)])
    assert (row["findings"], row["status"], row["end_ts"], row["time_to_recover_s"]) == (3, "open", None, None)
    assert row["last_ts"] == NOON + 600 * MINUTE


def test_each_recorded_fault_of_a_node_is_an_incident():
    """Two that overlap on one host were repaired apart; one that overlaps a run's incident is part of that."""
    faults = [on_node("node_fault", 0, 90), on_node("node_fault", 10, 20), on_node("iowait", 15, 5)]
    assert [row["findings"] for row in rolled(node=faults)] == [1, 1, 1]
    (row,) = rolled([finding("straggler", 20, 30, host="n1")], [on_node("node_fault", 0, 90)])
    assert json.loads(row["detectors"]) == {"node_fault": 1, "straggler": 1}


def test_runs_are_apart_and_a_node_joins_the_run_that_names_it():
    """Two runs at once are two incidents; what their host had meanwhile is evidence of the first that names it."""
    run = [finding("straggler", 0, 60, host="n1"), finding("straggler", 5, 60, run="r2", host="n2"),
           finding("loss_spike", 8, run="r3")]  # fmt: skip
    node = [on_node("throttling", -20, 30), on_node("iowait", 0, 5, host="n9"), on_node("iowait", 200)]
    rows = rolled(run, node)
    told = {(row["run"], row["host"], row["start_ts"]): row for row in rows}
    assert [(row["run"], row["host"], row["findings"]) for row in rows] == [
        ("r1", "n1", 2), (None, "n9", 1), ("r2", "n2", 1), ("r3", None, 1), (None, "n1", 1),
    ]  # fmt: skip
    assert told["r1", "n1", NOON - 20 * MINUTE]["kind"] == "throttling"


def test_what_was_affected_in_time_and_money():
    """Devices of the attempt times the incident's time, at the one price that its run has; else unknown."""
    attempts = [
        {"run": run, "attempt": 0, "ts": NOON, "end_ts": NOON, "device_count": count, "job": "j", "date": DAY,
         "injected": "slow rank"} for run, count in (("r1", 8), ("r2", None))
    ]  # fmt: skip
    cost = {"told_by": "runs", "device_price": 2, "currency": "EUR", "reason": "x", "date": DAY}
    run = [finding("straggler", 0, 30), finding("straggler", 0, 30, run="r2"), finding("straggler", 0, 30, run="r3")]
    rows = {row["run"]: row for row in rolled(
        run, attempt_facts=attempts, cost=[{**cost, "run": "r1", "attempt": 0}, {**cost, "run": "r2", "attempt": 0}]
    )}  # fmt: skip
    assert (rows["r1"]["affected_device_s"], rows["r1"]["affected_cost"], rows["r1"]["currency"]) == (14400, 8, "EUR")
    assert (rows["r1"]["job"], rows["r1"]["injected"], rows["r1"]["device_count"]) == ("j", "slow rank", 8)
    for run_name in ("r2", "r3"):
        assert [rows[run_name][name] for name in ("affected_device_s", "affected_cost", "currency")] == [None] * 3


def test_a_week_ends_on_sunday():
    """What goes on after Monday, 00:00 UTC, is another incident: a date is computed from its own week."""
    assert Input("run_findings", "week").days(MONDAY - timedelta(1))[-1] == MONDAY - timedelta(1)
    assert Input("run_findings", "week").days(MONDAY) == tuple(MONDAY + timedelta(n) for n in range(7))
    late = finding("loss_spike", 11 * 60 + 50)
    early = finding("run_failed", 12 * 60 + 1)
    assert [row["findings"] for row in rolled([late, early], days=(DAY, MONDAY))] == [1, 1]
    tuesday = [{**row, "start_ts": row["start_ts"] + timedelta(2), "end_ts": None, "date": row["date"] + timedelta(2)}
               for row in (late, early)]  # fmt: skip
    days = [MONDAY + timedelta(n) for n in range(3)]
    (row,) = rolled(tuesday, days=days)
    assert (row["findings"], row["date"]) == (2, MONDAY + timedelta(1))
    assert rolled(tuesday, days=days[2:]) == []


_FINDINGS = st.lists(
    st.builds(
        lambda detector, minutes, lasts, run, host: finding(detector, minutes, lasts, run=run, host=host),
        st.sampled_from(["a", "b", "c"]), st.integers(0, 9 * 24 * 60), st.sampled_from([0, 0, 20, 100, None]),
        st.sampled_from(["r1", "r2", None]), st.sampled_from(["n1", "n2", None]),
    ),
    max_size=30, unique_by=lambda row: row["finding_id"],
)  # fmt: skip


@given(_FINDINGS, st.randoms(use_true_random=False))
def test_order_changes_nothing_and_nothing_is_lost(rows, order):
    """Each finding is in exactly one incident, and shuffled findings give the same incidents."""
    week = [row for row in rows if row["date"] == rows[0]["date"]]
    once = groups(week, GAP)
    assert sorted(row["finding_id"] for group in once for row in group.findings) == sorted(
        row["finding_id"] for row in week
    )
    order.shuffle(week)
    again = groups(week, GAP)
    assert [(group.subject, group.findings) for group in again] == [(group.subject, group.findings) for group in once]


def test_ten_thousand_findings_in_a_minute_are_one_bounded_row():
    """All are counted; evidence has the worst of each detector and at most so many."""
    many = [finding(f"d{number % 30}", number / 10_000, severity="error" if number == 9_999 else "info")
            for number in range(10_000)]  # fmt: skip
    random.Random(3).shuffle(many)
    (row,) = rolled(many)
    evidence = json.loads(row["evidence"])
    assert (row["findings"], row["severity"], len(evidence)) == (10_000, "error", MOST_EVIDENCE)
    assert len(row["evidence"]) < 20_000
    assert any(shown["severity"] == "error" for shown in evidence)


@pytest.mark.parametrize("days", [(0, 1, 2, 3, 4), (2, 4, 3, 1, 0)])
def test_incremental_equals_full(tmp_path, days):
    """Dates of findings that come one after the other, late ones too, give the same rows as all at once."""
    draw = random.Random(7)
    every = {}
    for _ in range(60):
        row = finding(draw.choice("abc"), draw.randrange(4 * 24 * 60), draw.choice([0, 0, 30, 300, 900]),
                      run=draw.choice(["r1", "r2", None]), host=draw.choice(["n1", "n2", None]))  # fmt: skip
        every[row["finding_id"]] = row
    lake, whole = Lake.create(str(tmp_path / "some")), Lake.create(str(tmp_path / "whole"))
    for day in days:
        bring_findings(lake, [row for row in every.values() if (row["date"] - DAY).days == day])
        rolled_up(lake)
    bring_findings(whole, list(every.values()))
    rolled_up(whole)
    assert rows_of(lake) == rows_of(whole)
    assert any(row["start_ts"].date() < row["last_ts"].date() for row in rows_of(whole))


def bring_findings(lake, rows):
    """Commit findings to the table of each."""
    append(lake, "run_findings", [row for row in rows if row["run"]])
    append(lake, "node_findings", [row for row in rows if not row["run"]])


def rows_of(lake):
    """Return the incidents of a lake, sorted."""
    return read(lake.tables, contract("incidents")).sort_by([("incident_id", "ascending")]).to_pylist()
