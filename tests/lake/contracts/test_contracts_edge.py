"""Rows judged against their contract, held to an oracle that goes row by row."""

import datetime as dt
import io
import math
import re
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranklake.lake.contracts import Check, Column, Contract, contract, load_contracts
from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.checks.registry import failures, fault_text, kind_of
from ranklake.lake.contracts.edge import reject_reasons

NOW = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC)


def made(columns, checks=()):
    """Return a contract with these columns and table checks."""
    names = {"owner": "", "steward": "", "summary": "", "retention": "raw", "kind": "fact"}
    first = columns[0].name
    return Contract(
        table="t", version=1, grain=(first,), partition=(first,), sort=(first,), columns=columns, checks=checks, **names
    )


def passes(check, row):
    """Say whether a row passes a check, in plain Python: the meaning that `failures` must have."""
    values = [row[name] for name in check.columns]
    there = [value is not None for value in values]
    if check.kind in {"not_null", "exactly_one"}:
        return sum(there) == 1
    if not all(there):
        return True
    size = len(values[0]) if check.kind == "length" else values[0]
    return {
        "between": lambda: (check.min is None or size >= check.min) and (check.max is None or size <= check.max),
        "length": lambda: (check.min is None or size >= check.min) and (check.max is None or size <= check.max),
        "in_set": lambda: size in check.values,
        "matches": lambda: re.fullmatch(check.pattern, size) is not None,
        "at_most": lambda: values[0] <= values[1] + check.tolerance,
    }[check.kind]()


def reason(one, row):
    """Return why a row is bad, or None, by going through the contract as its description says."""
    for column in one.columns:
        if column.required and row[column.name] is None:
            return f"required: {column.name} is NULL"
    for column in one.columns:
        value = row[column.name]
        if column.type in {"float32", "float64"} and value is not None and not math.isfinite(value):
            return f"finite: {column.name} is NaN or infinite"
    for check in one.all_checks():
        if check.on_fail == "quarantine" and not passes(check, row):
            return f"{check.id}: {fault_text(check)}"
    return None


NUMBERS = st.integers(-5, 5)
BOUNDS = st.none() | NUMBERS


@st.composite
def contracts(draw):
    """Draw a contract with a text, two floats and an integer, and checks of every row kind."""
    quarantine = st.sampled_from(["record", "quarantine"])

    def check(id_, kind, *columns, **parameters):
        return Check(id=id_, kind=kind, columns=columns, on_fail=draw(quarantine), **parameters)

    low, high = draw(BOUNDS), draw(BOUNDS)
    columns = (
        Column(1, "name", "string", "operational", "", required=draw(st.booleans()), checks=(
            check("name_known", "in_set", "name", values=("a", "bb", "")),
            check("name_form", "matches", "name", pattern="[ab]*|xé"),
            check("name_size", "length", "name", min=draw(st.integers(0, 2)), max=draw(st.integers(0, 3))),
        )),
        Column(2, "x", "float64", "operational", "", required=draw(st.booleans()), checks=(
            check("x_range", "between", "x", min=low, max=high),
        )),
        Column(3, "y", "float32", "operational", ""),
        Column(4, "n", "int32", "operational", "", checks=(
            check("n_range", "between", "n", min=draw(BOUNDS), max=draw(BOUNDS)),
            check("n_there", "not_null", "n"),
            check("n_known", "in_set", "n", values=(0, 1, 2)),
        )),
    )  # fmt: skip
    checks = (
        check("x_up_to_y", "at_most", "x", "y", tolerance=draw(st.sampled_from([0.0, 1.0]))),
        check("one", "exactly_one", "x", "y", "n"),
    )
    return made(columns, checks)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.none() | st.sampled_from(["a", "bb", "", "c", "xé", "a\n", "abab"]),
            "x": st.none() | st.sampled_from([math.nan, math.inf, -math.inf]) | NUMBERS.map(float),
            "y": st.none() | st.sampled_from([math.nan, math.inf]) | NUMBERS.map(float),
            "n": st.none() | NUMBERS,
        }
    ),
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(contracts(), ROWS)
def test_judge_agrees_with_the_oracle(one, rows):
    """The vectorised judgement is that of a loop over rows, reason for reason."""
    table = pa.Table.from_pylist(rows, schema=arrow_schema(one))
    assert reject_reasons(one, table).to_pylist() == [reason(one, row) for row in rows]


@settings(deadline=None)
@given(contracts(), ROWS)
def test_failures_agree_with_the_oracle(one, rows):
    """Each check's mask, which quality uses for recording checks too, has no NULL and the oracle's verdicts."""
    table = pa.Table.from_pylist(rows, schema=arrow_schema(one))
    for check in one.all_checks():
        finite = [row for row in rows if all(value is None or value == value for value in row.values())]  # noqa: PLR0124
        if len(finite) == len(rows):
            assert failures(check, table).to_pylist() == [not passes(check, row) for row in rows]


