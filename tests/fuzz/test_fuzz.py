"""The fuzz campaign in short; `make fuzz` runs it in full, and `campaign.py` says what it holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.fuzz
def test_nothing_hostile_stops_the_lake_or_gets_out_of_it(capsys):
    """Mutated objects, plans and log entries leave no traceback, no hang, no way out, and cost no sound row."""
    cases = os.environ.get("RANKLAKE_FUZZ_CASES", "600")
    paths = [str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / "campaign.py"), "--cases", cases]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout
    with capsys.disabled():
        print(f"\n{done.stdout.strip()}")
