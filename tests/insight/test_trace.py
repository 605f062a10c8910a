"""``ranklake trace``: a step's spans of all ranks as trace events that nest, with log lines under the same trace id."""

import gzip
import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollup_inputs import NOON, append

from ranklake.cli import run
from ranklake.insight.runs.asking import QueriedFacts
from ranklake.insight.runs.trace import StepTrace
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.views.trace_events import trace_events

ROLES = """
roles:
  narrow: {tables: [run_summary, spans], classes: [operational]}
"""
RANKS = 3
MS = 1_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def told(step, rank):
    """Return spans of a step of a rank: the step, a phase and a phase in it, and a collective beside them."""
    begin = NOON + timedelta(seconds=step)
    parts = [
        ("step", "step", 0, 900, None, None),
        ("forward", "phase", 0, 300 + 100 * rank, None, 0),
        ("matmul", "other", 100, 100, None, 1),
        ("all_reduce", "collective", 400, 500 - 100 * rank, "nccl", 0),
    ]
    for number, (name, kind, at, length, stream, parent) in enumerate(parts):
        yield {
            "run": "r1", "rank": rank, "incarnation": 2**62 + rank, "slot": 10 * step + number, "step": step,
            "ts": begin + timedelta(milliseconds=at), "name": name, "kind": kind, "duration_ns": length * MS,
            "stream": stream, "span_id": 10 * step + number,
            "parent_id": None if parent is None else 10 * step + parent,
            **({"process_group": "world", "sequence": step, "group_size": RANKS} if kind == "collective" else {}),
        }  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of a run of three ranks that recorded spans of steps 3 and 7, and a line with a name in it."""
    lake = Lake.create(str(tmp_path_factory.mktemp("trace") / "lake"))
    append(lake, "runs", [{"run": name, "ts": NOON, "world_size": RANKS} for name in ("r1", "bare", "traced")])
    append(lake, "steps", [
        {"run": name, "rank": rank, "incarnation": 50 + rank, "step": step, "step_time_s": 0.9,
         "ts": NOON + timedelta(seconds=step)}
        for name in ("r1", "bare") for rank in range(RANKS) for step in range(8)
    ])  # fmt: skip
    append(lake, "spans", [one for rank in range(RANKS) for step in (3, 7) for one in told(step, rank)])
    append(lake, "spans", [one | {"run": "traced", "incarnation": 99, "trace_id": TRACE} for one in told(3, 0)])
    append(lake, "logs", [
        {"run": "r1", "rank": 1, "incarnation": 2**62 + 1, "step": 3, "span_id": 31,
         "ts": NOON + timedelta(seconds=3.2),
         "severity_text": "WARNING", "severity_number": 13, "logger": "data", "template": "slow shard %s",
         "message": "slow shard of lovelace"}
    ])  # fmt: skip
    run_rollups(lake)
    return lake


@pytest.fixture
def ranklake(lake, capsys, monkeypatch, tmp_path):
    """Give a function that calls the command in an empty folder, and returns its status, output and error."""
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)
    monkeypatch.chdir(tmp_path)

    def call(*words):
        status = run(["trace", *words])
        return (status, *capsys.readouterr())

    return call


def nested(events):
    """Check trace events as a trace processor reads them: every slice of a thread lies in the one around it."""
    threads = {}
    names = set()
    for one in events:
        assert isinstance(one["pid"], int)
        assert isinstance(one["tid"], int)
        if one["ph"] == "M":
            names.add((one["name"], one["pid"], one["tid"]))
            continue
        assert one["ts"] >= 0 or one["ph"] == "i"
        assert one["ph"] in {"X", "i", "s", "t", "f"}
        if one["ph"] == "X":
            assert one["dur"] >= 0
            threads.setdefault((one["pid"], one["tid"]), []).append((round(one["ts"] * 1000), round(one["dur"] * 1000)))
    for (process, thread), slices in threads.items():
        assert {("process_name", process, 0), ("thread_name", process, thread)} <= names
        open_ends = []
        for start, length in slices:
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or start + length <= open_ends[-1]
            open_ends.append(start + length)
    return threads


def test_a_step_of_all_ranks_is_a_trace(lake, ranklake, tmp_path):
    """Every recorded span is a slice at its time; collectives are tied by arrows; lines carry the spans' trace id."""
    status, out, _ = ranklake("r1", "--step", "3")
    assert (status, out) == (0, "12 spans of 3 ranks, 1 log line: r1-step-3.json.gz\n")
    found = json.loads(gzip.decompress((tmp_path / "r1-step-3.json.gz").read_bytes()))
    events = found["traceEvents"]
    nested(events)
    slices = [one for one in events if one["ph"] == "X"]
    rows = query(lake, found["otherData"]["spans_sql"]).to_pylist()
    begin = int(found["otherData"]["begins_unix_ns"])
    assert [(one["pid"], one["name"], one["ts"], one["dur"]) for one in slices] == [
        (row["rank"], row["name"], (row["start_ns"] - begin) / 1000, row["duration_ns"] / 1000) for row in rows
    ]
    assert {one["args"]["incarnation"] for one in slices} == {str(2**62 + rank) for rank in range(RANKS)}
    (line,) = (one for one in events if one["ph"] == "i")
    assert (line["name"], line["pid"], line["ts"], line["args"]["span_id"]) == ("WARNING data", 1, 200_000, "31")
    assert {one["args"]["trace_id"] for one in [*slices, line]} == {found["otherData"]["trace_id"]}
    assert [one["ph"] for one in events if one["ph"] in {"s", "t", "f"}] == ["s", "t", "f"]
    assert "lovelace" not in json.dumps(found)


