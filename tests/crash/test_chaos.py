"""The chaos campaign in short; `make crash NAME=chaos` runs it in full, and `chaos.py` says what it does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.crash
def test_every_row_once_whoever_dies(tmp_path, capsys):
    """Drivers, upkeep and Dask workers die at random; in the end every acknowledged row is in the lake exactly once."""
    kills = os.environ.get("RANKLAKE_KILLS", "10")
    command = [
        sys.executable,
        str(HERE / "chaos.py"),
        str(tmp_path / "lake"),
        str(tmp_path / "spool"),
        "--kills",
        kills,
    ]
    paths = [str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print(f"\n  {done.stdout.strip()}")
