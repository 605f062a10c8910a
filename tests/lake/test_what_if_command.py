"""``ranklake what-if`` over a lake: JSON, text, the timeline, and what it says when it cannot answer."""

import gzip
import json

import numpy as np
import pytest
from click.testing import CliRunner
from pipelines import job, record, spans_of
from rollup_inputs import NOON, append

from ranklake.cli import cli
from ranklake.lake.store.lake import Lake

DP, PP = 2, 3


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """Give a lake with a pipeline's run of two attempts, of which the second lacks half, and a run without spans."""
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    rng = np.random.default_rng(1)
    of = job(DP, PP, 4)
    recorded = record(of, 3, lambda op, step: int(rng.integers(100, 200)), lambda: int(rng.integers(0, 9)))
    facts = spans_of(of, recorded, rng).to_pylist()
    for at, fact in enumerate(facts):
        fact.update(run="pipeline-1", attempt=0, span_id=at, ts=NOON + (fact["ts"] - facts[0]["ts"]))
    half = [{**fact, "attempt": 1, "incarnation": 2} for fact in facts if fact["dp_rank"] == 0]
    append(lake, "spans", [*facts, *half])
    append(lake, "steps", [{"run": "plain", "ts": NOON, "step": 0, "step_time_s": 1.0}])
    sizes = {"run": "pipeline-1", "ts": NOON, "dp_size": DP, "pp_size": PP}
    append(lake, "runs", [sizes, {**sizes, "attempt": 1, "incarnation": 2}])
    return lake.uri


def invoke(uri, *arguments):
    return CliRunner().invoke(cli, ["what-if", *arguments, "--lake", str(uri)], standalone_mode=False)


def test_json(uri):
    """The keys that machines rely on, with numbers; the attempt that is asked for."""
    done = invoke(uri, "pipeline-1", "--attempt", "0", "--json")
    assert done.exception is None
    found = json.loads(done.stdout)
    assert found["s"] > 1
    assert set(found["by_stage"]) == {"0", "1", "2"}
    assert set(found["by_dp_rank"]) == {"0", "1"}
    assert {"forward-compute", "forward-pp-comm", "optimizer"} <= set(found["by_kind"])
    assert isinstance(found["m_w"], float)
    assert isinstance(found["m_s"], float)
    assert set(found["per_step"]) == {"10", "11", "12"}
    assert found["step_time_s"]["recorded"] > found["step_time_s"]["no_delay"] > found["step_time_s"]["ideal"]


def test_text_and_timeline(uri, tmp_path):
    """A table for people with every stage and the workers; the timeline is trace events as long as the ideal step."""
    for name, opened in (("ideal.json", open), ("ideal.json.gz", gzip.open)):
        path = tmp_path / name
        done = invoke(uri, "pipeline-1", "--attempt", "0", "--timeline", str(path))
        assert done.exception is None
        for text in ("S ", "M_W", "M_S", "forward-compute", "stage 2", "dp 1"):
            assert text in done.stdout
        with opened(path, "rt") as file:
            events = json.load(file)["traceEvents"]
        begun = [event for event in events if event["ph"] == "X" and event["args"]["step"] == 10]
        ideal = json.loads(invoke(uri, "pipeline-1", "--attempt", "0", "--json").stdout)["step_time_s"]["ideal"]
        assert max(event["ts"] + event["dur"] for event in begun) == pytest.approx(ideal * 1e6, abs=0.01)
        assert {event["pid"] for event in begun} == {0, 1}
        names = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
        assert {(event["pid"], event["tid"]) for event in begun} == names


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pipelin-1"], "did you mean 'pipeline-1'?"),
        (["plain"], "no spans of any step"),
        (["pipeline-1", "--attempt", "7"], "these have: 0, 1"),
        (["pipeline-1"], "data-parallel ranks: spans of 1 of 2"),
        (["pipeline-1", "--attempt", "0", "--timeline", "/nowhere/t.json"], "cannot be written"),
    ],
)
def test_what_it_cannot_answer(uri, arguments, says):
    """One line that says what is missing; no number."""
    done = invoke(uri, *arguments)
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.exception.exit_code == 2
