"""The campaign of planted faults, in short: five in real runs of two ranks, and three sound runs beside them."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_faults_of_real_runs_are_found(tmp_path):
    """Each at its rank and step, with the right cause first; how much else is, depends on the machine."""
    command = [sys.executable, str(Path(__file__).with_name("planted.py")), str(tmp_path), "--short"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "recall 1.000" in done.stdout, done.stdout + done.stderr
    assert "the right cause first in 5;" in done.stdout
