"""What watches sum up of all series of a batch at once, against plain loops over one series after the other."""

import math
from itertools import groupby, pairwise
from statistics import median

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranklake.lake.contracts.checks.registry import KINDS
from ranklake.lake.contracts.checks.series import Batch
from ranklake.lake.contracts.model import Check

BY = ("run", "rank")


def series_of(rows, along, by=BY):
    """Rows of each series, in order of a column and then as they come."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in by), []).append(row)
    return {key: sorted(of_key, key=lambda row: row[along]) for key, of_key in found.items()}


def values_of(rows, name="value"):
    """Values that are there: neither NULL nor NaN."""
    return [row[name] for row in rows if row[name] is not None and not math.isnan(row[name])]


def distances(rows, along):
    """Distances between neighbours."""
    return [b[along] - a[along] for a, b in pairwise(rows)]


def stuck(rows):
    """Stretches of one value: the first, the last and the longest."""
    values = values_of(rows)
    stretches = [(len(list(of)), value) for value, of in groupby(values)]
    first = next(row["ts"] for row in rows if values_of([row]))
    return [first, len(values), len(stretches) - 1, stretches[0], stretches[-1], max(stretches, key=lambda one: one[0])]


def monotonic(rows):
    """Falls and resets."""
    there = [row for row in rows if values_of([row])]
    values = values_of(rows)
    down = [(a, b) for a, b in pairwise(values) if b < a]
    resets = sum(b <= 0.1 * a for a, b in down)
    return [len(values), len(down) - resets, resets, there[0]["ts"], values[0], there[-1]["ts"], values[-1]]


def unit(rows):
    """Values above 0, their median, the sum of all but the last row, and seconds."""
    above = [value for value in values_of(rows) if value > 0]
    return [len(above), median(above), sum(values_of(rows[:-1])), (rows[-1]["ts"] - rows[0]["ts"]) / 1e6]


def completeness(rows):
    """Rows at different places, the ends, and the usual distance."""
    steps = [step for step in distances(rows, "ts") if step > 0]
    return [len(steps) + 1, rows[0]["ts"], rows[-1]["ts"], median(steps) if steps else 0.0]


def gaps(rows):
    """As completeness, and what may be gaps."""
    steps = [step for step in distances(rows, "ts") if step > 0]
    usual = median(steps) if steps else 0.0
    pairs = [(a["ts"], b["ts"]) for a, b in pairwise(rows)]
    return (len(rows), rows[0]["ts"], rows[-1]["ts"], usual, [(a, b) for a, b in pairs if b - a > max(5e6, usual)])


def fleet_gap(rows):
    """As completeness, rows at one place counted each."""
    steps = distances(rows, "ts")
    return (len(rows), rows[0]["ts"], rows[-1]["ts"], median(steps) if steps else 0.0)


def rank_coverage(rows):
    """Ranges of steps, first and last time, and the ranks that it stands for."""
    steps = sorted({row["step"] for row in rows})
    starts = [step for step in steps if step - 1 not in steps]
    ends = [step for step in steps if step + 1 not in steps]
    times = [row["ts"] for row in rows]
    return [[starts, ends], min(times), max(times), int(max(values_of(rows, "ranks"), default=1))]


def with_values(kind, rows):
    """Whether a series is summed up at all."""
    values = [row for row in rows if kind == "unit" or row["kind"] == "counter"] if kind != "stuck" else rows
    return any(value > 0 for value in values_of(values)) if kind == "unit" else bool(values_of(values))


CASES = {
    "stuck": (Check("c", "stuck", columns=("value",), by=BY), "ts", stuck),
    "monotonic": (Check("c", "monotonic", columns=("value",), by=BY), "ts", monotonic),
    "unit": (Check("c", "unit", columns=("value",), by=BY), "ts", unit),
    "completeness": (Check("c", "completeness", columns=("ts",), by=BY), "ts", completeness),
    "gaps": (Check("c", "gaps", columns=("ts",), by=BY), "ts", gaps),
    "fleet_gap": (Check("c", "fleet_gap", columns=("ts",), by=BY), "ts", fleet_gap),
    "rank_coverage": (Check("c", "rank_coverage", columns=("rank", "step"), by=("run",)), "step", rank_coverage),
}

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "run": st.sampled_from(["a", "b", None]),
            "rank": st.integers(0, 2),
            "kind": st.sampled_from(["counter", "gauge", None]),
            "ts": st.integers(0, 40).map(lambda second: second * 1_000_000),
            "step": st.integers(0, 9),
            "ranks": st.none() | st.integers(1, 4),
            "value": st.none() | st.sampled_from([-1.0, 0.0, 0.5, 5.0, 6.0, 70.0, math.nan, math.inf]),
        }
    ),
    max_size=60,
)


def batch_of(rows, cuts, in_order):
    """Make a batch of several chunks, whose texts have dictionaries of their own."""
    rows = sorted(rows, key=lambda row: (row["run"] or "", row["rank"], row["ts"])) if in_order else rows
    types = {"run": pa.string(), "rank": pa.int32(), "kind": pa.string(), "ts": pa.timestamp("us", "UTC"),
             "step": pa.int64(), "ranks": pa.int32(), "value": pa.float32()}  # fmt: skip
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    chunks = [rows[a:b] for a, b in pairwise(bounds)] or [[]]
    columns = {}
    for name, kind in types.items():
        arrays = [pa.array([row[name] for row in chunk], kind) for chunk in chunks]
        arrays = [array.dictionary_encode() for array in arrays] if name in {"run", "kind"} else arrays
        columns[name] = pa.chunked_array(arrays)
    return rows, Batch(pa.table(columns))


def plain(facts):
    """Facts without numpy's types."""
    return [[list(map(int, ends)) for ends in one] if isinstance(one, np.ndarray) else one for one in facts]


@pytest.mark.parametrize("kind", CASES)
@given(rows=ROWS, cuts=st.lists(st.integers(1, 50), max_size=3), in_order=st.booleans())
def test_series_are_summed_up_as_one_after_the_other(kind, rows, cuts, in_order):
    """In any order and chunks, with NULL, NaN, infinity and values that repeat."""
    check, along, oracle = CASES[kind]
    rows, batch = batch_of(rows, cuts, in_order)
    if kind == "fleet_gap" and not rows:
        return  # a batch has rows
    part = KINDS[kind].watch.summarize(check, batch)
    part = part[1] if kind == "fleet_gap" else part
    rows = [row for row in rows if kind != "monotonic" or row["kind"] == "counter"]
    expected = {}
    for key, of_key in series_of(rows, along).items():
        if kind not in {"stuck", "monotonic", "unit"} or with_values(kind, of_key):
            expected[key] = list(oracle(of_key))
    assert {key: plain(facts) for key, facts in part.items()} == expected
