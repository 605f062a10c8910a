"""The bench of workers runs, and what a cluster finds is what one process finds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).with_name("workers_bench.py")


@pytest.mark.bench
def test_results_do_not_depend_on_workers():
    """A small job, checked and rolled up by one process, one worker and two: the same results; ratios come out."""
    command = [sys.executable, str(BENCH), "--gpus", "2", "--hours", "0.02", "--rounds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["same"]
    assert set(told["ratios"]) == {"check", "rollup", "both"}
    assert all(
        len(step["workers_s"]) == int(count) for count, steps in told["steps"].items() for step in steps.values()
    )
