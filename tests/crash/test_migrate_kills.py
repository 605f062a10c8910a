"""The campaign of kills during a migration, in short; `make crash NAME=migrate` runs it in full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.crash
def test_killed_migrations_lose_and_repeat_nothing(tmp_path, capsys):
    """Apply and undo die at random beside ingest and upkeep; a reader sees whole tables, and every row ends up once."""
    kills = max(3, int(os.environ.get("RANKLAKE_KILLS", "20")) // 10)
    command = [sys.executable, str(HERE / "migrate_chaos.py"), str(tmp_path), "--rows", "20000", "--kills", str(kills)]
    paths = [str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print(f"\n  {done.stdout.strip()}")
