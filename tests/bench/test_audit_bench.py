"""The bench of the audit trail runs, and an append costs what it costs, however long the trail is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).with_name("audit_bench.py")
MOST = 3.0
"""Times what an append takes on a trail of a hundredth: it would be a hundred if it read the trail."""


@pytest.mark.bench
def test_an_append_does_not_read_the_trail():
    """A trail of 60,000 rows, verified whole and at its end."""
    command = [sys.executable, str(BENCH), "--rows", "60000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["append_to_short"] < MOST
    assert told["since_cpu_s"] < told["verify_cpu_s"]
