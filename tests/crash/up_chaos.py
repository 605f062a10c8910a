"""SIGKILL at random on what ``ranklake up`` runs, while ranks record. Then the books are held against each other.

    python tests/crash/up_chaos.py [--minutes 20] [--every-s 20] [--seed N]

It starts one `ranklake up`, two ranks that record, and a Dask cluster by address. It kills the server, the worker, flow
runs, workers of their local clusters, and scheduler and workers of the cluster by address, one every few seconds; which
of both clusters runs use changes as it goes. Then it lets things come to rest and asks: does ``ranklake status`` add up
with every row stored that the ranks recorded? Does a run hang in Running? Do schedules go on? Did two runs of a
deployment work at once?
"""

import argparse
import contextlib
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

from serving import Up, free_port, wait_for

TARGETS = ("server", "worker", "flow run", "local", "dask scheduler", "dask worker")


class Dask:
    """A cluster by address, scheduler and worker, that is started again when it is killed, as systemd would."""

    def __init__(self):
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._commands = {
            "scheduler": ["dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard"],
            "worker": ["dask_worker", self.address, "--host", "127.0.0.1", "--nworkers", "2", "--nthreads", "1"],
        }
        self._running = {}
        self.keep()

    def keep(self):
        """Start what is not there."""
        for name, (module, *options) in self._commands.items():
            if name not in self._running or self._running[name].poll() is not None:
                command = [sys.executable, "-m", f"distributed.cli.{module}", *options, "--no-dashboard"]
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                self._running[name] = subprocess.Popen(command, **quiet)

    def members(self, name):
        """Return the scheduler, or the processes of the worker."""
        found = psutil.Process(self._running[name].pid)
        return [found] if name == "scheduler" else [found, *found.children(recursive=True)]

    def end(self):
        """Kill all of it."""
        for name, process in self._running.items():
            for one in self.members(name) if process.poll() is None else []:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait()


class Ranks:
    """Two ranks that record one run after the other, each a process of its own."""

    def __init__(self, folder):
        self._folder, self._number, self._running = folder, 0, []
        self.steps = 0

    def keep(self):
        """Begin the next run when both ranks have closed the one before."""
        if any(one.poll() is None for one in self._running):
            return
        self.ended()
        self._number += 1
        places = [str(self._folder / "spool"), str(self._folder / "local")]
        command = [sys.executable, str(Path(__file__).with_name("up_rank.py")), *places, f"r{self._number}"]
        self._running = [subprocess.Popen([*command, str(rank), "400"], stdout=subprocess.PIPE) for rank in (0, 1)]

    def ended(self):
        """Wait for the ranks and count what they say that they recorded."""
        for one in self._running:
            said, _ = one.communicate(timeout=300)
            assert one.returncode == 0, "a rank failed"
            self.steps += int(said)
        self._running = []


def victims(up, dask, kind):
    """Return the processes of a kind that are there now."""
    if kind.startswith("dask "):
        return dask.members(kind.removeprefix("dask "))
    words = {"server": "uvicorn", "worker": "worker start", "flow run": "prefect.engine", "local": "multiprocessing"}
    found = []
    for one in up.members():
        try:
            if words[kind] in " ".join(one.cmdline()):
                found.append(one)
        except psutil.Error:
            continue
    return found


def configure(folder, dask):
    """Write the configuration anew, at once, as an operator would while all runs: a cluster by address, or a local one.

    A number of workers means that they do all work, however small.
    """
    draft = folder / "ranklake.toml.new"
    draft.write_text(f'lake.uri = "{folder}/lake"\nspool.uri = "{folder}/spool"\n{dask}\n')
    draft.replace(folder / "ranklake.toml")


def storm(up, dask, ranks, folder, minutes, seed):
    """Kill while ranks record, for some minutes; return what was killed."""
    chance, killed = random.Random(seed), Counter()
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        configure(folder, chance.choice(("dask.workers = 2", f'dask.address = "{dask.address}"')))
        until = time.monotonic() + chance.uniform(4, 40)
        kind = chance.choice(TARGETS)
        while time.monotonic() < until:
            ranks.keep()
            dask.keep()
            time.sleep(0.5)
        while kind in {"flow run", "local"} and time.monotonic() < until + 60 and not victims(up, dask, kind):
            time.sleep(0.1)  # they are there for seconds at a time
        with contextlib.suppress(psutil.NoSuchProcess):
            if found := victims(up, dask, kind):
                chance.choice(found).kill()
                killed[kind] += 1
        assert up.process.poll() is None, up.out()
    return killed


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
        dask, ranks = Dask(), Ranks(folder)
        configure(folder, "dask.workers = 2")
        up = Up.start(folder, "--every-s", str(options.every_s))
        try:
            print(f"ready after {up.ready()} s", flush=True)
            killed = storm(up, dask, ranks, folder, options.minutes, options.seed)
            ranks.ended()
            quiet = datetime.now().astimezone()
            print(f"killed: {dict(killed)}; {ranks.steps} steps recorded", flush=True)

            def later():
                ended = [one for one in up.runs("pipeline") if one["state_type"] == "COMPLETED"]
                return [one for one in ended if datetime.fromisoformat(one["start_time"]) > quiet]

            def calm():
                dask.keep()
                return later()

            wait_for("a scheduled run that completes after the storm", calm, 600)
            wait_for("nothing in flight that is older than the calm", lambda: not hanging(up, quiet), 120)
            runs = all_runs(up)
            states = Counter(one["state_type"] for one in runs)
            pairs = overlaps(runs)
            failed = Counter(one["state"]["message"][:160] for one in runs if one["state_type"] == "FAILED")
            code = up.stop()
            ask = [sys.executable, "-m", "ranklake", "status", "--json"]
            status = subprocess.run(ask, cwd=folder, capture_output=True, text=True, check=False)
            told = json.loads(status.stdout)
            stored = {one["table"]: one["stored"] for one in told["tables"]}
            print(f"runs: {dict(states)}; at once: {pairs}; up exits {code}; status exits {status.returncode}")
            print(f"stored: {stored}")
            for message, count in failed.most_common():
                print(f"failed {count} times: {message}")
            held = not pairs and not code and not status.returncode and stored["steps"] == ranks.steps
            held = held and not up.members()
        finally:
            (Path(tempfile.gettempdir()) / "up-chaos.out").write_text(up.out())
            up.kill()
            dask.end()
    print("holds" if held else "does NOT hold")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
