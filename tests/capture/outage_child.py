"""A rank that trains, on paper, while its store or disk is in trouble; prints what it recorded and how long that took.

usage: outage_child.py '{"trouble": "outage" | "flapping" | "full", "local": …, "spool": …, "seconds": …, "seed": …}'

The breaker's clock runs `FASTER` times as fast as the world's, so that ten minutes of outage pass in ten seconds: the
breaker goes through all that it would go through. The store hangs, resets, truncates and lies as a real one may.
"""

import contextlib
import json
import random
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from ranklake import capture
from ranklake.capture.recording import upload
from ranklake.capture.recording.breaker import Breaker

FASTER = 60.0
STEP_S = 0.01
ADDS, LOGGED = 20, 10
HANG_S = 0.3


class Store(fsspec.AbstractFileSystem):
    """An object store in a folder, and the trouble that it is in."""

    protocol = ("s3", "trouble")
    cachable = False
    folder = LocalFileSystem(auto_mkdir=True)
    fault = staticmethod(lambda: None)
    puts = 0
    failed = 0

    @classmethod
    def _strip_protocol(cls, path):
        return path.removeprefix("trouble://")

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        """Store, or do what a store in trouble does."""
        type(self).puts += 1
        fault = type(self).fault()
        if fault == "truncated":
            self.folder.pipe_file(path, value[: len(value) // 2])
            return
        if fault in {None, "late"}:
            self.folder.pipe_file(path, value)
        if fault is None:
            return
        type(self).failed += 1
        if fault == "hangs":
            time.sleep(HANG_S)
            raise TimeoutError("read timed out")
        if fault == "reset":
            raise ConnectionResetError("connection reset by peer")
        error = OSError(f"the store answers: {fault}")
        error.status_code = 503 if fault == "busy" else 500
        raise error

    def info(self, path, **kwargs):
        """Return an object's size."""
        return {**self.folder.info(path), "name": path}


fsspec.register_implementation("trouble", Store, clobber=True)


class Timed:
    """Calls of the training thread, and of a bare loop in it that shows what the machine itself takes."""

    def __init__(self):
        self.calls, self.bare = [], []

    def __call__(self, function, *arguments, **named):
        """Call and note how long it took."""
        begin = time.perf_counter_ns()
        function(*arguments, **named)
        self.calls.append(time.perf_counter_ns() - begin)

    def spin(self, until_ns):
        """Do nothing for as long as was recorded, in steps of some microseconds, and note how long each took."""
        last = time.perf_counter_ns()
        while last < until_ns:
            for _ in range(60):
                pass
            now = time.perf_counter_ns()
            self.bare.append(now - last)
            last = now


def figures(samples):
    """Return p50, p99.9 and the maximum, in microseconds."""
    values = np.array(samples) / 1e3
    return {"p50": np.percentile(values, 50), "p99.9": np.percentile(values, 99.9), "max": values.max()}


def faults_of(job, began):
    """Return a function that says what goes wrong with the PUT that is made now."""
    dice = random.Random(job["seed"])
    over_s = job["seconds"]

    def outage():
        return dice.choice(("hangs", "reset", "busy")) if 0.5 < time.monotonic() - began < over_s else None

    def flapping():
        kinds = ("hangs", "reset", "busy", "failed", "truncated", "late", None, None, None)
        return dice.choice(kinds) if time.monotonic() - began < over_s else None

    return {"calm": lambda: None, "outage": outage, "flapping": flapping, "full": outage}[job["trouble"]]


@contextlib.contextmanager
def disk_filled(folder, *, wanted):
    """Fill the disk for the block to the last byte that it gives."""
    ballast = folder / "ballast"
    if wanted:
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        assert shutil.disk_usage(folder).free < 65536
    yield
    ballast.unlink(missing_ok=True)


def train(run, timed, seconds, first=0):
    """Record steps for some seconds, from a number on; return the next one."""
    scalars = [run.scalar(f"eval/{number}") for number in range(ADDS)]
    values = {f"layer/{number}": 0.5 for number in range(LOGGED)}
    count = first
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter_ns()
        step = run.step(count, tokens=64)
        timed(step.__enter__)
        timed(run.log, loss=1.0)
        timed(run.log, values)
        for scalar in scalars:
            timed(scalar.add, 0.25, count)
        timed(step.__exit__, None, None, None)
        took = time.perf_counter_ns() - begin
        timed.spin(time.perf_counter_ns() + took)
        count += 1
        time.sleep(max(0.0, STEP_S - 2 * took / 1e9))
    return count


def main(job):
    """Do what the job says."""
    upload.Breaker = partial(Breaker, lambda: time.monotonic() * FASTER)
    local = Path(job["local"])
    timed = Timed()
    began = time.monotonic()
    Store.fault = staticmethod(faults_of(job, began))
    run = capture.start(run="outage", spool=f"trouble://{job['spool']}", local_dir=local, seal_every_s=0.5)
    steps = train(run, timed, 1.0)
    with disk_filled(local, wanted=job["trouble"] == "full"):
        steps = train(run, timed, job["seconds"] - 3.0, steps)
    freed_at = steps
    steps = train(run, timed, 2.5, steps)
    waiting = len(list(local.rglob("*.sealed")))
    run.close(60)
    said = {
        "steps": steps,
        "freed_at": freed_at,
        "scalars": steps * (ADDS + LOGGED),
        "left": [str(path) for path in local.rglob("*") if path.is_file() and path.parent.name != ".claims"],
        "waiting_at_close": waiting,
        "puts": Store.puts,
        "failed": Store.failed,
        "calls": figures(timed.calls),
        "bare": figures(timed.bare),
        "count": len(timed.calls),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
