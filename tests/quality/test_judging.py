"""Great Expectations against the Arrow masks: each is the other's oracle."""

import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.model import Check, Column, Contract
from ranklake.quality.frame import frame
from ranklake.quality.rules import RULES, checked, failures
from ranklake.quality.suite import compile_suite

DAY = date(2026, 3, 1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RANGES = {"a": (0.0, 1.0), "b": (None, 5.0)}
COLUMNS = {
    "whole": "int64",
    "small": "int32",
    "real": "float64",
    "narrow": "float32",
    "text": "string",
    "flag": "bool",
    "moment": "timestamp",
    "day": "date",
    "metric": "string",
}
CHECKS = (
    Check("c1", "between", columns=("whole",), min=-3, max=2**40),
    Check("c0", "between", columns=("whole",), max=2**53),
    Check("c2", "between", columns=("small",), min=0),
    Check("c3", "between", columns=("real",), min=0.1, max=1.5),
    Check("c4", "between", columns=("narrow",), min=-1.5, max=0.1),
    Check("c5", "between", columns=("moment",), min="2026-03-01T06:00:00Z", max="2026-03-02"),
    Check("c6", "between", columns=("day",), min="2026-02-28", max="2026-03-01"),
    Check("c7", "in_set", columns=("text",), values=("ab", "é")),
    Check("c8", "in_set", columns=("flag",), values=(True,)),
    Check("c9", "in_set", columns=("small",), values=(1, 2)),
    Check("d1", "matches", columns=("text",), pattern="[a-z]+(b|c)"),
    Check("d2", "length", columns=("text",), min=1, max=2),
    Check("d3", "not_null", columns=("whole",)),
    Check("d4", "at_most", columns=("narrow", "real"), tolerance=0.25),
    Check("d5", "at_most", columns=("small", "whole")),
    Check("d6", "exactly_one", columns=("whole", "text")),
    Check("d7", "json", columns=("text",)),
    Check("d8", "finite", columns=("narrow",)),
    Check("d9", "dated", columns=("moment", "day")),
    Check("e1", "metric_range", columns=("metric", "real")),
    Check("e2", "fill_ratio", columns=("text",), min=0.5),
)


def made(class_="operational", checks=CHECKS):
    columns = tuple(Column(index + 1, name, kind, class_, "doc") for index, (name, kind) in enumerate(COLUMNS.items()))
    return Contract("t", 1, "fact", "o", "s", "t", ("whole",), ("day",), (), "raw", columns, checks)


def expectations(contract):
    wanted = {check.id for check in contract.checks}
    return [one for one in compile_suite(contract, {}).expectations if one.check.id in wanted]


def table(rows):
    return pa.Table.from_pylist(rows, schema=arrow_schema(made()))


FINITE = st.floats(-2, 2, width=32) | st.sampled_from([0.1, 0.7, 1.5, 0.25])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "whole": st.none() | st.integers(-5, 5) | st.sampled_from([2**40, 2**40 + 1, 2**53 + 1, 2**62 + 1]),
            "small": st.none() | st.integers(-2, 3),
            "real": st.none() | FINITE,
            "narrow": st.none() | FINITE,
            "text": st.none() | st.sampled_from(["ab", "ab\n", "é", "", "abc", "{}", "[1", "A", "zz", "\x00", "12"]),
            "flag": st.none() | st.booleans(),
            "moment": st.none() | st.integers(-(10**11), 10**11).map(lambda us: NOON + timedelta(microseconds=us)),
            "day": st.none() | st.sampled_from([DAY, DAY - timedelta(1), DAY - timedelta(2), DAY + timedelta(1)]),
            "metric": st.none() | st.sampled_from(["a", "b", "c"]),
        }
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_both_ways_of_judging_agree(judge, rows):
    """For every kind of check Great Expectations counts the same judged and failed rows as the Arrow masks do."""
    contract, data = made(), table(rows)
    chosen = expectations(contract)
    assert {one.check.kind for one in chosen} == set(RULES)
    verdicts = judge(contract, frame(data, chosen, RANGES), chosen, classified=False)
    for one, verdict in zip(chosen, verdicts, strict=True):
        mask = failures(one.check, data, RANGES)
        assert mask.null_count == 0
        expected = (checked(one.check, data, RANGES), pc.sum(mask).as_py() or 0)
        assert (verdict.error, verdict.checked, verdict.failed) == ("", *expected), one.check
        assert verdict.success == (verdict.failed == 0)


