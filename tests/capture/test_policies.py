"""Edge policies: what becomes of metrics that are not what the registry says, and of values out of range."""

import pytest
from recorded import check_books, gaps, rows

from ranklake.capture.gaps import OUT_OF_RANGE, UNREGISTERED, WRONG_KIND, WRONG_UNIT

# What users do wrong: (setting, how, reason of the gap). Each records three values, of 1, 2 and 3, in the same way.
WRONG = {
    "unregistered": (lambda run: run.scalar("my/metric"), UNREGISTERED),
    "wrong_kind": (lambda run: run.scalar("eval/loss", "counter"), WRONG_KIND),
    "wrong_unit": (lambda run: run.scalar("eval/loss", unit="nat"), WRONG_UNIT),
    "out_of_range": (lambda run: run.scalar("eval/accuracy"), OUT_OF_RANGE),
}


def flagged(place, table="scalars"):
    """Return (metric, value, edge_flag) of all rows."""
    return [(row["metric"], row.get("value"), row["edge_flag"]) for row in rows(place.spool, table)]


def record(place, wrong, policy):
    """Record 2.0 and 3.0 of a wrong series, and one value of a good one, under a policy."""
    with place.start(**{wrong: policy}) as run:
        handle = WRONG[wrong][0](run)
        handle.add(2.0, 1)
        handle.add(3, 2)
        run.log({"train/epoch": 1.0})
    return run


@pytest.mark.parametrize("wrong", WRONG)
def test_flag_stores_the_rows_and_says_what_was_noticed(place, wrong):
    """By default nothing is lost, and the column edge_flag tells what is wrong."""
    run = record(place, wrong, "flag")
    found = flagged(place)
    assert [(value, flag) for _, value, flag in found] == [(2.0, wrong), (3.0, wrong), (1.0, None)]
    assert run.gaps() == {}
    check_books(place.spool)


@pytest.mark.parametrize("wrong", WRONG)
def test_drop_counts_each_row_by_its_reason(place, wrong, warnings_told):
    """Two values are two gaps; the good metric is stored."""
    run = record(place, wrong, "drop")
    assert flagged(place) == [("train/epoch", 1.0, None)]
    assert gaps(place.spool) == {"scalars": {WRONG[wrong][1]: 2}}
    assert run.gaps() == {"scalars": {WRONG[wrong][1]: 2}}
    assert WRONG[wrong][1] in warnings_told.text
    check_books(place.spool)


@pytest.mark.parametrize("wrong", WRONG)
def test_quarantine_marks_the_rows(place, wrong):
    """The mark is what ingest goes by; see tests/lake/test_ingest_edge.py."""
    run = record(place, wrong, "quarantine")
    mark = f"quarantine:{wrong}"
    assert [(value, flag) for _, value, flag in flagged(place)] == [(2.0, mark), (3.0, mark), (1.0, None)]
    assert run.gaps() == {}


def test_every_lane_is_judged_alike(place):
    """Single values, mappings, counters, intervals and histograms: the same flag for the same wrong."""
    with place.start() as run:
        run.scalar("train/accuracy").add(1.5)
        run.log({"train/accuracy": 2.5, "train/momentum": -1.0, "train/epoch": 1.0})
        folded, many = run.aggregate("train/accuracy"), run.histogram("train/accuracy")
        for value in (0.5, 1.5, 0.5):
            folded.add(value)
            many.record([value])
        run.counter("eval/accuracy").add(1)
    assert sorted(flagged(place), key=str) == [
        ("eval/accuracy", 1.0, "wrong_kind"),
        ("train/accuracy", 0.5, "out_of_range"),  # the last value of an interval that held 1.5
        ("train/accuracy", 1.5, "out_of_range"),
        ("train/accuracy", 2.5, "out_of_range"),
        ("train/epoch", 1.0, None),
        ("train/momentum", -1.0, "out_of_range"),
    ]
    assert flagged(place, "distributions") == [("train/accuracy", None, "out_of_range")]
