"""The bench of following runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).with_name("watch_bench.py")


@pytest.mark.bench
def test_following_a_rank_is_measured():
    """One pair by turns: both ranks work, each step is told after it ended, and the difference adds up."""
    command = [sys.executable, str(BENCH), "--pairs", "1", "--turns", "2", "--seconds", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["pairs"] == 2
    assert told["steps"] > 20
    assert min(told["alone_percent"], told["followed_percent"], told["behind_median_s"]) > 0
    assert abs(told["followed_percent"] - told["alone_percent"] - told["more_percent"]) < 1e-9
