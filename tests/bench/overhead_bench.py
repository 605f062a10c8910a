"""What recording costs a real training loop: the same steps with and without it, in turns.

    .venv/bin/python tests/bench/overhead_bench.py [--json] [--pairs N] [--steps N]
    .venv/bin/python tests/bench/overhead_bench.py --ways [--json] [--pairs N] [--steps N]

Each step records its row, three phases and twenty values. Two answers are printed: the difference that can be seen
(paired blocks, ABBA, with a 95 % interval), and what it must be by accounting (calls x measured cost / step time).
``--ways`` compares ways to record, each in a process of its own, on a GPU where there is one. README.md beside this
file says how to read them.
"""

import argparse
import contextlib
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ranklake import capture
from ranklake.capture.common.native import MODULE
from ranklake.demo.train import Shape, SmallGpt

VALUES = 20
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGE = Shape(vocabulary=8192, context=512, layers=8, heads=16, width=1024)
SHARE_AT_MOST = 0.001
WAYS = {
    "off": {}, "off again": {},
    "steps, phases, values": {"samplers": "off"},
    "as it comes": {},
    "phases on the device": {"samplers": "off"},
    "guard": {"samplers": "off"},
    "all of it": {"samplers": "on"},
}  # fmt: skip
"""Ways to record, by the settings of each; as it comes it has the samplers."""
T_95 = {10: 2.23, 20: 2.09, 30: 2.04, 60: 2.0}  # Student's t, two-sided, by degrees of freedom


class Loop:
    """A small GPT being trained, a larger one on a GPU; `steps` is the loop, with a run that records or does nothing.

    Parameters
    ----------
    way
        One of `WAYS`.
    """

    def __init__(self, device: str = "cpu", way: str = "") -> None:
        if device == "cpu":
            torch.set_num_threads(1)
        torch.manual_seed(7)
        shape, self.batch = (LARGE, 32) if device == "cuda" else (Shape(), 8)
        self.model = SmallGpt(shape).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(shape.vocabulary, (self.batch, shape.context + 1), device=device)
        self.device, self.is_guarded = device, way in {"guard", "all of it"}
        self.is_device_timed = way in {"phases on the device", "all of it"}
        self.guard: Any = None
        self.done = 0

    def compute(self, run: capture.Run) -> float:
        """Train on one batch and return the loss."""
        on_device = self.is_device_timed
        autocast = torch.autocast("cuda", torch.bfloat16, enabled=self.device == "cuda")
        with run.phase("forward", on_device=on_device), autocast:
            loss = self.model(self.tokens[:, :-1], self.tokens[:, 1:])
        with run.phase("backward", on_device=on_device):
            loss.backward()
        with run.phase("optimizer", on_device=on_device):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()

    def steps(self, run: capture.Run, count: int) -> float:
        """Return the seconds that a step takes."""
        if self.is_guarded and self.guard is None:
            self.guard = capture.guard(run)
        began = time.perf_counter()
        for _ in range(count):
            self.done += 1
            with run.step(self.done, tokens=self.tokens.numel()):
                loss = self.compute(run)
                if self.guard is not None:
                    self.guard.check(self.done, loss=loss)
                run.log({f"bench/value_{n}": loss for n in range(VALUES)})
        return (time.perf_counter() - began) / count


def cost_ns(run: capture.Run, rounds: int = 9, calls: int = 500) -> float:
    """Return what a step's calls take when nothing happens in between: the median over rounds, an empty loop's off."""
    nothing = contextlib.nullcontext()
    took, empty = [], []
    for turn in range(rounds):
        began = time.perf_counter_ns()
        for n in range(calls):
            with run.step(10**9 + turn * calls + n, tokens=512):
                for phase in ("forward", "backward", "optimizer"):
                    with run.phase(phase):
                        pass
                run.log({f"bench/value_{m}": 0.25 for m in range(VALUES)})
        took.append((time.perf_counter_ns() - began) / calls)
        began = time.perf_counter_ns()
        for _ in range(calls):
            with nothing:
                for _ in range(3):
                    with nothing:
                        pass
                {f"bench/value_{m}": 0.25 for m in range(VALUES)}
        empty.append((time.perf_counter_ns() - began) / calls)
    return statistics.median(took) - statistics.median(empty)


def interval(differences: list[float]) -> tuple[float, float, float]:
    """Return mean and 95 % interval of paired differences (Student's t)."""
    mean, freedom = statistics.fmean(differences), len(differences) - 1
    t = next((value for at, value in sorted(T_95.items(), reverse=True) if at <= freedom), 3.0)
    half = t * statistics.stdev(differences) / len(differences) ** 0.5
    return mean, mean - half, mean + half


