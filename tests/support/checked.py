"""Rows and checks of every kind, for tests of how they are judged."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
from hypothesis import strategies as st

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.model import Check, Column, Contract
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
    Check("e3", "equal", columns=("text", "metric")),
    Check("d6", "exactly_one", columns=("whole", "text")),
    Check("d7", "json", columns=("text",)),
    Check("d8", "finite", columns=("narrow",)),
    Check("d9", "dated", columns=("moment", "day")),
    Check("e1", "metric_range", columns=("metric", "real")),
    Check("e2", "fill_ratio", columns=("text",), min=0.5),
)


def made(class_="operational", checks=CHECKS):
    """Return a contract with a column of every type."""
    columns = tuple(Column(index + 1, name, kind, class_, "doc") for index, (name, kind) in enumerate(COLUMNS.items()))
    return Contract("t", 1, "fact", "o", "s", "t", ("whole",), ("day",), (), "raw", columns, checks)


def expectations(contract):
    """Return those of its suite that it spells out."""
    wanted = {check.id for check in contract.checks}
    return [one for one in compile_suite(contract, {}).expectations if one.check.id in wanted]


def table(rows):
    """Return its rows; what is not given is NULL."""
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
