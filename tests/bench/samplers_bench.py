"""What the samplers and the agent cost: CPU time of a tick, of the agent with all it starts, and their memory.

    .venv/bin/python tests/bench/samplers_bench.py [--seconds N] [--ticks N]

All times are CPU times, so that a busy machine disturbs them little; caches and hyperthreads it shares all the same.
NVML is played from tests/support/nvml_handmade.jsonl: what a real driver takes is not in these figures.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from nvml_player import Player

from ranklake.capture.node.agent_run import AgentRun
from ranklake.capture.node.worker import WorkerTask
from ranklake.capture.samplers.gpu import GpuSampler
from ranklake.capture.samplers.host import HostSampler
from ranklake.capture.spool.stream_files import StreamName

TAPE = Path(__file__).parents[1] / "support" / "nvml_handmade.jsonl"
RANK = """
import sys
from ranklake import capture
run = capture.start(job="bench", run="bench", rank=int(sys.argv[3]), world_size=2, spool=sys.argv[1],
                    local_dir=sys.argv[2], seal_every_s=30, samplers="off")
print(flush=True)
for number in range(10**9):
    with run.step(number):
        run.log({"a": 1.0, "b": 2.0})
        if run._launch and __import__("select").select([sys.stdin], [], [], 0.1)[0]:
            break
run.close()
"""
SECOND = 10**9


def tick_ms(make, ticks):
    """Return the CPU time of a tick of samplers, in ms, rows written and dear ticks included."""
    with tempfile.TemporaryDirectory() as folder:
        node = AgentRun(Path(folder) / "local", f"{folder}/spool")
        sampler = make(Path(folder))
        sampling = node.sample_writer([_Clocked(sampler)])
        sampling.tick()
        began = time.process_time()
        for _ in range(ticks):
            sampling.tick()
        spent = time.process_time() - began
        sampling.close()
        node.close()
    return spent / ticks * 1e3


class _Clocked:
    """A sampler that sees a second pass from tick to tick."""

    def __init__(self, sampler):
        self._sampler, self._now_ns = sampler, SECOND

    def sample(self, now_ns):
        del now_ns
        self._now_ns += SECOND
        return self._sampler.sample(self._now_ns)

    def close(self):
        self._sampler.close()


def agent(seconds):
    """Return CPU seconds of the agent and of its workers, and the agent's peak memory in MB, over some seconds."""
    with tempfile.TemporaryDirectory() as folder:
        local, spool = f"{folder}/local", f"{folder}/spool"
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, spool, local, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for rank in range(2)
        ]
        for rank in ranks:
            rank.stdout.readline()
        command = [sys.executable, "-m", "ranklake", "agent", "--local-dir", local, "--spool", spool]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(5)  # what starting costs is paid once
        before = _spent(process.pid)
        time.sleep(seconds)
        after = _spent(process.pid)
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        for rank in ranks:
            rank.communicate(b"\n")
        process.terminate()
        process.wait()
        return after[0] - before[0], after[1] - before[1], peak / 1024


def _spent(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    own, errands = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return own / os.sysconf("SC_CLK_TCK"), errands / os.sysconf("SC_CLK_TCK")


def worker_task():
    """Return CPU seconds and peak memory in MB of a worker process that finds nothing, and of one that seals."""
    with tempfile.TemporaryDirectory() as folder:
        local, spool = Path(folder) / "local", f"{folder}/spool"
        local.mkdir()
        found = []
        for sealing in (False, True):
            if sealing:
                AgentRun(local, spool).close()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            what = WorkerTask(str(local), spool, {}, "").to_json()
            subprocess.run(
                [sys.executable, "-m", "ranklake.capture.node.worker"],
                input=what,
                text=True,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found.append((spent, after.ru_maxrss / 1024))
        return found


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the agent is watched")
    parser.add_argument("--ticks", type=int, default=600)
    chosen = parser.parse_args()
    looking, sealing = worker_task()  # first: the peak is that of all children so far
    holders = {os.getpid(): StreamName("bench", 0, 0, 1)}
    host = tick_ms(lambda folder: HostSampler(lambda: holders, folder), chosen.ticks)
    gpus = tick_ms(lambda _: GpuSampler(Player(TAPE), lambda: holders), chosen.ticks)
    own, errands, peak = agent(chosen.seconds)
    print("| what | measured | target |\n|---|---|---|")
    print(f"| host, a tick | {host:.2f} ms: {host / 10:.2f} % of a core at 1 Hz | |")
    print(
        f"| GPUs of the tape (2, and 2 MIG), a tick, the player's own work in it | {gpus:.2f} ms: {gpus / 10:.2f} % | |"
    )
    print(f"| agent's process, samplers in it | {100 * own / chosen.seconds:.2f} % of a core | |")
    print(f"| its errands | {100 * errands / chosen.seconds:.2f} % of a core | |")
    print(f"| agent, all together | {100 * (own + errands) / chosen.seconds:.2f} % of a core | 1 % |")
    print(f"| agent's process, peak | {peak:.0f} MB | 60 MB |")
    print(f"| a worker process that seals nothing | {looking[0]:.2f} s of CPU, {looking[1]:.0f} MB while it lasts | |")
    print(f"| a worker process that seals | {sealing[0]:.2f} s of CPU, {sealing[1]:.0f} MB while it lasts | |")


if __name__ == "__main__":
    main()
