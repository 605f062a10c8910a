"""The campaign of injected faults in short; `make crash NAME=faults` runs it in full. `faults.py` says how."""

import shutil
import sys
from pathlib import Path

import pytest
from campaigns import held


@pytest.mark.crash
@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="needs Linux and cc")
def test_faults_lose_and_repeat_nothing(capsys):
    """Operations that fail in every command, poison beside: no traceback, no hang, each row once, a whole audit log."""
    held(Path(__file__).with_name("faults.py"), "--faults", "RANKLAKE_FAULTS", 60, capsys)
