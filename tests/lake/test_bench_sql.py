"""The benchmark of SQL works: every engine gives the same rows, and ratios come out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

BENCH = Path(__file__).resolve().parents[1] / "bench" / "sql_bench.py"


def test_all_engines_answer_alike():
    """A small lake in real tables; the benchmark itself fails where answers differ."""
    command = [sys.executable, str(BENCH), "--rows", "200000", "--hour-s", "60", "--rounds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["rows"] > 190_000
    assert {one["engine"] for one in found["results"]} == {"ranklake", "datafusion", "duckdb", "polars"}
    assert {one["rows"] for one in found["results"] if one["question"] == "one hour"} == {8 * 60}
    for question in {one["question"] for one in found["results"]}:
        ratios = [
            one["ratio"] for one in found["results"] if one["question"] == question and one["engine"] != "ranklake"
        ]
        assert min(ratios) == 1
