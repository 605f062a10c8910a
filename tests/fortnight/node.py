"""A node of the fortnight: forks each job that it is handed, and an agent beside them, at the time that it is told.

One message a line on standard input; the answer on standard output has the exit codes of jobs' ranks and of agents:

    {"offset_s": -1209600.0, "agent": "/spool", "beside": false, "jobs": [{"run": "a", "kind": "fine", …}]}
    {"jobs": [0], "agent": [0, 0]}
"""

import io
import itertools
import json
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path

from ledger import TOKENS

from ranklake import cli
from ranklake.capture.spool.leader import leader
from ranklake.capture.training.start import start

HANG_S = 1.0
CLOCK_STEP_S = {"clock ahead": 3600, "clock back": -3600}


class Work(BaseException):
    """What a forked process does once it is out of the loop that forked it: it then ends as any program does."""


def begun(work, *arguments, log):
    """Do something in a process of its own, whose words go to a file; return its number."""
    process = os.fork()
    if process == 0:
        words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(words, 1)
        os.dup2(words, 2)
        raise Work(work, *arguments)
    return process


def ended(process):
    """Wait for a process; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def record(folder, job, rank):
    """Train a rank of a job."""
    run = start(
        job=job["job"], run=job["run"], local_dir=folder / "local", spool="", rank=rank, world_size=job["ranks"],
        config=job["config"], labels={"team": job["team"]}, **({"hang_s": HANG_S} if job["kind"] == "hung" else {}),
    )  # fmt: skip
    kind, began = job["kind"], time.monotonic()
    for place in range(job["steps"]):
        if kind == "hung" and place == job["steps"] // 2:
            time.sleep(4 * HANG_S)
        number, is_late = job["first"] + place, place >= job["steps"] * 2 // 3
        with run.step(number, tokens=-TOKENS if kind == "negative" else TOKENS):
            with run.phase("forward"):
                time.sleep(job["step_s"])
            run.log(loss=math.nan if kind == "nan" and is_late else job["loss"] + 1 / (number + 1), lr=0.1)
        if place == job["steps"] // 2:
            os.environ["FAKETIME"] = f"{float(os.environ['FAKETIME']) + CLOCK_STEP_S.get(kind, 0):+.6f}"
    (folder / "spent" / f"{job['run']}.{rank}").write_text(str(time.monotonic() - began))
    if kind == "failed":
        raise RuntimeError("the loss went up")
    if kind in ("killed", "preempted"):
        os.kill(os.getpid(), signal.SIGKILL if kind == "killed" else signal.SIGTERM)
        time.sleep(60)
    run.close()


def answer(message, folder):
    """Do what a message asks for; return what came of it."""
    os.environ["FAKETIME"] = f"{message['offset_s']:+.6f}"
    log, local = folder / "agent.log", str(folder / "local")
    words = ["agent", "--local-dir", local, "--spool", message["agent"]]
    agent = begun(cli.main, [*words, "--interval-s", "0.5"], log=log)
    while (found := leader(folder / "local")) is None or found.pid != agent:
        time.sleep(0.01)
    ranks = [[(job, rank) for rank in range(job["ranks"])] for job in message["jobs"]]
    codes = []
    for together in [list(itertools.chain(*ranks))] if message["beside"] else ranks:
        processes = [begun(record, folder, *one, log=folder / "jobs.log") for one in together]
        codes += [ended(process) for process in processes]
    os.kill(agent, signal.SIGTERM)
    return {"jobs": codes, "agent": [ended(agent), ended(begun(cli.main, [*words, "--once"], log=log))]}


def main():
    """Answer messages until there are no more; return what a forked process is to do."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    (folder / "spent").mkdir(exist_ok=True)
    socket.gethostname = lambda: name  # all nodes are on one machine; their hosts' names tell them apart
    answers = os.fdopen(os.dup(1), "w")
    try:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), folder)), file=answers, flush=True)
    except Work as work:
        sys.stdin = io.StringIO()
        return work.args
    return ()


if __name__ == "__main__" and (does := main()):
    does[0](*does[1:])
