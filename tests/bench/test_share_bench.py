"""The bench of shares runs, and a refresh reads only what came."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).with_name("share_bench.py")


@pytest.mark.bench
def test_one_more_hour_costs_that_hour():
    """A small lake: each share has all rows that its role sees, and a refresh reads the one new file, or none."""
    done = subprocess.run(
        [sys.executable, str(BENCH), "--rows", "7000000", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for parts in told["costs"].values():
        assert parts["build"]["read"] == 4
        assert parts["nothing new"]["read"] == 0
        assert parts["one more hour"]["read"] == 1
