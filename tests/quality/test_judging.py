"""Great Expectations against the Arrow masks: each is the other's oracle."""

import math
from dataclasses import replace

import pyarrow.compute as pc
import pytest
from checked import RANGES, ROWS, expectations, made, table
from hypothesis import HealthCheck, given, settings

from ranklake.lake.contracts.checks.registry import KINDS, failures, judged_rows
from ranklake.lake.contracts.model import Check
from ranklake.quality.engine import frame


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_both_ways_of_judging_agree(judge, rows):
    """For every kind of check Great Expectations counts the same judged and failed rows as the Arrow masks do."""
    contract, data = made(), table(rows)
    chosen = expectations(contract)
    by_row = {name for name, kind in KINDS.items() if kind.level not in {"table", "watch"}}
    assert {one.check.kind for one in chosen} == by_row
    verdicts = judge(contract, frame(data, chosen, RANGES), chosen, classified=False)
    for one, verdict in zip(chosen, verdicts, strict=True):
        mask = failures(one.check, data, RANGES)
        assert mask.null_count == 0
        expected = (judged_rows(one.check, data, RANGES), pc.sum(mask).as_py() or 0)
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
