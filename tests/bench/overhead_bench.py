"""What recording costs a real training loop on a CPU: the same steps with and without it, in turns, in one process.

    .venv/bin/python tests/bench/overhead_bench.py [--json] [--pairs N] [--steps N]

Each step records its row, three phases and twenty values. Two answers are printed: the difference that can be seen
(paired blocks, ABBA, with a 95 % interval), and what it must be by accounting (calls x measured cost / step time).
README.md beside this file says how to read them.
"""

import argparse
import contextlib
import json
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from ranklake import capture
from ranklake.capture.common.native import MODULE
from ranklake.demo.model import Shape, SmallGpt

VALUES = 20
BATCH = 8
SHARE_AT_MOST = 0.001
T_95 = {10: 2.23, 20: 2.09, 30: 2.04, 60: 2.0}  # Student's t, two-sided, by degrees of freedom


class Loop:
    """A small GPT being trained; `steps` is the loop itself, with a run that records or one that does nothing."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(7)
        shape = Shape()
        self.model = SmallGpt(shape)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(shape.vocabulary, (BATCH, shape.context + 1))
        self.done = 0

    def compute(self, run: capture.Run) -> float:
        """Train on one batch and return the loss."""
        with run.phase("forward"):
            loss = self.model(self.tokens[:, :-1], self.tokens[:, 1:])
        with run.phase("backward"):
            loss.backward()
        with run.phase("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()

    def steps(self, run: capture.Run, count: int) -> float:
        """Return the seconds that a step takes."""
        began = time.perf_counter()
        for _ in range(count):
            self.done += 1
            with run.step(self.done, tokens=BATCH * 64):
                loss = self.compute(run)
                run.log({f"bench/value_{n}": loss for n in range(VALUES)})
        return (time.perf_counter() - began) / count


def cost_ns(run: capture.Run, rounds: int = 9, calls: int = 500) -> float:
    """Return what a step's calls take when nothing happens in between: the median over rounds, an empty loop's off."""
    nothing = contextlib.nullcontext()
    took, empty = [], []
    for turn in range(rounds):
        began = time.perf_counter_ns()
        for n in range(calls):
            with run.step(10**9 + turn * calls + n, tokens=BATCH * 64):
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


def main() -> int:
    """Run the bench; exit 1 if a row was not recorded. A slow machine is no failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20, help="blocks of on, off, off, on")
    parser.add_argument("--steps", type=int, default=15, help="training steps in a block")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="overhead-bench-") as folder:
        found = bench(options.pairs, options.steps, Path(folder))
    if options.json:
        print(json.dumps(found))
    else:
        seen, control, accounted = found["seen"], found["control"], found["accounted"]
        path = found["hot_path"]
        print(f"training step of {found['step_ms']:.1f} ms, {VALUES} values, 3 phases, hot path in {path}")
        print(f"  seen       {seen['mean']:+.3%} (95 %: {seen['low']:+.3%} to {seen['high']:+.3%}): "
              f"{'DISTINGUISHABLE from' if seen['distinguishable'] else 'not distinguishable from'} noise")  # fmt: skip
        print(f"  control    off against off: {control['low']:+.3%} to {control['high']:+.3%}")
        print(f"  accounted  {accounted['ns_a_step']:,.0f} ns a step = {accounted['share']:.4%} of it "
              f"(target: under {SHARE_AT_MOST:.1%}: {'met' if accounted['met'] else 'not met'})")  # fmt: skip
    return 1 if found["gaps"] else 0


if __name__ == "__main__":
    sys.exit(main())