def bench(pairs: int, steps: int, folder: Path) -> dict[str, object]:
    """Measure both answers."""
    loop = Loop()
    on = capture.start(job="bench", run="overhead", spool=folder / "spool", local_dir=folder / "local", rank=0)
    off = capture.start(enabled=False)
    loop.steps(off, steps)
    loop.steps(on, steps)
    seen, control, plain = [], [], []
    for turn in range(pairs):
        order = (on, off, off, on) if turn % 2 == 0 else (off, on, on, off)
        times: dict[capture.Run, list[float]] = {on: [], off: []}
        for run in order:
            times[run].append(loop.steps(run, steps))
        base = statistics.fmean(times[off])
        plain.append(base)
        seen.append((statistics.fmean(times[on]) - base) / base)
        control.append((times[off][0] - times[off][1]) / base)
    step_s = statistics.median(plain)
    cost = cost_ns(on)
    on.close(timeout_s=60)
    mean, low, high = interval(seen)
    _, control_low, control_high = interval(control)
    share = cost / 1e9 / step_s
    return {
        "hot_path": "C" if MODULE is not None else "Python",
        "pairs": pairs,
        "step_ms": step_s * 1e3,
        "seen": {"mean": mean, "low": low, "high": high, "distinguishable": not low <= 0.0 <= high},
        "control": {"low": control_low, "high": control_high},
        "accounted": {"ns_a_step": cost, "share": share, "met": share < SHARE_AT_MOST},
        "gaps": on.gaps(),
    }


class Way:
    """A process that trains, and records in one way; stopped with all of its threads unless it is asked."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        command = [sys.executable, __file__, "--way", name, "--folder", str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self) -> float:
        """Wait for its next answer, and stop it. Raises `RuntimeError` if it ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: ended without an answer")
        self.process.send_signal(signal.SIGSTOP)
        return float(line)

    def ask(self, steps: int) -> float:
        """Let it train; return the seconds that a step took."""
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        """Let it close its run."""
        self.process.send_signal(signal.SIGCONT)
        self.process.communicate(timeout=90)


def train_in_a_way(name: str, folder: Path) -> None:
    """Print the seconds that a step takes, of as many steps as each line of standard input says."""
    loop = Loop(DEVICE, name)
    place = {"spool": folder / "spool", "local_dir": folder / "local"}
    enabled = not name.startswith("off")
    run = capture.start(run=f"way-{os.getpid()}", enabled=enabled, rank=0, world_size=1, **place, **WAYS[name])
    print(loop.steps(run, 3), flush=True)
    for line in sys.stdin:
        print(loop.steps(run, int(line)), flush=True)
    run.close(timeout_s=60)


def bench_ways(pairs: int, steps: int, folder: Path) -> dict[str, object]:
    """Measure each way to record against not recording, in so many rounds with an order of their own."""
    ways = {name: Way(name, folder) for name in WAYS}
    draw, plain = random.Random(7), []
    shares: dict[str, list[float]] = {name: [] for name in WAYS}
    try:
        for way in ways.values():
            way.answer()
        for turn in range(pairs + 1):
            took = {name: ways[name].ask(steps) for name in draw.sample(list(ways), len(ways))}
            base = (took["off"] + took["off again"]) / 2
            if turn:  # the first round warms up
                plain.append(base)
                for name, times in shares.items():
                    times.append((took[name] - base) / base)
    finally:
        for way in ways.values():
            way.end()
    seen = {name: dict(zip(("mean", "low", "high"), interval(values), strict=True)) for name, values in shares.items()}
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    return {"device": device, "pairs": pairs, "step_ms": statistics.median(plain) * 1e3, "seen": seen}


def print_ways(found: dict[str, Any]) -> None:
    """Print a line for each way."""
    print(f"{found['device']}, a training step of {found['step_ms']:.1f} ms, {found['pairs']} rounds")
    for name, seen in found["seen"].items():
        print(f"  {name:24} {seen['mean']:+.3%} (95 %: {seen['low']:+.3%} to {seen['high']:+.3%})")


def main() -> int:
    """Run the bench; exit 1 if a row was not recorded. A slow machine is no failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20, help="blocks of on, off, off, on")
    parser.add_argument("--steps", type=int, default=15, help="training steps in a block")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--ways", action="store_true", help="compare ways to record, on a GPU where there is one")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.way:
        train_in_a_way(options.way, options.folder)
        return 0
    with tempfile.TemporaryDirectory(prefix="overhead-bench-") as folder:
        measure = bench_ways if options.ways else bench
        found = measure(options.pairs, options.steps, Path(folder))
    if options.json:
        print(json.dumps(found))
    elif options.ways:
        print_ways(found)
    else:
        seen, control, accounted = found["seen"], found["control"], found["accounted"]
        path = found["hot_path"]
        print(f"training step of {found['step_ms']:.1f} ms, {VALUES} values, 3 phases, hot path in {path}")
        print(f"  seen       {seen['mean']:+.3%} (95 %: {seen['low']:+.3%} to {seen['high']:+.3%}): "
              f"{'DISTINGUISHABLE from' if seen['distinguishable'] else 'not distinguishable from'} noise")  # fmt: skip
        print(f"  control    off against off: {control['low']:+.3%} to {control['high']:+.3%}")
        print(f"  accounted  {accounted['ns_a_step']:,.0f} ns a step = {accounted['share']:.4%} of it "
              f"(target: under {SHARE_AT_MOST:.1%}: {'met' if accounted['met'] else 'not met'})")  # fmt: skip
    return 1 if found.get("gaps") else 0


if __name__ == "__main__":
    sys.exit(main())
