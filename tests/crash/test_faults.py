"""The campaign of injected faults in short; `make faults` runs it in full, and `faults.py` says what it holds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.crash
@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="needs Linux and cc")
def test_faults_lose_and_repeat_nothing(capsys):
    """Operations that fail in every command, poison beside: no traceback, no hang, each row once, the trail whole."""
    faults = os.environ.get("RANKLAKE_FAULTS", "60")
    paths = [str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / "faults.py"), "--faults", faults]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout
    with capsys.disabled():
        print(f"\n{done.stdout.strip()}")
