"""Suites: what follows from a contract."""

from dataclasses import replace

import pytest

from ranklake.lake.contracts.checks import registry
from ranklake.lake.contracts.load import load_contracts, load_metrics
from ranklake.lake.contracts.model import Check
from ranklake.quality.suite import compile_suite

CONTRACTS = {name: one for name, one in load_contracts().items() if one.kind != "system"}


def suite_of(contract):
    return compile_suite(contract, load_metrics())


def by_id(contract):
    return {one.check.id: one for one in suite_of(contract).expectations}


@pytest.mark.parametrize("table", CONTRACTS)
def test_every_contract_compiles(table, judge):
    """Each table's suite has unique ids, holds its contract's checks; what is no watch, Great Expectations has."""
    contract = CONTRACTS[table]
    expectations = suite_of(contract).expectations
    ids = [one.check.id for one in expectations]
    assert len(set(ids)) == len(ids)
    assert {check.id for check in contract.all_checks()} <= set(ids)
    for index, one in enumerate(expectations):
        assert hasattr(judge._gx.expectations, one.kind) == (one.watch is None)
        if one.per_row:
            judge._configure_expectation(contract, one, index)


def test_what_follows_from_a_contract_without_being_written():
    """Required columns, finite floats, JSON, partition dates and metric ranges are checked though nobody wrote it."""
    steps = by_id(CONTRACTS["steps"])
    assert steps["required:run"].quarantines
    assert steps["finite:loss"].quarantines
    assert steps["dated:date"].check.columns == ("ts", "date")
    assert by_id(CONTRACTS["runs"])["json:labels"].kind == "ExpectColumnValuesToBeJsonParseable"
    assert by_id(CONTRACTS["scalars"])["metric:value"].check.severity == "warning"


def test_ratios_lie_in_0_to_1_unless_the_contract_says_otherwise():
    """A ratio gets a range; a range of the contract's own takes its place."""
    contract = CONTRACTS["gpu_samples"]
    column = next(one for one in contract.columns if one.unit == "ratio")
    bare = replace(column, checks=())
    own = replace(column, checks=(Check("own", "between", columns=(column.name,), max=2),))
    for version, expected in ((bare, True), (own, False)):
        columns = tuple(version if one is column else one for one in contract.columns)
        assert (f"ratio:{column.name}" in by_id(replace(contract, columns=columns))) is expected


def test_classified_columns_are_known_as_such():
    """A check on a personal column is classified, and none of its values may be shown."""
    logs = replace(
        CONTRACTS["logs"], checks=(Check("short", "length", columns=("message",), max=3, on_fail="quarantine"),)
    )
    short = by_id(logs)["short"]
    assert (short.classified, short.numeric, short.quarantines) == (True, False, True)
    steps = by_id(CONTRACTS["steps"])["step_time_not_negative"]
    assert (steps.classified, steps.numeric) == (False, True)


def test_rows_of_derived_tables_are_never_taken_out():
    """What a rollup would bring back is written down, not moved."""
    derived = CONTRACTS["step_rollup"]
    (column, *_) = (one.name for one in derived.columns if one.is_number)
    strict = replace(derived, checks=(Check("strict", "between", columns=(column,), min=0, on_fail="quarantine"),))
    assert by_id(strict)["strict"].check.quarantines
    assert not any(one.quarantines for one in suite_of(strict).expectations)


def test_the_name_follows_the_content():
    """Equal contracts have equally named suites; another bound, or another metric range, another name."""
    contract = CONTRACTS["steps"]
    assert suite_of(contract).name == suite_of(replace(contract)).name
    more = replace(contract, checks=(*contract.checks, Check("more", "between", columns=("loss",), max=9)))
    less = replace(contract, checks=(*contract.checks, Check("more", "between", columns=("loss",), max=8)))
    assert len({suite_of(one).name for one in (contract, more, less)}) == 3
    scalars = CONTRACTS["scalars"]
    assert compile_suite(scalars, {}).name != suite_of(scalars).name


def test_a_mended_kind_judges_anew(monkeypatch):
    """The edition of each kind that a suite uses is part of its name, so that what the old code judged is not kept."""
    steps, before = CONTRACTS["steps"], suite_of(CONTRACTS["steps"]).name
    for kind, other in (("between", True), ("capacity_jump", False)):
        kinds = {**registry.KINDS, kind: replace(registry.KINDS[kind], edition=2)}
        with monkeypatch.context() as patched:
            patched.setattr(registry, "KINDS", kinds)
            assert (suite_of(steps).name != before) is other
