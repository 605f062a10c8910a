"""The campaign of kills over retention, in short; `make crash NAME=retention` runs it in full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.crash
def test_killed_steps_of_retention_converge(tmp_path, capsys):
    """Each step of retention dies at random; run again, it ends as if nobody had killed it."""
    kills = max(1, int(os.environ.get("RANKLAKE_KILLS", "20")) // 20)
    command = [sys.executable, str(HERE / "retention_chaos.py"), str(tmp_path), "--kills", str(kills)]
    paths = [str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print(f"\n  {done.stdout.strip()}")
