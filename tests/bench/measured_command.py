"""Runs `ranklake` in a process of its own, and measures it with the processes that it started."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import NamedTuple


class Usage(NamedTuple):
    """What a command took; `largest_bytes` is of its largest process."""

    cpu_s: float
    wall_s: float
    largest_bytes: int


def run_measured(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[str, Usage]:
    """Return what a command printed, and its usage. Exits if it failed."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([sys.executable, "-m", "ranklake", *arguments], stdout=output, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        sys.exit(f"ranklake {' '.join(arguments)} ended with {process.returncode}: {text}")
    return text, Usage(used.ru_utime + used.ru_stime, time.monotonic() - began, used.ru_maxrss * 1024)
