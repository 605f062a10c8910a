"""What all default sources cost on the demo's training: two ranks that record all that the demo does, and the agent.

    .venv/bin/python tests/bench/sources_bench.py [--seconds N] [--s3]

CPU time alone, so that a busy machine disturbs it little. README.md beside this file says what is added up.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from stores import KEY, SECRET, moto_server

RANK = """
import json, os, sys, threading
from ranklake import capture
from ranklake.demo import train as demo

def spent():
    found = {}
    for thread in threading.enumerate():
        if thread.name.startswith("ranklake") and thread.native_id:
            with open(f"/proc/self/task/{thread.native_id}/stat") as file:
                fields = file.read().rpartition(") ")[2].split()
            found[thread.name] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return {"threads": found, "steps": RUNS[0].latest_step() or 0 if RUNS else 0}

def start(**facts):
    RUNS.append(begun(**facts))
    return RUNS[0]

def answers():
    for line in sys.stdin:
        print(json.dumps(spent()), flush=True)

RUNS = []
begun, capture.start = capture.start, start
threading.Thread(target=answers, daemon=True, name="bench").start()
demo.main()
"""
CALLS = """
import statistics, sys, time
import torch
from ranklake import capture

took, loss = [], torch.zeros(())
with capture.start(job="bench", run="calls", spool=sys.argv[1], local_dir=sys.argv[2]) as run:
    source = iter(run.loader(range(10**6)))
    for turn in range(9):
        began = time.thread_time()
        for number in range(200):
            next(source)
            with run.step(turn * 200 + number, tokens=1024, samples=16):
                for name in ("forward", "backward", "optimizer"):
                    with run.phase(name):
                        pass
                run.log(loss=loss, grad_norm=loss, lr=0.1)
                run.log({"train/perplexity": loss, "train/param_norm": loss, "train/update_norm": loss,
                         "train/clip_ratio": 0.1, "train/batch_size": 16, "train/sequence_length": 64,
                         "train/tokens_seen": number})
        took.append((time.thread_time() - began) / 200)
print(statistics.median(took))
"""


def cpu_s(pid):
    """Return the CPU seconds of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return sum(map(int, fields[11:13])) / tick, sum(map(int, fields[13:15])) / tick


def memory_mb(pid):
    """Return what a process has in memory, and had at most, in MB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return tuple(int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))


class Rank:
    """One rank of the demo's training."""

    def __init__(self, rank, folder, spool, environ):
        names = ["--run-name", "bench", "--spool", spool, "--local-dir", f"{folder}/local", "--journal", folder]
        rendezvous = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                      "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": environ["BENCH_PORT"]}  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, *names, "--steps", str(10**6)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, env={**environ, **rendezvous},  # when they are killed, one goes first
        )  # fmt: skip

    def ask(self):
        """Return CPU seconds of its threads by name, and its step."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self):
        """End it, as both ranks cannot agree on a last step."""
        self.process.kill()
        self.process.communicate()


def calls_s():
    """Return the CPU seconds of the calls of one of the demo's steps, where nothing happens in between."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", CALLS, f"{folder}/spool", f"{folder}/local"]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(seconds, spool, environ):
    """Train with an agent beside it; return CPU seconds in the time between two looks, and the agent's memory."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        environ = {**environ, "BENCH_PORT": str(20000 + os.getpid() % 20000)}
        command = [sys.executable, "-m", "ranklake", "agent", "--local-dir", f"{folder}/local"]
        agent = subprocess.Popen([*command, "--spool", spool or f"{folder}/spool"], env=environ)
        ends.callback(agent.wait)
        ends.callback(agent.send_signal, signal.SIGTERM)
        ranks = [Rank(rank, folder, spool or f"{folder}/spool", environ) for rank in range(2)]
        for rank in ranks:
            ends.callback(rank.kill)
        while min(rank.ask()["steps"] for rank in ranks) < 20:  # what starting costs is paid once
            time.sleep(0.5)
        before, agent_before, began = [rank.ask() for rank in ranks], cpu_s(agent.pid), time.monotonic()
        time.sleep(seconds)
        after, agent_after, took = [rank.ask() for rank in ranks], cpu_s(agent.pid), time.monotonic() - began
        memory = memory_mb(agent.pid)
        return {
            "seconds": took,
            "steps": [b["steps"] - a["steps"] for a, b in zip(before, after, strict=True)],
            "threads": [_grown(a["threads"], b["threads"]) for a, b in zip(before, after, strict=True)],
            "agent": agent_after[0] - agent_before[0],
            "errands": agent_after[1] - agent_before[1],
            "memory": memory,
        }


def _grown(before, after):
    return {name: used - before.get(name, 0.0) for name, used in after.items()}


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="how long training and agent are watched")
    parser.add_argument("--s3", action="store_true", help="the spool is in a store that moto serves on loopback")
    chosen = parser.parse_args()
    environ = {key: value for key, value in os.environ.items() if not key.startswith("RANKLAKE_")}
    with contextlib.ExitStack() as ends:
        spool = ""
        if chosen.s3:
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
            spool, url = "s3://bucket/spool", ends.enter_context(moto_server(folder))
            environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
                        "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
        found = measure(chosen.seconds, spool, environ)
    seconds = found["seconds"]
    each = calls_s()
    calls = [count * each for count in found["steps"]]
    threads = [sum(one.values()) for one in found["threads"]]
    total = found["agent"] + found["errands"] + sum(calls) + sum(threads)
    print(
        f"{seconds:.0f} s, {found['steps'][0] / seconds:.1f} steps a second on each of 2 ranks, "
        f"spool in {'S3' if spool else 'a folder'}"
    )
    print("| what | % of a core | target |\n|---|---|---|")
    print(f"| agent's process, samplers in it | {found['agent'] / seconds:.2%} | |")
    print(f"| its worker processes | {found['errands'] / seconds:.2%} | |")
    print(f"| ranklake's threads in both ranks | {sum(threads) / seconds:.2%} | |")
    print(f"| recording calls in both ranks, {each * 1e6:.0f} µs a step | {sum(calls) / seconds:.2%} | |")
    print(f"| all together, a node | {total / seconds:.2%} | 1 % |")
    print(f"| agent's memory, now and at most | {found['memory'][0]:.0f} and {found['memory'][1]:.0f} MB | 60 MB |")
    by_name = {name: sum(one.get(name, 0.0) for one in found["threads"]) for one in found["threads"] for name in one}
    for name, used in sorted(by_name.items(), key=lambda item: -item[1]):
        print(f"    {name}: {used / seconds:.3%}")


if __name__ == "__main__":
    main()
