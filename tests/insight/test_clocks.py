"""Clock offsets of nodes, told by the collectives that all ranks leave together."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import job, record, spans_of

from ranklake.insight.diagnosis.run_spans import MIN_COLLECTIVES, align_clocks, clock_offsets, one_clock, trace_of
from ranklake.insight.diagnosis.spans import COLUMNS, place
from ranklake.insight.diagnosis.what_if import what_if

BASE_US = 1_700_000_000_000_000


def collectives(offsets_us, ranks_of_node, count, late_us):
    """Return spans of numbered all-reduces; each rank leaves as its node's clock and some lateness have it."""
    ranks = len(offsets_us) * ranks_of_node
    facts = []
    for number in range(count):
        for rank in range(ranks):
            end = BASE_US + number * 10_000 + int(late_us[number, rank]) + offsets_us[rank // ranks_of_node]
            facts.append({
                **dict.fromkeys(COLUMNS),
                "rank": rank, "incarnation": rank, "segment": 0, "slot": number, "ts": end - 500, "name": "all_reduce",
                "kind": "collective", "step": number // 2, "duration_ns": 500_000, "sequence": number + 1,
                "process_group": "0", "group_size": ranks,
            })  # fmt: skip
    types = {
        "ts": pa.timestamp("us", "UTC"),
        "group_size": pa.int32(),
        "rank": pa.int32(),
        "process_group": pa.string(),
    }
    columns = {name: pa.array([fact[name] for fact in facts], types.get(name)) for name in COLUMNS}
    return pa.table(columns), {rank: rank // ranks_of_node for rank in range(ranks)}


offsets = st.lists(st.integers(-2_000_000, 2_000_000), min_size=2, max_size=5)


@settings(max_examples=20, deadline=None)
@given(offsets_us=offsets, ranks_of_node=st.integers(1, 4), data=st.data())
def test_exact_where_all_leave_together(offsets_us, ranks_of_node, data):
    """Whatever the offsets, even far more than a step: they are found to the nanosecond, and taken out."""
    count = data.draw(st.integers(MIN_COLLECTIVES, 20))
    rows, clock_of = collectives(offsets_us, ranks_of_node, count, np.zeros((count, 100)))
    found = clock_offsets(rows, clock_of)
    middle = np.median(offsets_us)
    assert found.offset_ns == {node: (one - middle) * 1000 for node, one in enumerate(offsets_us)}
    assert set(found.spread_ns.values()) == {0.0}
    again = clock_offsets(align_clocks(rows, clock_of, found), clock_of)
    assert max(map(abs, again.offset_ns.values())) <= 1000


@settings(max_examples=20, deadline=None)
@given(offsets_us=offsets, seed=st.integers(0, 2**32 - 1))
def test_late_ranks_do_not_move_it(offsets_us, seed):
    """Ranks up to 100 us late, and in a fifth of the collectives one far later, move it by less than that."""
    rng = np.random.default_rng(seed)
    late = rng.uniform(0, 100, (60, len(offsets_us) * 4))
    for number in rng.choice(60, 12, replace=False):
        late[number, rng.integers(late.shape[1])] += 50_000
    rows, clock_of = collectives(offsets_us, 4, 60, late)
    found = clock_offsets(rows, clock_of)
    for node, one in enumerate(offsets_us):
        assert found.offset_ns[node] == pytest.approx((one - np.median(offsets_us)) * 1000, abs=100_000)


def test_too_little_is_not_used():
    """Few collectives, or of a part of the ranks, give no offsets."""
    rows, clock_of = collectives([0, 500], 2, MIN_COLLECTIVES - 1, np.zeros((100, 4)))
    assert clock_offsets(rows, clock_of) is None
    rows, clock_of = collectives([0, 500], 2, 30, np.zeros((100, 4)))
    half = rows.set_column(
        rows.schema.get_field_index("group_size"), "group_size", pa.array([2] * len(rows), pa.int32())
    )
    assert clock_offsets(half, clock_of) is None


def test_what_if_is_what_it_were_on_one_clock():
    """A pipeline on two nodes, one 7 ms ahead, gives the results of one clock; without alignment it does not."""
    rng = np.random.default_rng(1)
    of = job(2, 4, 4)
    rows = spans_of(of, record(of, 12, lambda op, step: int(rng.integers(500, 1000))))
    ahead = np.where(rows["rank"].to_numpy() >= 4, 7000, 0)
    at = rows.schema.get_field_index("ts")
    field = rows.schema.field(at)
    times = pa.array(rows["ts"].cast(pa.int64()).to_numpy() + ahead).cast(field.type)
    apart = rows.set_column(at, field, times)

    def s(table):
        return what_if(trace_of(*place(table))).s

    mended, notes = one_clock(apart, 8, 4)
    assert s(mended) == pytest.approx(s(rows), rel=1e-3)
    assert s(apart) != pytest.approx(s(rows), rel=1e-2)
    assert "clocks of 2 nodes aligned by 12 collectives" in notes[0]
    assert one_clock(apart, 8, 8) == (apart, ())
    same, (note,) = one_clock(rows, 8, 4)
    assert same is rows
    assert note.startswith("clocks of 2 nodes agree within 0.0")
