"""Profiler traces: events become spans of their rank and step, and what is no event is counted."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importing import ask, imported, rejects

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.rollups.runner import run_rollups

BASE = 1_700_000_000_000_000_000


def event(name, ts, dur, cat="kernel", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    event("ncclDevKernel_AllReduce_Sum_f32", 1_100, 300.5, stream=84, **{
        "In msg nelems": 1024, "dtype": "BFloat16", "Process Group Name": "dp", "Group size": 8, "Seq": 5}),
    event("ProfilerStep#551", 1_000, 1_000, "user_annotation"),
    event("gemm", 1_950, 200, stream=7),
    event("gemm", 2_500, 1, stream=7),
    event("Memcpy HtoD", 1_200, 3, "gpu_memcpy", stream=9, bytes=64),
    event("aten::mm", 1_001, 2, "cpu_op"),
]  # fmt: skip


def trace(events, **more):
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 3, "world_size": 16},
        **more,
        "traceEvents": events,
        "traceName": "x",
    }


def test_spans_and_steps(lake, spool, tmp_path):
    """Device work is of the step in which it began; collectives say what they moved, and between whom."""
    file = tmp_path / "a.json.gz"
    more = {"baseTimeNanoseconds": BASE, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
    file.write_bytes(gzip.compress(json.dumps(trace(EVENTS, **more)).encode()))
    done = imported(lake, spool, "kineto", file, run="r")
    assert (done.rows, done.refused) == ({"events": 1, "runs": 1, "spans": 6, "steps": 1}, {})
    assert ask(lake, "SELECT rank, step, step_time_s s FROM steps") == [
        {"rank": 3, "step": 551, "s": pytest.approx(1e-3)}
    ]
    spans = {row["span_id"]: row for row in ask(lake, "SELECT * FROM spans")}
    assert [spans[at]["kind"] for at in range(6)] == ["collective", "step", "other", "other", "other", "other"]
    assert [spans[at]["step"] for at in range(6)] == [551, 551, 551, None, 551, 551]
    sent = spans[0]
    assert (sent["bytes"], sent["process_group"], sent["group_size"], sent["sequence"]) == (2048, "dp", 8, 5)
    assert (sent["duration_ns"], sent["stream"], sent["device_time"]) == (300_500, "stream 84", True)
    assert spans[4]["bytes"] == 64
    assert str(spans[1]["ts"]) == "2023-11-14 22:13:20.001000+00:00"
    assert ask(lake, "SELECT world_size w, device_name d FROM runs") == [{"w": 16, "d": "NVIDIA H100"}]


@pytest.mark.parametrize("kept", [4, 3, 2, 1])
def test_a_collective_is_told_once(lake, spool, tmp_path, kept):
    """The kernel is the collective, not the calls and annotations around it; these only where there is no kernel."""
    told = [("nccl:all_reduce", 100, 60, "gpu_user_annotation"), ("c10d::allreduce_", 50, 40, "cpu_op")]
    told += [("record_param_comms", 60, 20, "cpu_op"), ("ncclDevKernel_AllReduce_Sum_f32", 100, 50, "kernel")]
    events = [event(*one) for one in told[:kept]] + [event("aten::mm", 10, 5, "cpu_op")]
    (tmp_path / "a.json").write_text(json.dumps(trace(events, baseTimeNanoseconds=BASE)))
    imported(lake, spool, "kineto", tmp_path / "a.json", run="r")
    found = ask(lake, "SELECT name, duration_ns / 1000 us FROM spans WHERE kind = 'collective'")
    assert found == [{"name": told[kept - 1][0], "us": told[kept - 1][2]}]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_trace_ends_where_it_ends(lake, spool, tmp_path, steps):
    """Wall time goes from the first event to the end of the last; what no step covers is unattributed, and no start."""
    file = tmp_path / "a.json"
    events = [one for one in EVENTS if steps or not one["name"].startswith("ProfilerStep")]
    events.append(event("aten::mm", 900, 50, "cpu_op"))
    file.write_text(json.dumps(trace(events, baseTimeNanoseconds=BASE)))
    imported(lake, spool, "kineto", file, run="r")
    run_rollups(lake, ["goodput"])
    (said,) = ask(lake, "SELECT wall_ns w, productive_ns p, init_ns i, unattributed_ns u, status FROM goodput")
    wall, stepped = 1_601_000, 1_000_000 * steps
    assert said == {"w": wall, "p": stepped or None, "i": None, "u": wall - stepped, "status": "imported"}


@pytest.mark.parametrize("base", [0, BASE])
def test_nanoseconds(lake, spool, tmp_path, base):
    """Starts and lengths are kept to the nanosecond, counted from 1970 in µs (16 digits and three) or from a base."""
    from_ns = BASE + 123_456_789_001 if base else 1_691_059_184_829_123_457
    text = json.dumps(
        trace([event("gemm", "A", 0.999, stream=7), event("gemm", "B", 1.5, stream=7)], baseTimeNanoseconds=base)
    )
    first, second = ((ns - base) for ns in (from_ns, from_ns + 998))
    for mark, ns in (("A", first), ("B", second)):
        text = text.replace(f'"{mark}"', f"{ns // 1000}.{ns % 1000:03d}")
    (tmp_path / "t.json").write_text(text)
    imported(lake, spool, "kineto", tmp_path / "t.json", run="r")
    told = ask(lake, "SELECT start_ns s, duration_ns d, CAST(ts AS BIGINT) * 1000 t FROM spans ORDER BY span_id")
    assert [(row["s"], row["d"]) for row in told] == [(from_ns, 999), (from_ns + 998, 1_500)]
    assert all(row["t"] == row["s"] // 1000 * 1000 for row in told)


def test_traces_of_different_runs(spool, tmp_path):
    """Files of one folder whose worlds differ in size are refused, as is a rank of two folders; nothing is sent."""
    for name, rank, world in (("a", 0, 8), ("b", 1, 2)):
        facts = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.json").write_text(json.dumps(trace(EVENTS) | facts))
        (tmp_path / name / "rank-0.json").write_text(json.dumps(trace(EVENTS)))
    message = r"the traces are of several runs: their world sizes are 2 \(b.json\) and 8 \(a.json\)"
    with pytest.raises(SourceError, match=message):
        import_files("kineto", [str(tmp_path / "*.json")], str(spool))
    with pytest.raises(SourceError, match="rank 3 has traces in several folders"):
        import_files("kineto", [str(tmp_path / "*" / "rank-0.json")], str(spool), run="r")
    assert not spool.exists()
    assert len(import_files("kineto", [str(tmp_path / "*" / "rank-0.json")], str(spool)).runs) == 2


def test_a_bare_list_by_its_name(lake, spool, tmp_path):
    """A list of events without anything around it is a trace, too; its name says the rank."""
    file = tmp_path / "rank-5.json"
    file.write_text(json.dumps(EVENTS, indent=1))
    imported(lake, spool, "kineto", file)
    assert ask(lake, "SELECT DISTINCT rank FROM spans") == [{"rank": 5}]


def test_no_trace(spool, tmp_path):
    """JSON of another kind is refused."""
    file = tmp_path / "x.json"
    file.write_text('{"schemaVersion": 1, "other": 1}')
    with pytest.raises(SourceError, match="the file has no events of a trace"):
        import_files("kineto", [str(file)], str(spool))


@settings(max_examples=10, deadline=None)
@given(
    st.integers(100, 1500),
    st.lists(st.sampled_from([1, None, {"ph": 1}, {"ph": "X"}, {"ph": "X", "ts": "a"}]), max_size=5),
)
def test_cut_and_broken(tmp_path_factory, cut, wrong):
    """A trace that ends anywhere gives the events before, and one count for the rest; wrong events are counted."""
    place = tmp_path_factory.mktemp("trace")
    text = json.dumps(trace(EVENTS[1:2] + wrong + EVENTS[2:]))
    (place / "t.json").write_text(text[:cut])
    try:
        done = import_files("kineto", [str(place / "t.json")], str(place / "spool"), run="r")
    except SourceError:
        assert '"traceEvents": [{' not in text[:cut] or text[:cut].count("{") < 5
    else:
        whole = cut >= len(text)
        assert sum(done.refused.values()) <= len(wrong) + (not whole)


def test_damage_within(lake, spool, tmp_path):
    """An event that is no JSON is refused alone, and told; tabs in names are none; a step is one, whoever marks it."""
    again = event("ProfilerStep#551", 1_010, 990, "user_annotation") | {"tid": 9}
    text = json.dumps(trace([*EVENTS, again, event("bad", 1_300, 1), event("tab", 1_400, 1), event("last", 1_500, 1)]))
    (tmp_path / "t.json").write_text(text.replace('"bad"', '"C:\\qbad"').replace('"tab"', '"a\tb"'))
    done = imported(lake, spool, "kineto", tmp_path / "t.json", run="r")
    assert (done.rows["spans"], done.rows["steps"], done.refused) == (9, 1, {"an event is damaged": 1})
    assert done.cut == {"t.json": "an event is damaged"}


def test_nothing_of_the_authors_environment(lake, spool, tmp_path):
    """Neither metadata nor arguments nor stacks bring tokens and home folders into the spool; work's figures stay."""
    token, home = "hf_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z", "/home/adalovelace/project"
    own = {"HF_TOKEN": token, "env": {"HF_TOKEN": token}, "cwd": home, "Call stack": f"{home}/train.py(3): main"}
    events = [
        event("gemm", 1_000, 5, stream=7, **own, **{"Concrete Inputs": ["", "1"], "grid": [1, 2, 3]}),
        event(f"{home}/train.py(12): main", 1_001, 5, "python_function", **own),
        {"ph": "M", "name": "environment", "args": own},
        {"ph": "X", "name": f"{home}/x.py", "args": own},
        {"metadata": own},
        own,
    ]
    (tmp_path / "a.json").write_text(json.dumps({"metadata": own, **own, "traceEvents": events, "tail": own}))
    done = imported(lake, spool, "kineto", tmp_path / "a.json", run="r")
    assert (done.rows["spans"], sum(done.refused.values())) == (2, 3)
    rows = [*ask(lake, "SELECT * FROM spans"), *ask(lake, "SELECT * FROM runs"), *rejects(lake)]
    text = json.dumps(rows, default=str)
    for word in (token, "adalovelace"):
        assert word not in text, word
    attributes = json.loads(next(row["attributes"] for row in rows if row.get("name") == "gemm"))
    assert attributes == {"cat": "kernel", "Concrete Inputs": ["", "1"], "grid": [1, 2, 3]}
    assert "/project/train.py(12): main" in text
