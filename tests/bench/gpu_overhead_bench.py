"""What recording costs a training loop that keeps a GPU busy: a process for each way to record, in turns.

    python tests/bench/gpu_overhead_bench.py [--json] [--rounds N] [--steps N] [--width N] [--batch N]

Each process trains the same GPT in bfloat16. One at a time runs, the others are stopped (SIGSTOP), with all of their
threads: so samplers and sealers take part in the blocks of their own process alone. In each round all take a turn, in
an order of its own; the figure is the difference from the mean of the two processes that record nothing.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from overhead_bench import VALUES, cost_ns, interval

from ranklake import capture
from ranklake.capture.common.native import MODULE
from ranklake.demo.model import Shape, SmallGpt

ARMS = {
    "off": {}, "off again": {},
    "steps, phases, values": {"samplers": "off"},
    "as it comes": {},
    "phases on the device": {"samplers": "off"},
    "guard": {"samplers": "off"},
    "all of it": {"samplers": "on"},
}  # fmt: skip
"""Ways to record, by the settings of each; `as it comes` has the samplers."""


class GpuLoop:
    """A GPT on a GPU, and one way to record its steps."""

    def __init__(self, arm: str, folder: Path, width: int, batch: int) -> None:
        torch.manual_seed(7)
        torch.set_float32_matmul_precision("high")
        shape = Shape(vocabulary=8192, context=512, layers=8, heads=width // 64, width=width)
        self.model = SmallGpt(shape).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(shape.vocabulary, (batch, shape.context + 1), device="cuda")
        self.batch = batch * shape.context
        self.device_time = arm in {"phases on the device", "all of it"}
        self.run = capture.start(
            job="bench", run=arm.replace(" ", "-").replace(",", ""), spool=folder / "spool", local_dir=folder / "local",
            enabled=not arm.startswith("off"), announce="off", **ARMS[arm],
        )  # fmt: skip
        self.guard = capture.guard(self.run) if arm in {"guard", "all of it"} else None
        self.done = 0

    def steps(self, count: int) -> float:
        """Return the seconds that a step takes, with the device's work of it."""
        run, device = self.run, self.device_time
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            self.done += 1
            with run.step(self.done, tokens=self.batch):
                with run.phase("forward", on_device=device), torch.autocast("cuda", torch.bfloat16):
                    loss = self.model(self.tokens[:, :-1], self.tokens[:, 1:])
                with run.phase("backward", on_device=device):
                    loss.backward()
                with run.phase("optimizer", on_device=device):
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                plain = loss.item()  # all arms wait, since the guard does
                if self.guard is not None:
                    self.guard.check(self.done, loss=plain)
                run.log({f"bench/value_{n}": plain for n in range(VALUES)})
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count


def child(arm: str, folder: Path, width: int, batch: int) -> None:
    """Answer each number of steps on standard input with the seconds that one took, and ``cost`` with the calls'."""
    loop = GpuLoop(arm, folder, width, batch)
    loop.steps(20)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "cost":
            print(cost_ns(loop.run), flush=True)
        else:
            print(loop.steps(int(line)), flush=True)
    loop.run.close(timeout_s=60)


class Arm:
    """A process that trains in one way; stopped unless it is asked."""

    def __init__(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--arm", name, "--folder", str(folder)]
        command += ["--width", str(options.width), "--batch", str(options.batch)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = name

    def wait(self) -> None:
        """Wait until it has warmed up, and stop it."""
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{self.name}: did not begin")
        os.kill(self.process.pid, signal.SIGSTOP)

    def ask(self, line: str) -> float:
        """Let it go on, and return its answer."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answer = float(process.stdout.readline())
        os.kill(process.pid, signal.SIGSTOP)
        return answer

    def end(self) -> None:
        """Let it close its run."""
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.communicate(timeout=90)


def bench(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure all ways to record."""
    arms = {name: Arm(name, folder, options) for name in ARMS}
    draw = random.Random(7)
    shares: dict[str, list[float]] = {name: [] for name in ARMS}
    plain = []
    try:
        for arm in arms.values():
            arm.wait()
        for arm in arms.values():
            arm.ask(str(options.steps))
        for _ in range(options.rounds):
            order = draw.sample(list(arms), len(arms))
            took = {name: arms[name].ask(str(options.steps)) for name in order}
            base = (took["off"] + took["off again"]) / 2
            plain.append(base)
            for name in arms:
                shares[name].append((took[name] - base) / base)
        cost = arms["steps, phases, values"].ask("cost")
    finally:
        for arm in arms.values():
            arm.end()
    step_s = statistics.median(plain)
    return {
        "device": torch.cuda.get_device_name(),
        "hot_path": "C" if MODULE is not None else "Python",
        "rounds": options.rounds, "steps": options.steps, "step_ms": step_s * 1e3,
        "arms": {
            name: dict(zip(("mean", "low", "high"), interval(values), strict=True), median=statistics.median(values))
            for name, values in shares.items()
        },
        "accounted": {"ns_a_step": cost, "share": cost / 1e9 / step_s},
    }  # fmt: skip


def main() -> None:
    """Read the command line; run the bench, or one of its processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=25, help="training steps in a block")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        child(options.arm, options.folder, options.width, options.batch)
        return
    if not torch.cuda.is_available():
        parser.exit(1, "no CUDA device is to be seen here; for a CPU there is overhead_bench.py\n")
    with tempfile.TemporaryDirectory(prefix="overhead-bench-") as folder:
        found = bench(options, Path(folder))
    if options.json:
        print(json.dumps(found))
        return
    print(
        f"{found['device']}, step of {found['step_ms']:.1f} ms, {VALUES} values, 3 phases, path in {found['hot_path']}"
    )
    for name, seen in found["arms"].items():
        print(f"  {name:24} {seen['mean']:+.3%} (95 %: {seen['low']:+.3%} to {seen['high']:+.3%})")
    accounted = found["accounted"]
    print(f"  {'accounted':24} {accounted['ns_a_step']:,.0f} ns a step = {accounted['share']:.4%}")


if __name__ == "__main__":
    main()
