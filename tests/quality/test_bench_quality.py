"""The benchmark of checks works: every engine finds the same failing rows, and ratios come out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

BENCH = Path(__file__).resolve().parents[1] / "bench" / "quality_bench.py"


@pytest.mark.parametrize("dirty", [False, True])
def test_all_engines_find_the_same(dirty):
    """A small lake in real partitions; the benchmark itself fails where an engine finds other rows."""
    options = ["--rows", "60000", "--rounds", "1", "--processes", "1", "--json", *(["--dirty"] if dirty else [])]
    done = subprocess.run([sys.executable, str(BENCH), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rows"], found["expectations"]) == (60_000, 20)
    assert set(found["missing"]) <= {"pointblank"}, found["missing"]
    ratios = {one["engine"]: one["ratio"] for one in found["results"]}
    assert {"ranklake", "gx", "duckdb"} <= set(ratios)
    assert ratios["ranklake"] == 1
    assert bool(sum(found["failed"].values())) is dirty


def test_a_cold_check_is_measured():
    """A process that checks one changed partition: it reads that alone, and imports no engine for sound rows."""
    command = [
        sys.executable,
        str(BENCH.with_name("check_bench.py")),
        "--rows",
        "20000",
        "--rounds",
        "2",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["partitions"], one["judged_by"]) for one in found["rounds"]] == [(1, "screen")] * 2
    assert all(one["cpu_s"] > 0 for one in found["rounds"])
