"""Processes for `test_capture_kills.py` to kill: a nursery that forks one per line of JSON that it reads.

The nursery has everything imported, so a process costs milliseconds. Each process may kill itself, by SIGKILL, at the
n-th thing that the code of one phase does: a call of a function, or a call of the interpreter or the system made from
one. So a kill falls between any two effects, such as a rename and the write behind it. Nothing of this is in the code
under test.
"""

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

import ranklake.capture.recording.threads
from ranklake import capture
from ranklake.capture.common.layouts import SLOT_LANES
from ranklake.capture.recover import recover

ROOM = Path(capture.__file__).parent


def code(*names):
    """Return the files of modules of capture, by folder and name. Raises `FileNotFoundError` where one is not there."""
    files = {ROOM / f"{name}.py" for name in names}
    for file in files:
        file.stat()
    return set(map(str, files))


PHASES = {
    "record": code(
        "lanes/double_buffer",
        "lanes/lane",
        "lanes/records",
        "lanes/sink",
        "lanes/slots",
        "lanes/written",
        "metrics/meter",
        "metrics/scalar_writer",
        "metrics/value_log",
        "lanes/series",
        "spool/frames",
        "steps/phase",
        "steps/phases",
        "steps/spans",
        "steps/step",
        "training/run",
        "training/start",
    ),
    "rotate": code(
        "lanes/lane",
        "lanes/shards",
        "lanes/slots",
        "lanes/written",
        "recording/budget",
        "recording/lanes",
        "spool/stream",
        "spool/stream_files",
    ),
    "seal": code(
        "common/arrays",
        "sealing/tables",
        "sealing/seal",
        "sealing/segment_bytes",
        "sealing/tables",
        "spool/clock",
        "spool/files",
        "spool/meta",
    ),
    "keep": code(
        "lanes/lane",
        "lanes/slots",
        "recording/threads",
        "recording/recorder",
        "recording/syncer",
        "recording/uploading",
        "spool/owner",
        "spool/stream",
    ),
    "upload": code("recording/breaker", "recording/upload"),
    "recover": {str(path) for path in ROOM.rglob("*.py") if path.parent.name not in {"frameworks", "importers"}},
}
STEPS = 60


class Killer:
    """Counts what a phase's code does, and kills the process at a given count."""

    def __init__(self, phase, at):
        self.files = PHASES[phase]
        self.at, self.count = at, 0

    def __call__(self, frame, event, _):
        """Be told by the interpreter of each call and return."""
        if event != "return" and frame.f_code.co_filename in self.files:
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self):
        """Begin to count, in this thread and in those to come."""
        threading.setprofile(self)
        sys.setprofile(self)


def record(job, journal):
    """Record steps, metrics and events in several ways; note in the journal what was acknowledged."""
    rng = random.Random(job["seed"])
    every = rng.choice([0.05, 0.1, 60])
    run = capture.start(
        job="crash",
        run=job["run"],
        spool=job["spool"],
        local_dir=job["local"],
        seal_every_s=every,
        spool_writes=rng.choice(["mmap", "mmap", "records"]),
    )
    thread = threading.Thread(target=log_along, args=(run, journal))
    if job["threads"]:
        thread.start()
    batches = DataLoader(Recorded(run, journal), num_workers=2) if job["loader"] else range(STEPS)
    child = train(run, journal, rng, batches, fork_at=rng.randrange(STEPS) if job["forks"] else None)
    if job["threads"]:
        thread.join()
    if child is not None:
        os.waitpid(child, 0)
    if job["close"]:
        run.close()
    else:
        run.flush()
        os.kill(os.getpid(), signal.SIGKILL)


class Recorded(Dataset):
    """Data whose loading is recorded, in the loader's own workers."""

    def __init__(self, run, journal):
        self.run, self.journal = run, journal

    def __len__(self):
        return STEPS

    def __getitem__(self, number):
        self.run.log(loader=float(number), step=number)
        os.write(self.journal, b"loader %d\n" % number)
        return number


def train(run, journal, rng, batches, fork_at):
    """Take a step for each batch; return the worker's process id, if one was forked."""
    child = None
    handle, folded, drawn = run.scalar("by/handle"), run.aggregate("by/interval"), run.histogram("by/histogram")
    for number, _ in enumerate(surviving(batches)):
        if number == fork_at:
            child = fork_worker(run, journal)
        with run.step(number, tokens=8):
            with run.phase("forward"):
                run.log(loss=1.0, other=2.0)
            handle.add(3.0, number)
            folded.add(float(number), number)
            drawn.record(float(number), number)
        os.write(journal, b"step %d\n" % number)
        if number % 16 == 7:
            run.event("mark", number=number)
            os.write(journal, b"event %d\n" % number)
        if rng.random() < 0.05:
            time.sleep(0.01)
    return child


def surviving(batches):
    """Yield what a loader loads; when one of its workers was killed, die in the same way, as training would."""
    try:
        yield from batches
    except RuntimeError as error:
        if "DataLoader worker" in str(error):
            os.kill(os.getpid(), signal.SIGKILL)
        raise


def log_along(run, journal):
    """Record from another thread meanwhile."""
    for number in range(STEPS):
        run.log({"along/a": 1.0, "along/b": 2.0}, step=number)
        os.write(journal, b"along %d\n" % number)


def fork_worker(run, journal):
    """Fork a child that records like a data loader's worker, and is killed in the end."""
    pid = os.fork()
    if pid == 0:
        for number in range(STEPS):
            run.log(worker=float(number), step=number)
            os.write(journal, b"worker %d\n" % number)
        os.kill(os.getpid(), signal.SIGKILL)
    return pid


def work(job, told):
    """Do one job, counting and perhaps dying on the way; tell how much there was to count."""
    killer = Killer(job["phase"], job["at"])
    killer.watch()
    if job["mode"] == "record":
        journal = os.open(job["journal"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        record(job, journal)
    else:
        done = recover(job["local"], job["spool"])
        assert not done.troubles, done
    sys.setprofile(None)
    os.write(told, b"%d" % killer.count)


def main():
    """Serve jobs until the input ends."""
    assert ranklake.capture.recording.threads
    for layout in SLOT_LANES.values():  # files so small that rotation happens all the time
        object.__setattr__(layout, "file_bytes", layout.slot_bytes * 16)
    for line in sys.stdin:
        job = json.loads(line)
        mine, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            os.setpgid(0, 0)
            try:
                work(job, told)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(told)
        if job["after_ms"]:
            time.sleep(job["after_ms"] / 1000)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):  # a loader's workers notice only after seconds
            os.killpg(pid, signal.SIGKILL)
        count = os.read(mine, 20)
        os.close(mine)
        print(json.dumps({"status": status, "events": int(count or 0)}), flush=True)


if __name__ == "__main__":
    main()
