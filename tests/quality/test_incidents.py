"""Incidents: when a check's failures began, when they ended, and what flaps."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
from datafusion import SessionContext
from governed import Site
from hypothesis import given, settings
from hypothesis import strategies as st
from segments import DAY, step_rows

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.quality.check import run_checks
from ranklake.quality.results import Incident, _incident, incidents, statement

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE, TWO = date(2026, 2, 27), date(2026, 2, 28)


SCHEMA = arrow_schema(contract("quality_results"))
NAMES = (
    *("table", "check_id", "column", "severity", "partition_date", "status", "rows_failed", "quarantined_rows"),
    *("message", "ts"),
)


def incidents_of(rows) -> list[Incident]:
    """Return the incidents that rows of results tell."""
    ctx = SessionContext()
    told = pa.Table.from_pylist(rows, pa.schema([SCHEMA.field(name) for name in NAMES])).combine_chunks()
    ctx.register_record_batches("quality_results", [told.to_batches() or [pa.RecordBatch.from_pylist([], told.schema)]])
    return [_incident(one) for one in ctx.sql(statement("TRUE")).to_arrow_table().to_pylist()]


def row(hours, status, *, day=ONE, failed=3, moved=0, severity="error", check="c"):
    """Return a row of results, so many hours after noon."""
    return {
        "table": "steps",
        "check_id": check,
        "column": "loss",
        "severity": severity,
        "partition_date": day,
        "status": status,
        "rows_failed": failed if status == "failed" else None,
        "quarantined_rows": moved,
        "message": "why",
        "ts": NOON + timedelta(hours=hours),
    }


def test_an_incident_opens_and_closes():
    """It is open from the first failure until no date is left on which the check fails."""
    rows = [row(0, "passed"), row(1, "failed"), row(2, "failed", day=TWO), row(3, "passed")]
    (still,) = incidents_of(rows)
    assert (still.opened, still.closed, still.partitions) == (NOON + timedelta(hours=1), None, (ONE, TWO))
    assert (still.rows_failed, still.flaps) == (6, 0)
    (over,) = incidents_of([*rows, row(4, "passed", day=TWO)])
    assert over.closed == NOON + timedelta(hours=4)


def test_flapping_is_counted_once():
    """What fails again within a day is the same incident; later it is another."""
    flapping = [row(hour, "failed" if hour % 2 else "passed") for hour in range(1, 11)]
    (one,) = incidents_of(flapping)
    assert (one.flaps, one.closed) == (4, NOON + timedelta(hours=10))
    later = incidents_of([*flapping, row(60, "failed")])
    assert [(each.closed is None, each.flaps) for each in later] == [(True, 0), (False, 4)]


def test_rows_that_were_moved_open_nothing():
    """A failure whose rows are all in rejects is mended; one that cannot be computed is none that passes."""
    assert incidents_of([row(0, "failed", moved=3)]) == []
    (errored,) = incidents_of([row(0, "errored"), row(1, "skipped")])
    assert errored.closed is None


def test_the_worst_open_ones_come_first():
    """Open before closed, and the worst before others."""
    rows = [
        row(0, "failed", severity="warning", check="a"),
        row(0, "failed", severity="critical", check="b"),
        row(0, "failed", severity="critical", check="c"),
        row(1, "passed", check="c"),
    ]
    assert [(one.check_id, one.closed is None) for one in incidents_of(rows)] == [
        ("b", True),
        ("a", True),
        ("c", False),
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([ONE, TWO]), st.sampled_from(["passed", "failed", "errored", "skipped"])), max_size=30
    )
)
def test_an_incident_is_open_if_the_last_word_on_a_date_is_bad(events):
    """Whatever came before: open is what stands now, incidents do not overlap, and there is one open at most."""
    rows = [row(30 * at, status, day=day) for at, (day, status) in enumerate(events)]
    last = {}
    for one in rows:
        if one["status"] != "skipped":
            last[one["partition_date"]] = one["status"]
    found = sorted(incidents_of(rows), key=lambda one: one.opened)
    assert sum(one.closed is None for one in found) == any(status != "passed" for status in last.values())
    assert all(a.closed is not None and a.closed <= b.opened for a, b in pairwise(found))


def test_incidents_of_a_lake(tmp_path):
    """A rank that lacks steps is an incident; when its rows come the incident closes."""
    site = Site(tmp_path)
    start = DAY + timedelta(hours=6)
    site.bring(step_rows(50, start=start))
    site.bring(step_rows(30, rank=1, incarnation=8, start=start))
    run_checks(site.lake, ["steps"])
    (one,) = incidents(site.lake)
    assert (one.check_id, one.severity, one.rows_failed, one.closed) == ("steps_of_all_ranks", "warning", 20, None)
    site.bring(step_rows(20, rank=1, incarnation=8, first_slot=30, start=start), rows_before=30)
    run_checks(site.lake, ["steps"])
    (one,) = incidents(site.lake)
    assert one.closed is not None
