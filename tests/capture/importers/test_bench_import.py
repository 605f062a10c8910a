"""The benchmark of imports works: what it makes is imported whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

BENCH = Path(__file__).resolve().parents[2] / "bench" / "import_bench.py"


def test_every_rank_of_the_log_is_imported():
    """A log of 64 ranks: an event a rank, a node and a block, a row a step; ranks share segments."""
    command = [sys.executable, str(BENCH), "--ranks", "64", "--steps", "24", "--rounds", "1", "--json"]
    imported, limit = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (imported["way"], limit["way"]) == ("ranklake", "limit")
    assert imported["rows"]["steps"] == 24
    assert imported["rows"]["events"] >= 64 + 8
    assert imported["segments"] <= 8
    assert min(imported["cpu_s"], limit["cpu_s"]) > 0
