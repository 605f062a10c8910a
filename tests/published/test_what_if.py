"""The published what-if analysis of a production trace, from import to the command."""

import json

import pytest
from published_lakes import what_if


def test_stragglers(lake, spool, published):
    """Every number of every trace is as published, but for rounding: 32-bit seconds there, microseconds here."""
    traces = sorted((published("stragglers") / "stragglers").glob("trace-*.parquet"))
    assert traces
    for trace in traces:
        name = trace.stem.removeprefix("trace-")
        given = [json.loads((trace.parent / f"{kind}-{name}.json").read_text()) for kind in ("result", "ms", "mw")]
        as_published(what_if(trace, lake, spool), *given)


def as_published(found, result, m_s, m_w):
    assert found["s"] == pytest.approx(result["blocking_slowdown"], rel=3e-6)
    assert found["m_s"] == pytest.approx(m_s["Ms"], abs=1e-5)
    assert found["m_w"] == pytest.approx(m_w["Mw"], abs=1e-5)
    for ours, theirs in (
        ("by_kind", "blocking_decompose_by_optype"),
        ("by_stage", "blocking_decompose_by_stage"),
        ("by_dp_rank", "blocking_decompose_by_dp_rank"),
        ("per_step", "blocking_step_slowdown"),
    ):
        assert found[ours] == pytest.approx(result[theirs], rel=3e-6), ours
    times = found["step_time_s"]
    assert times["ideal"] == pytest.approx(m_s["tideal"], rel=3e-6)
    assert times["no_delay"] == pytest.approx(m_s["tori"], rel=3e-6)
    assert times["recorded"] / times["no_delay"] == pytest.approx(result["launch_slowdown"], rel=3e-6)
    assert found["notes"] == []
