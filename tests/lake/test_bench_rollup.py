"""The benchmark of rollups works: every way gives the same rows, and ratios come out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

BENCH = Path(__file__).resolve().parents[1] / "bench" / "rollup_bench.py"


def test_each_way_rolls_up_the_same_rows():
    """A small lake in real tables; the benchmark itself fails where the ways differ."""
    command = [sys.executable, str(BENCH), "--rows", "60000", "--ranks", "8", "--rounds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {one["way"] for one in found} == {"scan", "datafusion", "ranklake"}
    for name in ("step_rollup", "gpu_hourly", "rank_health"):
        rows = {one["way"]: one["rows"] for one in found if one["rollup"] == name}
        assert rows["ranklake"] == rows["datafusion"] > 0
    assert all(one["cpu_s"] > 0 and one["peak_bytes"] > 2**20 and one["input_rows"] > 50_000 for one in found)
