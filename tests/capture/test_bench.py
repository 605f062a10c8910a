"""The bench of `make bench-capture`: that it runs, counts, and says what it could not measure; never how fast."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1] / "bench" / "capture_bench.py"


def test_the_bench_measures_and_loses_nothing(tmp_path):
    """Each case has positive figures, the spool holds every row of every call, and absent peers are not measured."""
    command = [sys.executable, str(BENCH), "--rounds", "1", "--calls", "500", "--without-peers", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    cases = {case["name"]: case for case in found["cases"]}
    assert {
        "bare slot",
        "deque.append",
        "ranklake scalar",
        "ranklake mapping",
        "ranklake span",
        "ranklake step",
    } == set(cases)
    for case in cases.values():
        assert case["calls"] > 0
        assert case["ns"] > 0
        assert case["p999_ns"] is None or case["p999_ns"] >= case["p50_ns"]
    assert cases["bare slot"]["to_bare"] == cases["ranklake scalar"]["to_scalar"] == 1.0
    books = found["books"]
    calls = {name.removeprefix("ranklake "): case["calls"] for name, case in cases.items()}
    assert books["tables"]["scalars"]["stored"] == calls["scalar"] + 10 * calls["mapping"]
    assert books["tables"]["spans"]["stored"] == calls["span"] + 3 * calls["step"]
    assert books["tables"]["steps"]["stored"] == calls["step"]
    assert (books["uncounted"], books["twice"]) == (0, 0)
    assert [aim["target"] for aim in found["targets"] if aim["met"] is None and " x ranklake scalar" in aim["target"]]