@pytest.mark.slow
def test_steps_without_spans_say_which_have_some(ranklake, tmp_path):
    """The nearest steps are named; a run without spans is told what to do; nothing is written."""
    for words, expected in (
        (["r1", "--step", "5"], "r1 recorded no spans of step 5; nearest that has some: 3 and 7"),
        (["r1", "--step", str(2**62)], "nearest that has some: 7"),
        (["r1", "--step", str(2**70)], "no step has the number"),
        (["r1", "--step", "3", "--attempt", "4"], "r1 recorded no spans of any step in attempt 4"),
        (["bare", "--step", "3"], "bare recorded no spans of any step; record phases of its steps (run.phase)"),
        (["nobody", "--step", "3"], "no run 'nobody'"),
        (["r1", "--step", "3", "--output", "a.txt"], "a.txt: a trace is JSON; end the name in .json or .json.gz"),
        (["r1", "--step", "3", "--output", "no/a.json"], "no/a.json: cannot be written"),
    ):
        status, out, error = ranklake(*words)
        assert (status, out) == (2, "")
        assert expected in error
    assert list(tmp_path.iterdir()) == []


def test_the_trace_that_started_the_run_is_its_trace(ranklake, tmp_path):
    """A recorded trace id goes before one that is made."""
    status, out, error = ranklake("traced", "--step", "3", "--json")
    assert (status, error) == (0, "")
    assert json.loads(out)["trace_id"] == TRACE


def test_a_role_sees_no_more_than_in_sql(ranklake, tmp_path):
    """Lines that a role does not see are not in the file, and the reason is told."""
    (tmp_path / "roles.yaml").write_text(ROLES)
    (tmp_path / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
    status, out, error = ranklake("r1", "--step", "3", "--role", "narrow", "--output", "a.json")
    assert (status, out) == (0, "12 spans of 3 ranks, 0 log lines: a.json\n")
    assert "no log lines: role narrow does not see it (unknown table 'logs')" in error
    assert '"i"' not in (tmp_path / "a.json").read_text()


@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 50_000), st.sampled_from([None, "a"])), max_size=12))
def test_whatever_was_recorded_nests(spans):
    """Spans that overlap go to threads of their own; none is lost, and none is longer or moved."""
    rows = tuple(
        {"rank": 0, "incarnation": 1, "name": f"s{number}", "kind": "other", "span_id": number, "parent_id": None,
         "stream": stream, "start_ns": start, "duration_ns": length, "sequence": None, "process_group": None,
         **dict.fromkeys(("microbatch", "dp_rank", "pp_rank", "tp_rank", "bytes", "group_size", "device_time"))}
        for number, (start, length, stream) in enumerate(sorted(spans, key=lambda one: (one[0], -one[1])))
    )  # fmt: skip
    found = StepTrace("r", 0, 1, "0" * 32, QueriedFacts("", rows), QueriedFacts(""))
    events = list(trace_events(found))
    nested(events)
    begin = min((row["start_ns"] for row in rows), default=0)
    slices = [one for one in events if one["ph"] == "X"]
    assert [one["args"]["span_id"] for one in slices] == [str(row["span_id"]) for row in rows]
    for one, row in zip(slices, rows, strict=True):
        assert one["ts"] == (row["start_ns"] - begin) / 1000
        assert 0 <= row["duration_ns"] - round(one["dur"] * 1000) <= 2_000
