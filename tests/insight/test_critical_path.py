"""The critical path: lengths on it add up to the step, and are what the step hangs on; nothing else is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import job, record, spans_of

from ranklake.insight.diagnosis.critical_path import critical_path, on_path
from ranklake.insight.diagnosis.run_spans import trace_of
from ranklake.insight.diagnosis.simulate import own_lengths, step_times
from ranklake.insight.diagnosis.spans import place

LENGTH_US = {"forward-compute": 1000, "backward-compute": 2000, "optimizer": 500, "gc": 0}


def traced(shape, steps, lengths, rng=None):
    """Return a trace of a job, and its own lengths."""
    of = job(*shape)
    found = trace_of(*place(spans_of(of, record(of, steps, lengths), rng)))
    return found, own_lengths(found)


@settings(max_examples=20, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)),
    steps=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_on_it_is_what_a_step_hangs_on(shape, steps, seed):
    """It adds up to the step exactly; whatever on it is longer delays the step, what is not on it may be shorter."""
    rng = np.random.default_rng(seed)
    trace, own = traced(shape, steps, lambda op, step: int(LENGTH_US.get(op[0], 100) * rng.uniform(1, 2)))
    times = step_times(trace.graph, lambda node: own[node])
    marks = on_path(trace, own)
    assert np.where(marks, own, 0).sum(axis=(0, 2)).tolist() == times.tolist()
    for at in range(steps):
        for node, dp in np.argwhere(marks[:, at]):
            longer = own.copy()
            longer[node, at, dp] += 7000
            delayed = step_times(trace.graph, lambda node, longer=longer: longer[node]) - times
            assert delayed.tolist() == [7000.0 * (other == at) for other in range(steps)]
    shorter = np.where(marks, own, own / 2)
    assert step_times(trace.graph, lambda node: shorter[node]).tolist() == times.tolist()


@pytest.mark.parametrize("slow", [(0, 0), (1, 2), (0, 3)])
def test_the_slow_stage_holds_it(slow):
    """A stage whose computes take three times as long has most of the path; shares add up; each step names a rank."""

    def lengths(op, step):
        return (3 if (op[3], op[2]) == slow else 1) * LENGTH_US.get(op[0], 10)

    trace, own = traced((2, 4, 8), 3, lengths)
    found = critical_path(trace, own)
    rank = trace.ranks[slow]
    assert next(iter(found.by_stage)) == slow[1]
    assert next(iter(found.by_rank)) == rank
    assert found.by_rank[rank] > 0.7
    for shares in (found.by_kind, found.by_stage, found.by_rank):
        assert sum(shares.values()) == pytest.approx(1)
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert {(one.rank, one.kind) for one in found.paces} == {(rank, "backward-compute")}
    assert [one.step for one in found.paces] == trace.steps.tolist()


def test_of_ranks_that_are_alike_one_is_taken():
    """The path does not jump between them; without any time there is no path."""
    trace, own = traced((4, 1, 2), 2, lambda op, step: LENGTH_US.get(op[0], 100))
    assert list(critical_path(trace, own).by_rank.values()) == [1, 0, 0, 0]
    nothing = critical_path(replace(trace, duration_ns=own * 0), own * 0)
    assert (nothing.by_kind, nothing.by_stage, nothing.by_rank, list(nothing.paces)) == ({}, {}, {}, [])


def test_steps_may_be_taken_in_pieces(monkeypatch):
    """Without a difference."""
    rng = np.random.default_rng(1)
    trace, own = traced((2, 3, 4), 5, lambda op, step: int(LENGTH_US.get(op[0], 100) * rng.uniform(1, 2)))
    whole = critical_path(trace, own)
    monkeypatch.setattr("ranklake.insight.diagnosis.critical_path._AT_A_TIME", 1)
    assert critical_path(trace, own) == whole
