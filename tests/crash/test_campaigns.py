"""Campaigns of kills in short; `make crash NAME=migrate` and `NAME=retention` run those in full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.crash
@pytest.mark.parametrize(
    ("program", "options", "part", "least"),
    [
        ("migrate_chaos.py", ("--rows", "20000"), 10, 3),
        ("retention_chaos.py", (), 20, 1),
        ("share_chaos.py", (), 8, 3),
    ],
)
def test_killed_steps_converge(tmp_path, capsys, program, options, part, least):
    """What dies at random ends, run again, as if nobody had killed it: migrations, retention, refreshes of shares."""
    kills = max(least, int(os.environ.get("RANKLAKE_KILLS", "20")) // part)
    paths = [str(HERE.parent / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(HERE / program), str(tmp_path), *options, "--kills", str(kills)],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print(f"\n  {done.stdout.splitlines()[-1]}")
