"""What-if analysis: against a slow simulator event by event, against what must hold, and how fast."""

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import Oracle, job, mean, part, record, spans_of

from ranklake.insight.diagnosis.run_spans import trace_of
from ranklake.insight.diagnosis.simulate import WhatIfError
from ranklake.insight.diagnosis.spans import place
from ranklake.insight.diagnosis.what_if import what_if

LENGTH_US = {"forward-compute": 1000, "backward-compute": 2000, "optimizer": 500, "gc": 0}


def analysed(rows):
    return what_if(trace_of(*place(rows)))


def lengths_us(rng, spread, communication_us=100):
    def draw(op, step):
        return int(LENGTH_US.get(op[0], communication_us) * rng.uniform(1, 1 + spread))

    return draw


in_turn = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.just(1), st.integers(1, 3))
interleaved = st.tuples(st.integers(1, 2), st.integers(2, 3), st.integers(1, 2), st.integers(2, 3))
shapes = in_turn | interleaved.map(lambda it: (it[0], it[1], it[1] * it[2], it[3]))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(shape=shapes, steps=st.integers(1, 3), seed=st.integers(0, 2**32 - 1), slow=st.sampled_from([10, 300, 5000]))
def test_it_is_the_slow_simulator(shape, steps, seed, slow):
    """Every number is exactly what a simulator gives that takes one operation after the other."""
    rng = np.random.default_rng(seed)
    of = job(*shape)
    recorded = record(of, steps, lengths_us(rng, 1.5, slow), lambda: int(rng.integers(0, 50)))
    oracle, found = Oracle(of, recorded), analysed(spans_of(of, recorded, rng))
    assert found.ideal_ns == oracle.ideal_time
    assert list(found.step_s.values()) == [time / oracle.ideal_time for time in oracle.no_delay]
    assert found.s == mean(oracle.no_delay) / oracle.ideal_time
    for name, s in found.by_kind.items():
        assert s == oracle.slowdown(lambda op, name=name: part(op[0]) == name), name
    assert set(found.by_kind) == {part(op[0]) for op in of.needs}
    assert dict(found.by_stage) == {at: oracle.slowdown(lambda op, at=at: op[2] == at) for at in range(of.pp)}
    assert dict(found.by_dp_rank) == {at: oracle.slowdown(lambda op, at=at: op[3] == at) for at in range(of.dp)}
    assert {one.rank: one.s for one in found.workers} == {
        dp + of.dp * stage: min(found.by_dp_rank[dp], found.by_stage[stage])
        for dp in range(of.dp)
        for stage in range(of.pp)
    }
    (worst, *_) = found.workers
    assert found.m_w == oracle.share(lambda op: (op[3], op[2]) == (worst.dp_rank, worst.stage))
    assert found.m_s == (oracle.share(lambda op: op[2] == of.pp - 1) if of.pp > 1 else None)


@settings(max_examples=8, deadline=None)
@given(shape=shapes, factor=st.integers(2, 9))
def test_equal_lengths_lose_nothing_and_scale(shape, factor):
    """Without delays and differences S and every slowdown are 1; longer operations make longer steps, the same S."""
    of = job(*shape)
    found = analysed(spans_of(of, record(of, 2, lambda op, step: LENGTH_US.get(op[0], 100))))
    assert found.s == pytest.approx(1, abs=1e-12)
    assert {*found.by_kind.values(), *found.by_stage.values(), *found.by_dp_rank.values()} == {1.0}
    assert (found.m_w, found.m_s) == (None, None)
    assert found.no_delay_ns == found.recorded_ns
    scaled = analysed(spans_of(of, record(of, 2, lambda op, step: factor * LENGTH_US.get(op[0], 100))))
    assert scaled.no_delay_ns == factor * found.no_delay_ns
    assert scaled.ideal_ns == factor * found.ideal_ns


