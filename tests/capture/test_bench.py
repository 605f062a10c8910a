"""The bench of `make bench NAME=capture`: that it runs, counts, and says what it could not measure; never how fast."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

BENCH = Path(__file__).resolve().parents[1] / "bench" / "capture_bench.py"


def test_the_bench_measures_and_loses_nothing(tmp_path):
    """Each case has positive figures, the spool holds every row of every call, and absent peers are not measured."""
    command = [sys.executable, str(BENCH), "--rounds", "1", "--calls", "1000", "--without-peers", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    cases = {case["name"]: case for case in found["cases"]}
    assert {
        "bare slot",
        "nothing recorded",
        "deque.append",
        "ranklake scalar",
        "ranklake mapping",
        "ranklake span",
        "ranklake span, by name",
        "ranklake step",
        "ranklake step, ten values",
        "ranklake step, ten values, rested",
    } == set(cases)
    for case in cases.values():
        assert case["calls"] > 0
        assert case["ns"] > 0
        assert case["p999_ns"] is None or case["p999_ns"] >= case["p50_ns"]
    assert cases["bare slot"]["to_bare"] == cases["ranklake scalar"]["to_scalar"] == 1.0
    books = found["books"]
    calls = {name.removeprefix("ranklake "): case["calls"] for name, case in cases.items()}
    ten = calls["step, ten values"] + calls["step, ten values, rested"]
    steps = calls["step"] + ten
    assert books["tables"]["scalars"]["stored"] == calls["scalar"] + 10 * (calls["mapping"] + ten)
    assert books["tables"]["spans"]["stored"] == calls["span"] + calls["span, by name"] + 3 * steps
    assert books["tables"]["steps"]["stored"] == steps
    assert (books["uncounted"], books["twice"]) == (0, 0)
    assert [aim["target"] for aim in found["targets"] if aim["met"] is None and " x ranklake scalar" in aim["target"]]


def test_the_overhead_bench_runs_and_loses_nothing(tmp_path):
    """A short training loop gives both answers, seen and accounted, and every row of it was recorded."""
    command = [sys.executable, str(BENCH.with_name("overhead_bench.py")), "--pairs", "2", "--steps", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gaps"] == {}
    assert found["accounted"]["share"] == pytest.approx(found["accounted"]["ns_a_step"] / found["step_ms"] / 1e6)
    assert found["seen"]["low"] <= found["seen"]["mean"] <= found["seen"]["high"]


@pytest.mark.slow
def test_the_ways_to_record_are_compared(tmp_path):
    """Each way trains in a process of its own, and its steps are compared with those of the two that record nothing."""
    command = [sys.executable, str(BENCH.with_name("overhead_bench.py")), "--ways", "--pairs", "2", "--steps", "2"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["step_ms"] > 0
    assert found["seen"]["off"]["mean"] == pytest.approx(-found["seen"]["off again"]["mean"])
    assert all(seen["low"] <= seen["mean"] <= seen["high"] for seen in found["seen"].values())
    assert {"as it comes", "guard", "phases on the device"} < found["seen"].keys()
