"""SIGKILL at random on what ``ranklake up`` runs, while ranks record. Then the books are held against each other.

    python tests/crash/up_chaos.py [--minutes 20] [--every-s 20] [--seed N]

It starts one `ranklake up` and a writer that puts segments into its spool, and kills the server, the worker, flow runs
and Dask workers, one every few seconds. Then it lets things come to rest and asks: does ``ranklake status`` add up with
every row stored? Does a run hang in Running? Do schedules go on? Did two runs of a deployment work at once?
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from segments import put_segment, step_rows
from serving import Up, wait_for

TARGETS = ("server", "worker", "flow run", "dask")


def victims(up, kind):
    """Return the processes of a kind that are there now."""
    words = {"server": "uvicorn", "worker": "worker start", "flow run": "prefect.engine", "dask": "multiprocessing"}
    found = []
    for one in up.members():
        try:
            if words[kind] in " ".join(one.cmdline()):
                found.append(one)
        except psutil.Error:
            continue
    return found


def storm(up, folder, minutes, seed):
    """Kill and write for some minutes; return what was killed, and how many rows were put into the spool."""
    chance, killed, rows, number = random.Random(seed), Counter(), 0, 0
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        number += 1
        put_segment(folder / "spool", step_rows(40, incarnation=1000 + number, run=f"r{number}"))
        rows += 40
        time.sleep(chance.uniform(4, 40))
        kind = chance.choice(TARGETS)
        found = victims(up, kind)
        if found:
            try:
                chance.choice(found).kill()
                killed[kind] += 1
            except psutil.NoSuchProcess:
                pass
        assert up.process.poll() is None, up.out()
    return killed, rows


def all_runs(up):
    """Return all flow runs of the server, sub-flows too."""
    found = []
    while True:
        body = {"limit": 200, "offset": len(found), "sort": "EXPECTED_START_TIME_ASC"}
        page = asked(up, body)
        found += page
        if len(page) < body["limit"]:
            return found


def asked(up, body):
    """Return a page of runs, however long the server is away."""
    return wait_for("runs", lambda: [up.asked("flow_runs/filter", **body)])[0] or []


def hanging(up, since):
    """Return the runs that are begun and not ended, and began before a time."""
    begun = [one for one in all_runs(up) if one["state_type"] in {"RUNNING", "PENDING", "CANCELLING"}]
    return [one for one in begun if datetime.fromisoformat(one["start_time"] or one["created"]) < since]


def overlaps(runs):
    """Return pairs of runs of one deployment that worked at the same time."""
    by = {}
    for one in runs:
        if one["deployment_id"] and one["run_count"] and one["start_time"] and one["end_time"]:
            span = datetime.fromisoformat(one["start_time"]), datetime.fromisoformat(one["end_time"]), one["name"]
            by.setdefault(one["deployment_id"], []).append(span)
    pairs = []
    for spans in by.values():
        spans.sort()
        pairs += [(a[2], b[2]) for a, b in pairwise(spans) if b[0] < a[1]]
    return pairs


def main():
    """Run the campaign; exit 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--every-s", type=int, default=20)
    parser.add_argument("--seed", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="up-chaos-") as name:
        folder = Path(name)
        (folder / "ranklake.toml").write_text(
            f'lake.uri = "{folder}/lake"\nspool.uri = "{folder}/spool"\ndask.workers = 2\n'
        )
        put_segment(folder / "spool", step_rows(40, incarnation=1000, run="r0"))
        up = Up.start(folder, "--every-s", str(options.every_s))
        try:
            print(f"ready after {up.ready()} s", flush=True)
            killed, rows = storm(up, folder, options.minutes, options.seed)
            quiet = datetime.now().astimezone()
            print(f"killed: {dict(killed)}; {rows + 40} rows recorded", flush=True)

            def later():
                ended = [one for one in up.runs("pipeline") if one["state_type"] == "COMPLETED"]
                return [one for one in ended if datetime.fromisoformat(one["start_time"]) > quiet]

            wait_for("a scheduled run that completes after the storm", later, 600)
            wait_for("nothing in flight that is older than the calm", lambda: not hanging(up, quiet), 120)
            runs = all_runs(up)
            states = Counter(one["state_type"] for one in runs)
            pairs = overlaps(runs)
            code = up.stop()
            ask = [sys.executable, "-m", "ranklake", "status", "--json"]
            status = subprocess.run(ask, cwd=folder, capture_output=True, text=True, check=False)
            told = json.loads(status.stdout)
            stored = {one["table"]: one["stored"] for one in told["tables"]}
            print(
                f"runs: {dict(states)}; at once: {pairs}; up exits {code}; status exits {status.returncode}; {stored}"
            )
            held = (
                not pairs and not code and not status.returncode and stored["steps"] == rows + 40 and not up.members()
            )
        finally:
            (Path(tempfile.gettempdir()) / "up-chaos.out").write_text(up.out())
            up.kill()
    print("holds" if held else "does NOT hold")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
