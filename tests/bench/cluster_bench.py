"""Measures the pipeline on a remote Dask cluster: equal results, bytes on the wire, load of the scheduler.

    .venv/bin/python tests/bench/cluster_bench.py [--json] [--gpus N] [--hours H] [--workers N] [--tasks N]

A scheduler and workers run as processes of their own in a network namespace of their own, so that the counters of its
loopback device count all bytes between them and the driver, with TCP headers. One lake is filled by `ranklake
pipeline --dask ADDRESS`, another by `ranklake pipeline` alone. All rows of all rollups and all results of checks must
be the same. Then `--tasks` tasks that return their arguments of 20 kB show how many tasks a second pass the scheduler.
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import psutil
from distributed import Client
from measured_command import run_measured
from workers_bench import facts

from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.quality.check import run_checks

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_ADDRESS = "tcp://127.0.0.1:8786"
ARGUMENT_BYTES = 20_000
"""About the pickled size of a task of ingest with some thirty segments."""


def enter_namespace():
    """Run this script again in a network namespace of its own, and bring its loopback device up."""
    if os.environ.get("RANKLAKE_BENCH_NAMESPACE") != "1":
        os.environ["RANKLAKE_BENCH_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--map-root-user", sys.executable, *sys.argv])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _IFF_UP))


def wire_bytes():
    """Return the bytes that the loopback device has received."""
    return int(re.search(r"lo:\s*(\d+)", Path("/proc/net/dev").read_text())[1])


@contextmanager
def cluster(count, folder):
    """Start a scheduler and workers; yield a client, and the processes of both kinds."""
    dask = [sys.executable, "-m", "distributed.cli.dask_"]
    options = {"stdout": subprocess.DEVNULL, "stderr": (folder / "cluster.log").open("w")}

    def start(kind, *arguments):
        return psutil.Popen([*dask[:-1], dask[-1] + kind, *arguments, "--no-dashboard"], **options)

    processes = [start("scheduler", "--host", "127.0.0.1", "--port", "8786")]
    try:
        client = Client(_ADDRESS, timeout="60s", set_as_default=False)
        where = ("--nthreads", "1", "--no-nanny", "--local-directory", str(folder))
        processes += [start("worker", _ADDRESS, *where) for _ in range(count)]
        client.wait_for_workers(count, timeout=60)
        yield client, processes[0], processes[1:]
        client.close()
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def cpu_s(processes):
    """Return the CPU seconds of processes."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def finished_tasks(client):
    """Return the number of tasks that ever finished, by the name of their function."""

    def count(dask_scheduler):
        return {name: prefix.state_counts["memory"] for name, prefix in dask_scheduler.task_prefixes.items()}

    return Counter(client.run_on_scheduler(count))


def measure(client, scheduler, workers, work):
    """Do some work on the cluster; return what it took of wire, scheduler, workers, tasks and wall time."""

    def state():
        return [wire_bytes(), cpu_s([scheduler]), cpu_s(workers), finished_tasks(client).total(), time.monotonic()]

    before = state()
    result = work()
    names = ("wire_bytes", "scheduler_cpu_s", "workers_cpu_s", "tasks", "wall_s")
    return result, dict(zip(names, (after - at for after, at in zip(state(), before, strict=True)), strict=True))


def results(place):
    """Return all rows of rollups and results of checks of a lake."""
    lake = Lake.open(str(place))
    return facts(lake, run_checks(lake, workers=InProcess(), again=True))


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--hours", type=float, default=0.25)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=5_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    enter_namespace()
    with tempfile.TemporaryDirectory(prefix="ranklake-cluster-") as scratch:
        folder = Path(scratch)
        spool = str(folder / "spool")
        size = ("--gpus", str(given.gpus), "--hours", str(given.hours), "--seal-s", "60")
        generated = json.loads(run_measured("bench", "generate", *size, "--spool", spool, "--json")[0])
        shutil.copytree(spool, folder / "spool-alone", copy_function=os.link)  # a spool feeds one lake
        run_measured("pipeline", "--spool", f"{spool}-alone", "--lake", str(folder / "alone"), "--json")
        with cluster(given.workers, folder) as (client, scheduler, workers):

            def run():
                where = ("--spool", spool, "--lake", str(folder / "remote"), "--dask", _ADDRESS)
                return run_measured("pipeline", *where, "--json")[1]

            usage, pipeline_used = measure(client, scheduler, workers, run)
            arguments = [os.urandom(ARGUMENT_BYTES) for _ in range(given.tasks)]
            _, plain = measure(
                client,
                scheduler,
                workers,
                lambda: client.gather(client.map(len, arguments, pure=False, batch_size=100)),
            )
        figures = {
            "cpus": os.cpu_count(),
            "gpus": given.gpus,
            "rows": sum(generated["rows"].values()),
            "same": results(folder / "remote") == results(folder / "alone"),
            "pipeline": pipeline_used | {"driver_cpu_s": usage.cpu_s},
            "plain_tasks": plain,
        }
    print(json.dumps(figures, indent=1) if given.json else report(figures))
    sys.exit(0 if figures["same"] else 1)


def report(figures):
    """Return it as Markdown."""
    used, plain = figures["pipeline"], figures["plain_tasks"]
    equal = "identical" if figures["same"] else "NOT identical"
    return "\n".join([
        "| | pipeline | tasks that do nothing |",
        "|---|---:|---:|",
        f"| tasks | {used['tasks']:,} | {plain['tasks']:,} |",
        f"| bytes on the wire, MB | {used['wire_bytes'] / 1e6:.1f} | {plain['wire_bytes'] / 1e6:.1f} |",
        f"| scheduler, CPU-s | {used['scheduler_cpu_s']:.2f} | {plain['scheduler_cpu_s']:.2f} |",
        f"| workers, CPU-s | {used['workers_cpu_s']:.1f} | {plain['workers_cpu_s']:.1f} |",
        f"| driver, CPU-s | {used['driver_cpu_s']:.1f} | |",
        f"| wall, s | {used['wall_s']:.1f} | {plain['wall_s']:.1f} |",
        "",
        f"{figures['rows']:,} rows of {figures['gpus']} GPUs; results {equal}",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
