"""Refreshes of a share that die at random, and what the copies hold after each that ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.crash
def test_killed_refreshes_leave_what_the_role_sees(tmp_path, capsys):
    """Rows come, are merged and change hands, the role sees less and more: no copy is missing, doubled or kept."""
    kills = max(3, int(os.environ.get("RANKLAKE_KILLS", "20")) // 8)
    command = [sys.executable, str(HERE / "share_chaos.py"), str(tmp_path), "--kills", str(kills)]
    paths = [str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print(f"\n  {done.stdout.splitlines()[-1]}")
