"""Profiles: the same steps on every rank, their traces kept as artifacts, their time summed up."""

import csv
import gzip
import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from recorded import check_books, rows

from ranklake.capture.steps import profiler

SECRET = "hf_abcdefghijklmnopqrstuvwxyz"
PUBLISHED = Path(os.environ.get("RANKLAKE_PUBLISHED_DATA", Path(__file__).parents[3] / "shared" / "data")) / "kineto"


def train(run, steps):
    net = torch.nn.Linear(64, 64)
    for step in range(steps):
        with run.step(step), run.phase("forward"):
            for _ in range(30):  # long beside what the profiler takes to begin within its own step
                net(torch.ones(256, 64)).sum().backward()


@pytest.mark.slow
def test_one_step_in_some_is_profiled_and_summed_up(place, tmp_path):
    """Its trace is a file as the artifact says, its parts are spans of the step, and they add up."""
    with place.start() as run:
        run.profile(every=4, folder=tmp_path / "profiles")
        train(run, 12)
    artifacts = rows(place.spool, "artifacts")
    spans = [row for row in rows(place.spool, "spans") if (row["stream"] or "").startswith("profile:")]
    assert 0 < len(artifacts) < 12
    assert {row["step"] for row in artifacts} == {row["step"] for row in spans}
    for row in artifacts:
        raw = Path(row["uri"]).read_bytes()
        assert (row["bytes"], row["sha256"], row["kind"]) == (len(raw), hashlib.sha256(raw).hexdigest(), "profile")
        events = {event["name"]: event for event in json.loads(gzip.decompress(raw))["traceEvents"]}
        assert "aten::linear" in events
        parts = {span["name"]: span["duration_ns"] for span in spans if span["step"] == row["step"]}
        assert parts["compute"] > 0 == parts["communication"] == parts["overlap"]
        length_ns = 1000 * events[f"ProfilerStep#{row['step']}"]["dur"]  # without the profiler's own begin and end
        assert parts["compute"] + parts["idle"] == pytest.approx(length_ns, rel=1e-3)
    assert run.gaps() == {}
    check_books(place.spool)
    assert sorted(path.suffix for path in (tmp_path / "profiles").iterdir()) == [".gz"] * len(artifacts)


def test_a_kept_trace_holds_no_secret_that_an_annotation_has(place, tmp_path):
    """Users name what they annotate; all else in the trace is as torch wrote it."""
    with place.start() as run:
        run.profile(every=1, folder=tmp_path / "profiles")
        with run.step(0), torch.profiler.record_function(f'fetch "{SECRET}" token=swordfish', "password=swordfish"):
            torch.ones(2).sum()
    (kept,) = (tmp_path / "profiles").iterdir()
    trace = gzip.decompress(kept.read_bytes())
    assert SECRET.encode() not in trace
    assert b"swordfish" not in trace
    names = {event["name"] for event in json.loads(trace)["traceEvents"]}
    assert names >= {'fetch "[redacted]" token=[redacted]', "aten::sum", "ProfilerStep#0"}


def test_the_published_traces_hold_no_name_that_looks_like_a_secret():
    """Operators, kernels, the runtime's functions and annotations come out as they are."""
    files = sorted(PUBLISHED.glob("**/*.json*"))
    if not files:
        pytest.skip(f"the published traces are not there: {PUBLISHED}")
    for file in files:
        raw = file.read_bytes()
        trace = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode()
        assert profiler.redacted_trace(trace) == trace, file


def test_the_same_steps_on_every_rank(place):
    """The choice follows from the run's name and the step alone, about one in N."""
    runs = [place.start(rank=rank, world_size=2) for rank in range(2)]
    picks = [[n for n in range(10_000) if profiler.StepChoice(run.name, 100).takes(n)] for run in runs]
    assert picks[0] == picks[1]
    assert 60 < len(picks[0]) < 140


def test_a_trace_that_is_too_large_is_told_and_gone(place, tmp_path):
    """An event says so, and no file is left."""
    with place.start() as run:
        run.profile(every=1, folder=tmp_path / "profiles", max_bytes=10)
        train(run, 1)
    assert [row["event"] for row in rows(place.spool, "events") if row["event"].startswith("profile")] == [
        "profile_dropped"
    ]
    assert list((tmp_path / "profiles").iterdir()) == []
    assert rows(place.spool, "artifacts") == []


def test_a_folder_that_cannot_be_written_costs_training_nothing(place, tmp_path):
    """It is told in a warning, and the steps are there."""
    (tmp_path / "file").write_text("")
    with place.start() as run:
        run.profile(every=1, folder=tmp_path / "file" / "profiles")
        train(run, 2)
    assert len(rows(place.spool, "steps")) == 2


def test_intervals_are_united_and_clipped():
    """Nested, repeated and protruding events count once, within the step."""

    def event(name, category, start, length):
        return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": length}

    trace = [
        event("ProfilerStep#7", "user_annotation", 100, 100),
        event("aten::mm", "cpu_op", 90, 20),
        event("aten::mm", "cpu_op", 105, 2),
        event("gloo:all_reduce", "user_annotation", 108, 12),
        event("c10d::allreduce_", "cpu_op", 140, 50),
    ]
    (found,) = profiler.summarise({"traceEvents": trace})
    assert (found.step, found.length, found.compute, found.communication) == (7, 100, 10, 12)
    assert (found.overlap, found.busy, found.idle, found.on_device) == (2, 20, 80, False)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published traces are not here")
@pytest.mark.parametrize("rank", [0, 1])
def test_published_traces(rank):
    """Two ranks of a 128-rank job on GPUs: compute, NCCL, overlap and busy time as published."""
    with (PUBLISHED / "per_step_reference.csv").open() as file:
        said = {int(row["step"]): row for row in csv.DictReader(file) if int(row["rank"]) == rank}
    trace = json.loads(gzip.decompress((PUBLISHED / f"sampled_rank-{rank}.json.gz").read_bytes()))
    found = profiler.summarise(trace)
    assert [one.step for one in found] == sorted(said)
    for one in found:
        row = said[one.step]
        published = [float(row[f"{name}_us"]) for name in ("step", "compute", "nccl", "overlap", "gpu_busy")]
        ours = [one.length, one.compute, one.communication, one.overlap, one.busy]
        assert ours == pytest.approx(published, abs=1)
        assert one.on_device


def test_a_trace_is_read_event_by_event():
    """Not at once, which would hold the interpreter's lock: the first is there before the rest is looked at."""
    events = [{"name": 'a "b" ], [', "args": {"n": [1, {}]}}, {"ts": 1.5}, {}]
    for indent in (None, 2):
        text = json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}, indent=indent)
        assert list(profiler.each_event(text)) == events
    assert list(profiler.each_event('{"traceEvents": []}')) == list(profiler.each_event("{}")) == []
    cut = profiler.each_event('{"traceEvents": [{"ts": 1}, {"ts"')
    assert next(cut) == {"ts": 1}
    with pytest.raises(ValueError, match="delimiter"):
        next(cut)
