"""Rows of any values that contracts allow, through every stage and every command that reads: none leaves a traceback.

python any_values.py SEED [SEED …]
"""

import contextlib
import io
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

from allowed_rows import spool_of
from reading import READING

from ranklake import cli
from ranklake.insight.catalog.refresh import refresh
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.quality.check import run_checks

BUG = re.compile(r"\(\w+\.py:\d+\)")
"""How a page says that a bug keeps it from being made."""
UNUSABLE = 2
SLOW_S = 120.0
"""What a stage or a command may take of a few hundred rows, on a machine that others use, too."""


def findings(root, seed, count=12, reading=READING):
    """Return what went wrong with rows of a seed, a line each: tracebacks, and what took too long."""
    spool_of(root / "spool", seed, count)
    lake, wrong = Lake.create(str(root / "lake")), []

    def step(name, work):
        began = time.monotonic()
        try:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = work()
            if "-v" in sys.argv:
                print(f"{time.monotonic() - began:6.1f} s  {code if isinstance(code, int) else ''} {name}", flush=True)
                print(out.getvalue() if code == UNUSABLE else "", end="", flush=True)
            wrong.extend(f"seed {seed}: {name}: {line}" for line in out.getvalue().splitlines() if BUG.search(line))
        except BaseException as error:  # noqa: BLE001 - panics of Rust are no Exceptions
            frames = [one for one in traceback.extract_tb(error.__traceback__) if "ranklake" in one.filename]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
            wrong.append(
                f"seed {seed}: {name}: {type(error).__name__} at {place}: {' '.join(str(error).split())[:200]}"
            )
        if (took := time.monotonic() - began) > SLOW_S:
            wrong.append(f"seed {seed}: {name}: {took:.0f} s")

    step("ingest", lambda: ingest(lake, Spool(str(root / "spool")), InProcess()))
    step("check", lambda: run_checks(lake))
    step("rollup", lambda: run_rollups(lake))
    step("check", lambda: run_checks(lake))
    step("catalog", lambda: refresh(lake))
    for line in reading:
        words = line.format(out=root).split()
        step(line, lambda words=words: cli.run([*words, "--lake", lake.uri]))
    return wrong


def main():
    """Run the seeds that were given."""
    wrong = []
    for seed in map(int, filter(str.isdecimal, sys.argv[1:])):
        with tempfile.TemporaryDirectory(prefix="ranklake-values-") as folder:
            wrong += findings(Path(folder), seed)
    print("\n".join(wrong) or "nothing found")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
