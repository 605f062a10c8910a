"""What detectors and incidents cost beside the ingest of what they look at: 64 GPUs, by default for an hour.

    python tests/bench/detectors_bench.py [--gpus 64] [--hours 1] [--json]

The segments of a synthetic job (`ranklake bench generate`) are ingested; what detectors read is rolled up; then they
look, and findings become incidents. Each is a process of its own, of which a command without anything to do is
subtracted. CPU is that of all its processes and holds on a busy machine; wall time is that of this run. An hour is less
kind to detectors than the day that the aim is about, since what they cost before the first row is paid once.

Exits 1 if they take more than a tenth of the CPU or wall time of ingest.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ranklake.lake.rollups.registry import select_rollups

FINDINGS = ("run_findings", "node_findings", "incidents")
AIM_RATIO = 0.1


@dataclass
class Cost:
    """Seconds of a command."""

    cpu_s: float
    wall_s: float


def measured(*arguments: str) -> Cost:
    """Run `ranklake` and return what it took, with the processes that it started. Exits if it failed."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as sink:
        process = subprocess.Popen([sys.executable, "-m", "ranklake", *arguments], stdout=sink, stderr=sink)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sink.seek(0)
            raise SystemExit(f"ranklake {' '.join(arguments)}: {sink.read().decode()[-500:]}")
    return Cost(used.ru_utime + used.ru_stime, time.monotonic() - began)


def above(cost: Cost, nothing: Cost) -> Cost:
    """Return what a command took more than one that has nothing to do."""
    return Cost(max(0.0, cost.cpu_s - nothing.cpu_s), max(0.0, cost.wall_s - nothing.wall_s))


def main() -> int:
    """Generate, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--metrics", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    read = [rollup.name for rollup in select_rollups(FINDINGS) if rollup.name not in FINDINGS]
    with tempfile.TemporaryDirectory(prefix="ranklake-bench-") as folder:
        lake, spool = str(Path(folder) / "lake"), str(Path(folder) / "spool")
        size = ("--gpus", str(asked.gpus), "--hours", str(asked.hours), "--metrics", str(asked.metrics))
        measured("bench", "generate", *size, "--spool", spool)
        ingest = ("ingest", "--lake", lake, "--spool", spool)
        costs = {"ingest": measured(*ingest)}
        costs["ingest"] = above(costs["ingest"], measured(*ingest))
        costs["what they read"] = measured("rollup", *read, "--lake", lake)
        findings = ("rollup", *FINDINGS, "--lake", lake)
        costs["detectors"] = measured(*findings)
        costs["detectors"] = above(costs["detectors"], measured(*findings))
    ratios = {name: getattr(costs["detectors"], name) / getattr(costs["ingest"], name) for name in ("cpu_s", "wall_s")}
    if asked.json:
        print(json.dumps({"costs": {name: asdict(cost) for name, cost in costs.items()}, "ratios": ratios}))
    else:
        print(f"{asked.gpus} GPUs, {asked.hours:g} h, {asked.metrics} metrics a step")
        for name, cost in costs.items():
            print(f"{name:15}{cost.cpu_s:9.2f} CPU s{cost.wall_s:9.2f} s")
        print(f"detectors over ingest: {ratios['cpu_s']:.3f} of the CPU, {ratios['wall_s']:.3f} of the wall time")
    return 0 if max(ratios.values()) <= AIM_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
