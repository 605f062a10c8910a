"""Measures what a second worker saves a check and a round of rollups, and that the results are the same.

A synthetic job is brought into a lake. Of that lake, copies are checked and rolled up as `ranklake check` and `ranklake
rollup` do it, in one process, on a cluster of one warm worker, and on one of two. What a step takes is the CPU time of
the driver and of the busiest worker, since others may use the machine: that is its wall time where each has a core. All
rows of all rollups and all results of checks must be the same.

Beside that, wall times: of everything pinned to one core, in one process, and of two cores with one process and with
two workers. Those are worth something on a machine at rest only. They are taken by turns, so that a machine whose speed
changes from one minute to the next changes it for all of them; what counts is what a turn took of one core's in the
same turn, half of the turns less and half of them more.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.dask_workers import workers
from ranklake.lake.plans.workers import DaskSection, InProcess
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read
from ranklake.quality.check import run_checks

PASSING = {"check_run", "ts", "files_sha256", "table_version", "duration_s"}
"""What differs from one check to the next, whatever it finds."""
CLOCK = {"computed_ts", "detected_ts", "time_to_detect_s"}
"""Columns of rollups that hold the time of the computation."""


@dataclass
class Step:
    """What one step took: CPU time of the driver, of each worker, and wall time."""

    driver_s: float
    workers_s: list[float]
    wall_s: float

    @property
    def longest_s(self) -> float:
        """Driver and busiest worker."""
        return self.driver_s + max(self.workers_s, default=0.0)


def measured(crew, work):
    """Do some work; return what came of it and what it took."""
    client = getattr(crew, "client", None)

    def spent():
        return dict(client.run(time.process_time)) if client else {}

    before, began, wall = spent(), time.process_time(), time.monotonic()
    found = work()
    driver, wall = time.process_time() - began, time.monotonic() - wall
    return found, Step(driver, sorted(spent()[one] - before[one] for one in before), wall)


def facts(lake, report):
    """Return all that rollups and checks came to, in an order of their own."""
    found = {}
    for rollup in ROLLUPS:
        known = contract(rollup.name)
        rows = read(lake.tables, known)
        rows = rows.sort_by([(name, "ascending") for name in known.grain])
        found[rollup.name] = rows.drop_columns(CLOCK.intersection(rows.column_names)).to_pylist()
    told = [{name: value for name, value in one.plain().items() if name not in PASSING} for one in report.results]
    found["checks"] = sorted(told, key=lambda one: (one["table"], one["partition_date"], one["check_id"]))
    return found


def once(crew, lake):
    """Check and roll up a lake; return what each step took and what came of it."""
    found, check = measured(crew, lambda: run_checks(lake, workers=crew))
    _, rollup = measured(crew, lambda: run_rollups(lake, workers=crew))
    return {"check": check, "rollup": rollup}, facts(lake, found)


def least(rounds):
    """Return each step as in the round that disturbed it least."""
    return {name: min((one[name] for one in rounds), key=lambda step: step.longest_s) for name in rounds[0]}


KINDS = {"one core": (1, 0), "two cores, one process": (2, 0), "two cores, two workers": (2, 2)}
"""Cores, and workers of a cluster; 0 for none."""


def walls(lake, rounds):
    """Return {kind: [{step: wall seconds}, ...]}: rounds by turns, each kind in a process pinned from its start."""
    kinds = {kind: _started(lake, cores, count) for kind, (cores, count) in KINDS.items()}
    try:
        return _by_turns(kinds, rounds)
    finally:
        for one in kinds.values():
            one.stdin.close()
            one.wait()


def _started(lake, cores, count):
    command = [sys.executable, __file__, "--lake", str(lake), "--wall-of", str(count)]
    pin = partial(os.sched_setaffinity, 0, sorted(os.sched_getaffinity(0))[:cores])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    return subprocess.Popen(command, preexec_fn=pin, **pipes)  # noqa: PLW1509 - no thread of ours runs here


def _by_turns(kinds, rounds):
    found = {kind: [] for kind in kinds}
    for at in range(rounds + 1):
        for kind, one in kinds.items():
            one.stdin.write("\n")
            steps = json.loads(one.stdout.readline())
            if at:  # the first one warms
                found[kind].append(steps)
    return found


def wall_of(count, copy):
    """For each line that comes say the wall seconds of each step, in this process or with a cluster of some workers."""
    with workers(DaskSection(workers=count)) if count else nullcontext(InProcess()) as crew:
        for _ in sys.stdin:
            steps, _ = once(crew, copy())
            print(json.dumps({name: one.wall_s for name, one in steps.items()}), flush=True)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--hours", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=8, help="each step as in the round that disturbed it least")
    parser.add_argument("--lake", type=Path, help="a lake that was ingested already, and is left as it is")
    parser.add_argument(
        "--wall-of",
        type=int,
        help="with --lake: wall times alone, with so many workers or none, one a line",
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ranklake-workers-") as scratch:
        folder = Path(scratch)
        if given.lake:
            shutil.copytree(given.lake, folder / "lake")
        else:
            size = ("--gpus", str(given.gpus), "--hours", str(given.hours), "--seal-s", "60")
            command = [sys.executable, "-m", "ranklake", "bench", "generate", *size, "--spool", str(folder / "spool")]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            ingest(Lake.create(str(folder / "lake")), Spool(str(folder / "spool")), InProcess())

        def copy():
            place = folder / "copy"
            shutil.rmtree(place, ignore_errors=True)
            return Lake.open(str(shutil.copytree(folder / "lake", place)))

        if given.wall_of is not None:
            wall_of(given.wall_of, copy)
            return
        _, alone = once(InProcess(), copy())
        taken, same = {}, True
        for count in (1, 2):
            with workers(DaskSection(workers=count)) as crew:
                once(crew, copy())  # warms
                rounds = []
                for _ in range(given.rounds):
                    steps, found = once(crew, copy())
                    rounds.append(steps)
                    same = same and found == alone
            taken[count] = least(rounds)
        wall = walls(folder / "lake", given.rounds) if len(os.sched_getaffinity(0)) > 1 else {}
    ratios = {name: taken[2][name].longest_s / taken[1][name].longest_s for name in taken[1]}
    both = [sum(one.longest_s for one in taken[count].values()) for count in (1, 2)]
    ratios["both"] = both[1] / both[0]
    told = {"cpus": os.cpu_count(), "same": same, "ratios": ratios, "wall_s": wall}
    told["steps"] = {count: {name: asdict(step) for name, step in steps.items()} for count, steps in taken.items()}
    print(json.dumps(told, indent=1) if given.json else report(told, taken))
    sys.exit(0 if same else 1)


def report(told, taken):
    """Return it as Markdown."""
    lines = [
        "| step | workers | driver, CPU-s | busiest worker, CPU-s | both | wall, s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in ("check", "rollup"):
        for count, steps in taken.items():
            one = steps[name]
            busiest = max(one.workers_s)
            lines.append(
                f"| {name} | {count} | {one.driver_s:.2f} | {busiest:.2f} | {one.longest_s:.2f} | {one.wall_s:.2f} |"
            )
    said = ", ".join(f"{name} {ratio:.2f}" for name, ratio in told["ratios"].items())
    results = "identical" if told["same"] else "NOT identical"
    lines += ["", f"two workers to one: {said}; results {results}", ""]
    lines += [
        "| wall time | check, s: least, median | rollup, s: least, median | of one core's: least, quartiles of turns |",
        "|---|---:|---:|---:|",
    ]
    for kind, rounds in told["wall_s"].items():
        steps = [[one[name] for one in rounds] for name in ("check", "rollup")]
        cells = [f"{min(taken):.2f} {median(taken):.2f}" for taken in steps]
        share, quarters = of_one_core(told["wall_s"], kind)
        lines.append(f"| {kind} | {' | '.join(cells)} | {share:.2f}, {' '.join(f'{one:.2f}' for one in quarters)} |")
    return "\n".join(lines)


def of_one_core(wall, kind):
    """Return what both steps take of one core's time: of the least of each, and quartiles of what each turn says."""
    mine, one_core = ([sum(steps.values()) for steps in wall[name]] for name in (kind, "one core"))
    turns = [both / alone for both, alone in zip(mine, one_core, strict=True)]
    return min(mine) / min(one_core), quantiles(turns, method="inclusive") if len(turns) > 1 else turns * 3


if __name__ == "__main__":
    main()