@settings(deadline=None)
@given(contracts(), ROWS)
@pytest.mark.slow
def test_good_rows_stay_good(one, rows):
    """What `reject_reasons` passes is good again alone, fits the contract and has no NULL where none may be."""
    table = pa.Table.from_pylist(rows, schema=arrow_schema(one))
    good = table.filter(reject_reasons(one, table).is_null())
    assert reject_reasons(one, good).null_count == good.num_rows
    conform(good, one).validate(full=True)
    for column in one.columns:
        assert not column.required or good[column.name].null_count == 0


def steps(*rows):
    """Return rows of steps, of a segment, from what differs from a good one."""
    good = {
        "run": "r", "attempt": 0, "rank": 0, "incarnation": 1, "segment": 0, "slot": 0, "ts": NOW, "step": 1,
        "step_time_s": 0.5,
    }  # fmt: skip
    schema = arrow_schema(contract("steps"), segment=True)
    return pa.Table.from_pylist([good | row for row in rows], schema=schema)


BAD = {
    "good": ({}, None),
    "NaN": ({"loss": math.nan}, "finite: loss is NaN or infinite"),
    "infinite": ({"grad_norm": math.inf}, "finite: grad_norm is NaN or infinite"),
    "required": ({"step": None}, "required: step is NULL"),
    "negative step": ({"step": -1}, "step_from_zero: step outside 0 to …"),
    "negative duration": ({"step_time_s": -0.1}, "step_time_not_negative: step_time_s outside 0 to …"),
    "run's name": ({"run": "a b"}, "run_name: run does not match [A-Za-z0-9._-]{1,128}"),
    "run's name with a line": ({"run": "a\n"}, "run_name: run does not match [A-Za-z0-9._-]{1,128}"),
    "clock never set": (
        {"ts": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)},
        "ts_plausible: ts outside 2000-01-01T00:00:00Z to 2100-01-01T00:00:00Z",
    ),
    "the required comes first": ({"step": None, "loss": math.nan, "run": "a b"}, "required: step is NULL"),
    "recorded only": ({"lr": -1.0}, None),
}


@pytest.mark.parametrize("case", BAD)
def test_steps_are_judged(case):
    """The packaged contract of steps sends these rows to quarantine with these reasons."""
    row, expected = BAD[case]
    assert reject_reasons(contract("steps"), steps(row)).to_pylist() == [expected]


def test_a_value_or_its_flag():
    """A scalar has a value or says what it was, never both and never neither."""
    one = contract("scalars")
    shared = {name: value for name, value in steps({}).to_pylist()[0].items() if name in one and name != "step"}
    rows = [
        {**shared, "metric": "m", "value": 1.0},
        {**shared, "metric": "m", "value_flag": "nan"},
        {**shared, "metric": "m"},
        {**shared, "metric": "m", "value": 1.0, "value_flag": "+inf"},
        {**shared, "metric": "m", "value_flag": "NaN"},
        {**shared, "metric": ""},
    ]
    reasons = reject_reasons(one, pa.Table.from_pylist(rows, schema=arrow_schema(one, segment=True))).to_pylist()
    assert [why and why.split(":")[0] for why in reasons] == [
        None, None, "value_or_flag", "value_or_flag", "value_flag_known", "metric_name",
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(load_contracts()))
def test_every_packaged_check_can_be_computed(name):
    """All row checks of all tables run on an empty and on an all-NULL table of that contract."""
    one = contract(name)
    empty = arrow_schema(one).empty_table()
    nulls = pa.table([pa.nulls(2, field.type) for field in empty.schema], schema=empty.schema)
    assert reject_reasons(one, empty).to_pylist() == []
    assert all(why.startswith("required: ") for why in reject_reasons(one, nulls).to_pylist())
    for check in one.all_checks():
        if kind_of(check).level == "row":
            assert failures(check, nulls).null_count == 0


@pytest.mark.slow
def test_judging_is_fast_enough_to_stand_before_every_row():
    """Judging rows of steps costs under three times what writing them as Parquet does, and the bad half is found."""
    table = pa.concat_tables([steps({}, {"step": -1})] * 100_000).combine_chunks()

    def cpu_s(work):
        start = time.process_time()
        done = work()
        return time.process_time() - start, done

    judged = [cpu_s(lambda: reject_reasons(contract("steps"), table)) for _ in range(3)]
    written = [cpu_s(lambda: pq.write_table(table, io.BytesIO())) for _ in range(3)]
    assert min(took for took, _ in judged) < 3 * min(took for took, _ in written)
    reasons = judged[0][1]
    assert isinstance(reasons, pa.StringArray)
    assert reasons.null_count == 100_000
