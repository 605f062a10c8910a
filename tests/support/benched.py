"""Runs a bench as its `make` target does, and reads what it told."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHES = Path(__file__).parents[1] / "bench"


def benched(name: str, *options: str) -> dict[str, Any]:
    """Return what a bench of `tests/bench` prints with ``--json``; it exits with 0."""
    command = [sys.executable, str(BENCHES / name), *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told
