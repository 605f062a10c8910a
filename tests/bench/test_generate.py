"""The synthetic job: sealed as capture seals, the same each time, honest about itself, and taken in by the lake."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from bringing import adds_up, bring
from click.testing import CliRunner
from recorded import attributes, check_books, gaps, rows, segments, totals

from ranklake.bench.generate import LOST_ROWS, Node, generate
from ranklake.bench.job import Job
from ranklake.bench.ranks import SPANS_PER_STEP
from ranklake.cli import cli
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.quality.check import run_checks

pytestmark = pytest.mark.bench

HOURS = 0.05
JOB = Job(gpus=10, seconds=HOURS * 3600, seed=7)


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated") / "spool"
    generate(JOB, str(folder), workers=1)
    return folder


def paths(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.is_file())


def test_the_segments_are_capture_s_own(spool):
    """Names, digests, footers, totals and gaps of all streams agree, as they do for what was really recorded."""
    check_books(spool)
    said = totals(spool)
    assert len(said) == 10 * 2 + 2  # each rank twice, for there is a restart, and two agents
    assert all(
        segment.name.run == JOB.run or "ranklake-agent-synthetic" in segment.name.run for segment in segments(spool)
    )


def test_the_same_options_give_the_same_bytes(spool, tmp_path):
    """Whatever the number of processes; sent singly, the segments are those in the packs; another seed gives others."""
    options = ["--gpus", "10", "--hours", str(HOURS), "--seed", "7", "--workers", "2"]
    command = [sys.executable, "-m", "ranklake", "bench", "generate", *options, "--spool", str(tmp_path / "two")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"run {JOB.run}: 10 GPUs, 180 s" in said
    assert paths(tmp_path / "two") == paths(spool)  # a name holds the digest of its bytes
    made = generate(JOB, str(tmp_path / "single"), packed=False, workers=1)
    assert made.objects == sum(made.segments.values())
    assert {str(one.name) for one in segments(tmp_path / "single")} == {str(one.name) for one in segments(spool)}
    generate(Job(gpus=10, seconds=180.0, seed=8), str(tmp_path / "other"), workers=1)
    assert not set(paths(tmp_path / "other")) & set(paths(spool))


def test_a_rank_and_step_give_42_rows(spool):
    """One step, twenty values, twenty spans and, each second, one sample of the GPU."""
    counted = Counter()
    for segment in segments(spool):
        counted[segment.table] += segment.footer.rows
    checkpoints = sum(row["kind"] == "checkpoint" for row in rows(spool, "spans"))
    assert SPANS_PER_STEP == 20
    assert counted["spans"] - checkpoints == 20 * counted["steps"]
    assert counted["scalars"] - 2 == 20 * counted["steps"]  # and the model's FLOPs, once an attempt
    assert counted["gpu_samples"] == 10 * 180
    assert counted["host_samples"] == 2 * 180
    assert 0.7 < counted["steps"] / (10 * 180) < 1  # starting, failing and starting again take time


def test_time_is_conserved(spool):
    """Spans lie within what they are part of, and phases with collectives come to no more than the step."""
    steps = {(row["incarnation"], row["step"]): row for row in rows(spool, "steps")}
    spans = rows(spool, "spans")
    by_id = {(row["incarnation"], row["span_id"]): row for row in spans}
    inside = 0
    checkpoints = sum(span["kind"] == "checkpoint" for span in spans)
    for span in spans:
        step = steps[span["incarnation"], span["step"]]
        begin = (span["ts"] - step["ts"]).total_seconds()
        assert begin >= -2e-6
        assert begin + span["duration_ns"] / 1e9 <= step["step_time_s"] + 1e-4
        parent = by_id.get((span["incarnation"], span["parent_id"]))
        if parent:
            inside += 1
            assert span["ts"] >= parent["ts"]
            end = (span["ts"] - parent["ts"]).total_seconds() + span["duration_ns"] / 1e9
            assert end <= parent["duration_ns"] / 1e9 + 5e-5  # the wall clock drifts, the monotonic one does not
    assert inside == 19 * len(steps) + checkpoints
    phases = ("data", "forward", "backward", "optimizer", "collective", "checkpoint")
    for row in steps.values():
        assert sum(row[f"{name}_time_s"] or 0 for name in phases) == pytest.approx(row["step_time_s"], abs=1e-4)


def test_it_says_that_it_is_synthetic(spool):
    """Every run's row has the label, and what was made wrong on purpose stands in `injected`."""
    runs = rows(spool, "runs")
    assert len(runs) == 2 + 2
    assert all(json.loads(row["labels"])["synthetic"] == "true" for row in runs)
    assert [row["injected"] for row in runs if row["run"] == JOB.run] == [None, f"slow rank {JOB.straggler}"]
    events = Counter(row["event"] for row in rows(spool, "events"))
    assert (events["failure"], events["abandoned"], events["rank_end"]) == (1, 10, 10 + 2)
    assert all(attributes(row)["size_bytes"] for row in rows(spool, "events") if row["event"] == "checkpoint")


def test_a_spool_that_is_full_for_a_moment_leaves_counted_gaps(tmp_path):
    """What a rank could not record stands in a footer, with its reason, and in the stream's totals."""
    jobs = (Job(gpus=2, seconds=30.0, seed=seed) for seed in range(1000))
    job = next(job for job in jobs if any(Node(job, 0).drops_rows(rank, job.attempts[0], 0) for rank in range(2)))
    generate(job, str(tmp_path), workers=1)
    check_books(tmp_path)
    assert gaps(tmp_path) == {"spans": {"backpressure": LOST_ROWS}}


@pytest.mark.slow
def test_the_lake_takes_it_in_and_finds_what_was_injected(spool, tmp_path):
    """Ingest, checks and rollups: nothing is rejected, the books add up, the slow rank is named."""
    lake = Lake.create(str(tmp_path / "lake"))
    done = bring(lake, spool)
    assert done.rows_rejected == 0
    adds_up(lake, spool)
    assert run_checks(lake).passed
    run_rollups(lake)
    slow = query(lake, "SELECT run, attempt, rank, cause FROM rank_health WHERE is_straggler").to_pylist()
    assert slow == [{"run": JOB.run, "attempt": 1, "rank": JOB.straggler, "cause": "compute"}]
    told = query(lake, "SELECT * FROM run_summary WHERE run = $run ORDER BY attempt", {"run": JOB.run}).to_pylist()
    assert [row["straggler_rank"] for row in told] == [None, JOB.straggler]
    assert all(0.2 < row["mfu_ratio"] < 0.6 for row in told)


def test_the_command_says_what_it_wrote(tmp_path):
    """`ranklake bench generate --json` gives rows by table; options that make no job are refused in one line."""
    run = CliRunner().invoke
    options = ["bench", "generate", "--gpus", "1", "--hours", "0.005", "--metrics", "3", "--workers", "1"]
    done = run(cli, [*options, "--spool", str(tmp_path / "spool"), "--json"])
    made = json.loads(done.output)
    assert made["rows"]["scalars"] - 1 == 3 * made["rows"]["steps"]
    assert made["objects"] == len(paths(tmp_path / "spool"))
    assert run(cli, [*options, "--spool", str(tmp_path), "--gpus", "0"]).exit_code == 2
