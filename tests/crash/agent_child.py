"""Processes for `test_agent_kills.py` to kill: ranks that record, and agents that send beside them.

A nursery as in `capture_child.py`: it forks one process per line of JSON that it reads. While it leads a local spool it
stands for an agent that is alive and does nothing, so that ranks leave all to it.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from capture_child import Killer, code

import ranklake.capture.recording.threads
from ranklake import capture
from ranklake.capture.common.layouts import SLOT_LANES
from ranklake.capture.node.agent import Agent
from ranklake.capture.node.fallback import Fallback
from ranklake.capture.recording.upload import Uploader
from ranklake.capture.recover import recover
from ranklake.capture.spool.leader import Leadership
from ranklake.segments import pack

STEPS = 60
FILES = {
    "agent": {
        *code(
            "node/agent",
            "node/worker",
            "recover",
            "recording/recovery",
            "recording/upload",
            "spool/files",
            "spool/stream",
        ),
        pack.__file__,
    },
    "recover": code("recover", "recording/recovery", "recording/upload", "spool/stream"),
}


class Assassin(Killer):
    """Kills at the n-th thing that an agent's, or a recovery's, code does."""

    def __init__(self, mode, at):
        self.files, self.at, self.count = FILES[mode], at, 0


def rank(job):
    """Record steps, slowly; end by a close or by SIGKILL."""
    rng = random.Random(job["seed"])
    journal = os.open(job["journal"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    run = capture.start(job="crash", run=job["run"], spool=job["spool"], local_dir=job["local"], seal_every_s=0.05)
    for number in range(STEPS):
        with run.step(number):
            run.log({"a": 1.0, "b": 2.0})
        os.write(journal, b"step %d\n" % number)
        if rng.random() < 0.1:
            time.sleep(0.01)
    time.sleep(rng.random() / 5)
    if rng.random() < 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
    run.close()


def fail_at_random(job):
    """Have the first spool fail every second PUT, before or after it stores the bytes: then both spools get them."""
    rng, put = random.Random(job["at"]), Uploader.put

    def failing(self, path, raw):
        fate = rng.random() if self.uri == job["spool"] else 1.0
        if fate >= 0.25:
            put(self, path, raw)
        if fate < 0.5:
            raise OSError("the spool is away")

    Uploader.put = failing


def send(job, told):
    """Be the agent once, or recover once, and perhaps die of it; tell how much there was to die in."""
    killer = Assassin(job["mode"], job["at"])
    if job["mode"] == "agent":
        lead = Leadership.take(Path(job["local"]), job["spool"])
        assert lead is not None
        killer.watch()
        if job.get("fallback"):
            fail_at_random(job)
        done = Agent(Path(job["local"]), job["spool"], fallback=Fallback(job.get("fallback", ""), after_s=0.0)).look(
            pack_now=True
        )
    else:
        killer.watch()
        done = recover(job["local"], job["spool"])
    sys.setprofile(None)
    assert not done.troubles, done
    os.write(told, b"%d" % killer.count)


def forked(work, *args):
    """Run a function in a forked child; return its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work(*args)
            status = 0
        except BaseException:  # noqa: BLE001 - told before the process ends
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


def sent(job):
    """Run one sender to its end; return its status and its count."""
    mine, told = os.pipe()
    pid = forked(send, job, told)
    os.close(told)
    _, status = os.waitpid(pid, 0)
    count = int(os.read(mine, 20) or 0)
    os.close(mine)
    return status, count


def beside(job):
    """Run agents one after the other, most of them killed, while ranks record; return how many were killed."""
    rng = random.Random(job["seed"])
    jobs = [{**job, "run": f"{job['run']}-{number}", "seed": rng.random()} for number in range(2)]
    ranks = [forked(rank, {**one, "journal": f"{job['journal']}-{number}"}) for number, one in enumerate(jobs)]
    kills = 0
    while ranks:
        mode = "agent" if rng.random() < 0.8 else "recover"
        status, _ = sent({**job, "mode": mode, "at": rng.randint(1, job["most"])})
        assert status in {0, signal.SIGKILL}, status
        kills += status == signal.SIGKILL
        for pid in list(ranks):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                assert status in {0, signal.SIGKILL}, status
                ranks.remove(pid)
    return kills


def main():
    """Serve jobs until the input ends."""
    assert ranklake.capture.recording.threads
    for layout in SLOT_LANES.values():  # files so small that rotation happens all the time
        object.__setattr__(layout, "file_bytes", layout.slot_bytes * 16)
    for line in sys.stdin:
        job = json.loads(line)
        lead = Leadership.take(Path(job["local"]), job["spool"]) if job["mode"] == "led" else None
        if job["mode"] == "led":
            _, status = os.waitpid(forked(rank, job), 0)
            answer = {"status": status, "count": 0}
        elif job["mode"] == "beside":
            answer = {"status": 0, "count": beside(job)}
        else:
            status, count = sent(job)
            answer = {"status": status, "count": count}
        if lead is not None:
            lead.release()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
