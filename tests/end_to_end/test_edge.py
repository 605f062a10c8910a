"""The edge contract from the recorder to the lake: what is wrong is in `rejects` or in gaps, and the books add up."""

from collections import Counter

import pytest

from ranklake import capture
from ranklake.capture.lanes.policies import OVERFLOW, SELF_METRICS
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read


@pytest.fixture
def bring(tmp_path):
    """Give a function that records with some settings, ingests, and returns the lake and the balance by table."""

    def record_and_ingest(record, **settings):
        places = {"spool": tmp_path / "spool", "local_dir": tmp_path / "local"}
        with capture.start("job", run="run", **places, **settings) as run:
            record(run)
        lake, spool = Lake.create(str(tmp_path / "lake")), Spool(str(tmp_path / "spool"))
        ingest(lake, spool, InProcess())
        found = balance(lake, spool.listing())
        assert [fault for item in found for fault in item.faults] == []
        return lake, {item.table: item for item in found}

    return record_and_ingest


def stored(lake, table):
    """Return (metric, edge_flag) of a table's rows, counted; what ranklake says of itself is left out."""
    found = read(lake.tables, contract(table)).to_pylist()
    return Counter((row["metric"], row["edge_flag"]) for row in found if row["metric"] not in SELF_METRICS)


def reasons(lake):
    """Return what rows were rejected for: (table, check), counted."""
    return Counter(
        (row["table"], row["reason"].split(":")[0]) for row in read(lake.tables, contract("rejects")).to_pylist()
    )


def record_wrongs(run):
    """Record one row of each wrong in each way there is, and a good one."""
    run.scalar("mine").add(1.0)
    run.log({"mine": 1.0, "eval/accuracy": 2.0})
    run.scalar("eval/loss", "counter").add(1.0)
    run.scalar("eval/loss", unit="nat").add(1.0)
    run.aggregate("eval/accuracy").add(-1.0)
    run.counter("mine/count").add(1)
    run.histogram("eval/accuracy").record([0.5, 1.5])
    run.histogram("mine").record([0.5, 1.5])
    run.log({"eval/loss": 1.0})
    run.scalar("over").add(1.0)


KNOWN = 6  # series of the above before "over"
WRONGS = ("unregistered", "wrong_kind", "wrong_unit", "out_of_range", "over_max_series")


def test_flagged_rows_are_stored(bring):
    """By `flag` every row is in its table, with its flag."""
    lake, books = bring(record_wrongs, max_series=KNOWN, **dict.fromkeys(WRONGS, "flag"))
    assert stored(lake, "scalars") == {
        ("mine", "unregistered"): 2,
        ("mine/count", "unregistered"): 1,
        ("eval/accuracy", "out_of_range"): 2,
        ("eval/loss", "wrong_kind"): 1,
        ("eval/loss", "wrong_unit"): 1,
        ("eval/loss", None): 1,
        (OVERFLOW, "over_max_series"): 1,
    }
    assert stored(lake, "distributions") == {("eval/accuracy", "out_of_range"): 1, ("mine", "unregistered"): 1}
    assert (books["scalars"].quarantined, books["scalars"].gaps) == (0, 0)


def test_quarantined_rows_are_in_rejects_with_the_reason(bring):
    """By `quarantine` they are refused by the contract, each for what was wrong; the good one is stored."""
    lake, books = bring(record_wrongs, max_series=KNOWN, **dict.fromkeys(WRONGS, "quarantine"))
    assert stored(lake, "scalars") == {("eval/loss", None): 1}
    assert reasons(lake) == {
        ("scalars", "edge_unregistered"): 3,
        ("scalars", "edge_out_of_range"): 2,
        ("scalars", "edge_wrong_kind"): 1,
        ("scalars", "edge_wrong_unit"): 1,
        ("scalars", "edge_over_max_series"): 1,
        ("distributions", "edge_out_of_range"): 1,
        ("distributions", "edge_unregistered"): 1,
    }
    assert (books["scalars"].quarantined, books["scalars"].gaps) == (8, 0)


def test_rows_of_a_retired_metric_are_rejected_where_its_entry_says_so(bring, tmp_path):
    """In both tables, under a reason of its own."""
    (tmp_path / "own").mkdir()
    entry = "{name: mine, unit: '1', kind: gauge, owner: team, sampling: step, doc: Old., status: retired"
    (tmp_path / "own" / "metrics.yaml").write_text(f"version: 1\nmetrics:\n  - {entry}, when_retired: quarantine}}\n")

    def record(run):
        run.log({"mine": 1.0, "eval/loss": 1.0})
        run.histogram("mine").record([0.5, 1.5])

    lake, books = bring(record, contracts_overlay=str(tmp_path / "own"))
    assert stored(lake, "scalars") == {("eval/loss", None): 1}
    assert reasons(lake) == {("scalars", "edge_retired"): 1, ("distributions", "edge_retired"): 1}
    assert (books["scalars"].quarantined, books["scalars"].gaps) == (1, 0)


def test_dropped_rows_are_gaps(bring):
    """By `drop` they are counted, and nothing else is."""
    lake, books = bring(record_wrongs, max_series=KNOWN, **dict.fromkeys(WRONGS, "drop"))
    # Dropped at once, "mine" and the wrongly declared take no place among the series.
    assert stored(lake, "scalars") == {("eval/loss", None): 1}
    assert stored(lake, "distributions") == {}
    assert (books["scalars"].quarantined, books["scalars"].gaps) == (0, 8)
    assert books["distributions"].gaps == 2


def test_negative_steps_are_in_rejects(bring):
    """No table has steps below 0, whatever the policies: such rows of every lane are refused, with the reason."""

    def record(run):
        with run.step(-1):
            run.log(x=1.0)
        with run.step(3):
            run.log({"a": 1.0, "b": 2.0}, step=-2)
        run.scalar("c").add(1.0, -3)
        run.aggregate("d").add(1.0, -4)
        run.histogram("e").record([1.0], -5)
        run.scalar("c").add(1.0, 0)

    lake, books = bring(record)
    assert reasons(lake) == {
        ("steps", "step_from_zero"): 1,
        ("spans", "step_from_zero"): 1,
        ("scalars", "step_from_zero"): 5,
        ("distributions", "step_from_zero"): 1,
    }
    assert books["steps"].stored == stored(lake, "scalars").total() == 1
