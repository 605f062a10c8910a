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


NIGHTS = {"night.py": ("NaN run", "audit tampered"), "up_night.py": ("worker out", "full disk")}


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", NIGHTS)
def test_a_night_is_told_to_whom_it_concerns(tmp_path, program):
    """Two faults, by a moved clock and in a running `ranklake up`: told once to the right receiver, and their end."""
    paths = [str(HERE), *(str(HERE.parent / name) for name in ("support", "fortnight"))]
    words = [str(HERE / program), str(tmp_path / "site"), "--only", *NIGHTS[program]]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
