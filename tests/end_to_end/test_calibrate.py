"""Calibration: a real experiment comes out true, and telemetry that lies does not."""

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from governed import Site
from segments import step_rows

from ranklake.calibration.compare import FEWEST_STEPS, compare
from ranklake.calibration.truth import FORWARD_S, SLOW_S, TOKENS, Noise, Step, Truth
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.rollups.thresholds import MIN_SLOWER_RATIO, WARMUP_STEPS


@pytest.mark.slow
def test_an_experiment_comes_out_true(tmp_path):
    """Two real ranks, the whole pipeline: each claim is within its tolerance, what is counted to the last unit."""
    command = [sys.executable, "-m", "ranklake", "calibrate", "--steps", "90", "--dir", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert [one for one in told["comparisons"] if not one["passed"]] == []
    assert (told["passed"], len(told["comparisons"])) == (True, 14)
    assert all(one["error"] == 0 for one in told["comparisons"] if one["tolerance"] == 0)


@pytest.mark.parametrize("noise_s", [0.0, 0.002, 0.02, 0.1])
def test_the_slow_rank_is_slow_on_a_busy_machine(noise_s):
    """What others take from the ranks makes the fault larger: nine steps in ten must be slower for a verdict."""
    slower = steps = 0
    for seed in range(20):
        rng, noise = random.Random(seed), Noise()
        for step in range(FEWEST_STEPS):
            planned = FORWARD_S + noise.slow_s
            slow, other = planned + rng.expovariate(1) * noise_s, FORWARD_S + rng.expovariate(1) * noise_s
            noise.add(planned, [slow])
            if step >= WARMUP_STEPS:
                steps += 1
                slower += slow > other
    assert slower / steps > MIN_SLOWER_RATIO + 0.05


def test_the_fault_stays_within_bounds():
    """A pause of a minute, or of a suspended machine, does not make each step that long."""
    noise = Noise()
    assert noise.slow_s == SLOW_S
    noise.add(0.01, [0.005])
    assert noise.slow_s == SLOW_S
    noise.add(0.01, [60.0, 1.0])
    assert noise.slow_s == 0.5


@pytest.fixture
def recorded(tmp_path):
    """Give a lake with some steps, and the truth about them."""
    site = Site(tmp_path)
    rows = step_rows(20).set_column(step_rows(20).schema.get_field_index("tokens"), "tokens", [[TOKENS] * 20])
    site.bring(rows.cast(step_rows(1).schema))
    steps = tuple(
        Step(0, row["step"], int(row["ts"].timestamp() * 1e9), int(row["step_time_s"] * 1e9), 1, 1)
        for row in site.rows("steps")
    )
    return site, Truth("r1", steps, missing=0, reduced_bytes=0, written_bytes=0, flops=0.0)


def failing(site, truth):
    """Return what does not agree, of what this lake can say."""
    found = compare(site.lake, Spool(str(site.spool)), truth)
    said = {"rows of steps", "tokens", "step time", "when steps began", "books that do not add up"}
    return {one.what for one in found if one.what in said and not one.passed}


def test_what_agrees_passes(recorded):
    """Rows, sums and times that are as they were pass."""
    assert failing(*recorded) == set()


@pytest.mark.parametrize(
    ("wrong", "lie"),
    [
        ({"rows of steps", "tokens"}, lambda truth: replace(truth, steps=truth.steps[1:])),
        (
            {"step time"},
            lambda truth: replace(truth, steps=tuple(replace(o, step_ns=o.step_ns * 2) for o in truth.steps)),
        ),
        (
            {"when steps began"},
            lambda truth: replace(truth, steps=tuple(replace(o, began_ns=o.began_ns + 10**7) for o in truth.steps)),
        ),
    ],
)
def test_what_differs_fails(recorded, wrong, lie):
    """A row too many, times of half the length, a clock that is 10 ms off: each fails, and nothing else does."""
    site, truth = recorded
    assert failing(site, lie(truth)) == wrong


def test_what_the_lake_does_not_know_is_no_success(recorded):
    """A claim that no table makes fails as unknown."""
    site, truth = recorded
    found = {one.what: one for one in compare(site.lake, Spool(str(site.spool)), replace(truth, run="nobody"))}
    assert found["tokens"].telemetry is None
    assert not found["tokens"].passed
    assert not found["step time"].passed
