"""The fortnight in short; `make fortnight` lives through all of it, and `ledger.py` says what has to hold."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_days_of_plain_use_end_as_the_ledger_says(tmp_path):
    """Commands exit 0, and runs, steps, hours, costs, pages and what doctor says are those of the ledger."""
    command = [sys.executable, str(Path(__file__).with_name("campaign.py")), str(tmp_path / "site"), "--short"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
