"""What-if analysis of a job that is no pipeline: phases and collectives of data-parallel ranks."""

import pyarrow as pa
import pytest

from ranklake.insight.diagnosis.run_spans import trace_of
from ranklake.insight.diagnosis.simulate import WhatIfError
from ranklake.insight.diagnosis.spans import COLUMNS, place
from ranklake.insight.diagnosis.what_if import what_if
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract


def analysed(facts):
    schema = arrow_schema(contract("spans"))
    defaults = {"incarnation": 1, "segment": 0, "kind": "phase"}
    full = [{**defaults, "slot": slot, **fact} for slot, fact in enumerate(facts)]
    rows = [{name: row.get(name) for name in COLUMNS} for row in full]
    table = pa.Table.from_pylist(rows, schema=pa.schema([schema.field(name) for name in COLUMNS]))
    return what_if(trace_of(*place(table)))


def span(rank, step, name, start, length, **more):
    """Return a span; milliseconds since the step's start."""
    ts = 1_700_000_000_000_000 + step * 1_000_000 + start * 1000
    return {"rank": rank, "step": step, "name": name, "ts": ts, "duration_ns": length * 1_000_000, **more}


def blocking(forward_ms, steps=3):
    """Return a job whose ranks compute, reduce within backward, and step; the last to come is waited for."""
    for step in range(steps):
        begun = max(forward_ms) + 10
        for rank, forward in enumerate(forward_ms):
            reduce = {"kind": "collective", "group_size": len(forward_ms)}
            yield span(rank, step, "forward", 0, forward)
            yield span(rank, step, "backward", forward, begun + 5 + 7 - forward)
            yield span(rank, step, "all_reduce", forward + 10, begun + 5 - forward - 10, **reduce)
            yield span(rank, step, "optimizer", begun + 12, 3)


def beside(forward_ms, steps=3):
    """Return a job whose gradients are reduced beside backward, in two buckets, and waited for at its end."""
    for step in range(steps):
        late = max(forward_ms)
        for rank, forward in enumerate(forward_ms):
            bucket = {"kind": "collective", "stream": "gloo", "process_group": "0", "group_size": len(forward_ms)}
            yield span(rank, step, "forward", 0, forward)
            yield span(rank, step, "backward", forward, late + 21 - forward)
            yield span(rank, step, "all_reduce", forward + 10, late + 10 + 4 - forward - 10, **bucket)
            yield span(rank, step, "all_reduce", forward + 15, late + 15 + 5 - forward - 15, **bucket)
            yield span(rank, step, "collective", forward + 16, late + 20 - forward - 16, kind="collective")
            yield span(rank, step, "optimizer", late + 21, 3)


@pytest.mark.parametrize(("job", "reduce_ms"), [(blocking, 5), (beside, 5)])
def test_the_rank_that_others_wait_for_holds_the_critical_path(job, reduce_ms):
    """Until the collective; what comes after it takes all of them the same time."""
    path = analysed(job([20, 20, 40, 20])).path
    assert next(iter(path.by_rank)) == 2
    assert path.by_rank[2] * path.paces[0].path_ns >= 50e6
    assert {(one.rank, one.kind) for one in path.paces} == {(2, "forward")}
    assert path.by_kind["forward"] == 40e6 / path.paces[0].path_ns
    assert 0 < path.by_kind["all_reduce"] * path.paces[0].path_ns <= reduce_ms * 1e6 + 1


@pytest.mark.parametrize(("job", "rest_ms"), [(blocking, 25), (beside, 24)])
def test_a_slow_rank_is_named(job, rest_ms):
    """The rank that takes twice as long is named, its slowness is forward's, and a step of equals is the ideal."""
    found = analysed(job([20, 20, 40, 20]))
    assert found.recorded_ns == found.no_delay_ns == (40 + rest_ms) * 1e6
    assert found.ideal_ns == (25 + rest_ms) * 1e6
    assert next(iter(found.by_kind)) == "forward"
    assert found.by_kind["forward"] == found.s == (40 + rest_ms) / (25 + rest_ms)
    assert found.workers[0].rank == 2
    assert (found.m_w, found.m_s) == (1.0, None)


@pytest.mark.parametrize("job", [blocking, beside])
def test_equal_ranks_lose_nothing(job):
    """Where all ranks take as long, no part slows the steps down, and no share of a loss is told."""
    found = analysed(job([20, 20, 20]))
    assert {found.s, *found.by_kind.values(), *found.by_dp_rank.values()} == {1.0}
    assert found.m_w is None


def test_a_step_with_a_checkpoint_is_left_out():
    """What some steps have and most have not is no part of the usual step."""
    facts = [*blocking([20, 30]), span(0, 1, "checkpoint", 80, 50, kind="checkpoint")]
    found = analysed(facts)
    assert list(found.step_s) == [0, 2]
    assert found.trace.notes[-1].startswith("1 step of 3 left out")


def test_a_phase_within_a_phase_is_part_of_it():
    """Phases of the user's own within forward change nothing."""
    facts = list(blocking([20, 30]))
    inner = [span(rank, step, "attention", 2, 5) for step in range(3) for rank in range(2)]
    assert analysed(facts + inner).by_kind == analysed(facts).by_kind


def test_starts_are_whole_microseconds():
    """Phases that lie end to end overlap by up to a microsecond as stored; each is one of its own all the same."""
    facts = list(blocking([20, 30]))
    longer = [{**fact, "duration_ns": fact["duration_ns"] + 900} for fact in facts]
    assert analysed(longer).trace.graph.names == analysed(facts).trace.graph.names


def test_times_of_the_device_take_the_place_of_the_hosts():
    """Where a phase is timed on the device too, the host's time of it, which is but the launch, is not used."""
    facts = list(blocking([20, 30]))
    on_device = [
        {**fact, "device_time": True, "stream": "cuda"} if fact["name"] == "forward" else fact for fact in facts
    ]
    launches = [{**fact, "duration_ns": 1_000_000} for fact in facts if fact["name"] == "forward"]
    assert analysed(on_device + launches).by_kind == analysed(facts).by_kind


def test_what_cannot_be_told_is_refused():
    """Waiting that nobody recorded, subgroups, stages without their operations: one line, and no number."""
    facts = list(beside([20, 30]))
    with pytest.raises(WhatIfError, match="waiting cannot be told from work"):
        analysed([fact for fact in facts if fact.get("kind") != "collective"])
    with pytest.raises(WhatIfError, match="how long training waited"):
        analysed([fact for fact in facts if fact["name"] != "collective"])
    with pytest.raises(WhatIfError, match="among 1 of 2 data-parallel ranks"):
        analysed([{**fact, "group_size": 1} if "group_size" in fact else fact for fact in facts])
    with pytest.raises(WhatIfError, match="2 stages, but no operations of a pipeline"):
        analysed([{**fact, "pp_rank": fact["rank"], "dp_rank": 0} for fact in facts])
    with pytest.raises(WhatIfError, match="no phases"):
        analysed([fact for fact in facts if fact.get("kind") == "collective"])