@settings(max_examples=8, deadline=None)
@given(dp=st.integers(2, 4), pp=st.integers(2, 4), data=st.data())
def test_a_slow_worker_is_named(dp, pp, data):
    """A worker whose computes take twice as long raises S, and M_W is about it and at least nearly all of the loss."""
    slow = data.draw(st.tuples(st.integers(0, dp - 1), st.integers(0, pp - 1)))
    of = job(dp, pp, 4)

    def draw(op, step):
        slower = 2 if (op[3], op[2]) == slow and op[0].endswith("compute") else 1
        return slower * LENGTH_US.get(op[0], 10)

    found = analysed(spans_of(of, record(of, 2, draw)))
    assert found.s > 1.1
    assert (found.workers[0].dp_rank, found.workers[0].stage) == slow
    assert found.m_w > 0.9  # the means that are ideal have the slow one in them, so it may be more than 1


def test_what_is_not_whole_is_left_out_and_told():
    """A step that lacks an operation, or has one too many, is not analysed; the others give what they give alone."""
    rng = np.random.default_rng(1)
    of = job(2, 2, 3)
    recorded = record(of, 4, lengths_us(rng, 1.0))
    alone = analysed(spans_of(of, recorded[:2]))
    short = dict(recorded[2][0])
    del short["backward-compute", 1, 1, 0]
    found = analysed(spans_of(of, [*recorded[:2], (short, recorded[2][1])]))
    assert (found.s, list(found.step_s)) == (alone.s, [10, 11])
    assert found.trace.notes == ("1 step of 3 left out, incomplete or unlike the others: 12",)


def test_missing_ranks_are_refused():
    """A stage of a data-parallel rank that recorded nothing is named; no number is made up for it."""
    of = job(2, 3, 3)
    rows = spans_of(of, record(of, 2, lengths_us(np.random.default_rng(1), 1.0)))
    table = rows.to_pandas()
    kept = ~((table["dp_rank"] == 1) & (table["pp_rank"] == 1)).to_numpy()
    with pytest.raises(WhatIfError, match=r"no spans of 1 rank of 6 \(data-parallel rank 1, stage 1\)"):
        analysed(rows.filter(pa.array(kept)))


@pytest.mark.parametrize("name", ["forward-recv", "backward-send", "forward-compute"])
def test_ragged_microbatches_are_refused(name):
    """A stage with fewer sends, receives or computes than the others in every step is named."""
    of = job(1, 3, 3)
    recorded = record(of, 2, lengths_us(np.random.default_rng(1), 1.0))
    for starts, _ in recorded:
        del starts[name, 2, 1, 0]
    with pytest.raises(WhatIfError, match="stage 1"):
        analysed(spans_of(of, recorded))


def test_of_ranks_that_share_a_stage_the_first_stands():
    """Tensor-parallel ranks go in lockstep: the first is analysed, and the note says how many are not."""
    of = job(2, 2, 2)
    rows = spans_of(of, record(of, 2, lengths_us(np.random.default_rng(1), 1.0)))
    rank = rows["rank"].to_numpy()
    first = rows.set_column(0, "rank", pa.array(2 * rank, pa.int32()))
    second = rows.set_column(0, "rank", pa.array(2 * rank + 1, pa.int32()))
    found = analysed(pa.concat_tables([second, first]))
    assert found.s == analysed(rows).s
    assert {one.rank for one in found.workers} == {0, 2, 4, 6}
    assert found.trace.notes[0].startswith("4 ranks left out")


def test_it_is_fast():
    """117,216 operations (44 steps, 4 x 4 ranks) take less than half of the 1.6 s that the paper's artifact takes."""
    rng = np.random.default_rng(1)
    of = job(4, 4, 32)
    recorded = record(of, 1, lengths_us(rng, 1.0))
    one = spans_of(of, recorded)
    steps = [
        one.set_column(one.column_names.index("step"), "step", pa.array(np.full(len(one), at))) for at in range(44)
    ]
    rows = pa.concat_tables(steps)
    assert len(rows) == 117_216
    spent = []
    for _ in range(3):
        begin = time.process_time()
        analysed(rows)
        spent.append(time.process_time() - begin)
    assert min(spent) < 0.8