def test_nan_and_infinity_fail_finite(judge):
    """NaN is not NULL to us, though it is to pandas."""
    contract = made()
    finite = [one for one in expectations(contract) if one.check.kind == "finite"]
    data = table([{"narrow": value} for value in (1.0, None, math.nan, math.inf, -math.inf)])
    (verdict,) = judge(contract, frame(data, finite, {}), finite, classified=False)
    assert (verdict.checked, verdict.failed) == (4, 3)


def test_of_classified_columns_only_yes_or_no_comes_back(judge):
    """A verdict on a classified column has neither counts nor values."""
    contract = made("personal")
    chosen = expectations(contract)
    data = table([{"whole": 7_777_777, "text": "alice", "small": -1, "real": 9.0, "narrow": 9.0}])
    for verdict in judge(contract, frame(data, chosen, RANGES), chosen, classified=True):
        assert (verdict.checked, verdict.failed, verdict.shown) == (None, None, ())
        assert verdict.success is not None


def test_great_expectations_itself_keeps_no_classified_value(judge, monkeypatch):
    """Its own results, before we look at them, hold no value of a classified column."""
    results = []
    genuine = judge._batches.get_batch

    class Watched:
        def __init__(self, batch):
            self.batch = batch

        def validate(self, suite, **options):
            results.append(self.batch.validate(suite, **options))
            return results[-1]

    class Definition:
        def get_batch(self, **options):
            return Watched(genuine(**options))

    monkeypatch.setattr(judge, "_batches", Definition())
    contract = made("personal")
    chosen = expectations(contract)
    data = table([{"whole": -7_777_777, "text": "Alice Liddell", "small": -7_777_778}])
    judge(contract, frame(data, chosen, RANGES), chosen, classified=True)
    (result,) = results
    assert result.statistics["unsuccessful_expectations"] > 3
    assert not any(needle in str(result) for needle in ("Alice", "7777777", "7777778"))


def test_failing_numbers_are_shown_and_text_is_not(judge):
    """Of an operational number a few failing values help; text may hold anything and stays where it is."""
    contract = made()
    chosen = expectations(contract)
    data = table([{"small": -1, "text": "somebody@example.org"}] * 9)
    shown = {
        one.check.id: verdict.shown
        for one, verdict in zip(
            chosen, judge(contract, frame(data, chosen, RANGES), chosen, classified=False), strict=True
        )
    }
    assert shown["c2"] == (-1, -1, -1)
    assert shown["c7"] == ()


@pytest.mark.parametrize("classified", [False, True])
def test_errored_is_not_failed(judge, classified):
    """A check that cannot be set up, and one that crashes, are errors of their own; the others are judged."""
    bad = (
        Check("bound", "between", columns=("whole",), min="not a number"),
        Check("crash", "at_most", columns=("text", "whole")),
        Check("fine", "between", columns=("small",), min=0),
    )
    contract = made("personal" if classified else "operational", bad)
    chosen = expectations(contract)
    data = table([{"whole": 1, "text": "Alice Liddell", "small": -1}])
    bound, crash, fine = judge(contract, frame(data, chosen, {}), chosen, classified=classified)
    assert (bound.success, crash.success, fine.success) == (None, None, False)
    assert all(one.error.startswith("could not be computed") for one in (bound, crash))
    assert not any("Alice" in one.error for one in (bound, crash))
    if classified:
        assert ":" not in crash.error


def test_what_breaks_great_expectations_itself_is_an_error_too(judge):
    """Should a whole frame be refused, each of its expectations is errored and nothing is raised."""
    chosen = expectations(replace(made()))
    verdicts = judge(made(), "not a frame", chosen, classified=False)
    assert {verdict.success for verdict in verdicts} == {None}
