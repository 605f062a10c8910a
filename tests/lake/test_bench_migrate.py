"""The benchmark of migrations works: every way gives the same rows and sums, and ratios come out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

BENCH = Path(__file__).resolve().parents[1] / "bench" / "migrate_bench.py"


def test_each_way_migrates_the_same_rows():
    """A small table and a small log; the benchmark itself fails where the ways differ."""
    command = [sys.executable, str(BENCH), "--rows", "240000", "--log-rows", "800000", "--rounds", "1", "--json"]
    done = subprocess.run([*command, "--without", "merge,two workers"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    ways = {(one["part"], one["way"]) for one in found["costs"]}
    assert ways == {
        *(("additive", way) for way in ("ranklake", "add_columns")),
        ("small", "ranklake"),
        *(("rewrite", way) for way in ("ranklake", "duckdb", "overwrite", "update")),
    }
    rows = {one["rows"] for one in found["costs"] if one["part"] == "rewrite"}
    assert rows == {found["rows"]["rows"]}
    assert min(rows) > 200_000
    assert found["met"].keys() >= {"additive under 1 s", "1.5 M rows/s on 2 cores", "flat memory"}
