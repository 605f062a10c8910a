"""Whether a rank that is slow at times is found in a real model's own noise, and nobody else is named.

    python tests/bench/straggler_bench.py [--steps N] [--slowed-by 0.1] [--share 0.01] [--clean 100] [--times FILE]

The demo's model trains on one core, alone, and each step is timed. Runs of 8 simulated ranks are drawn from these times
in stretches of 20 steps, as measured, so that what lasts a while still does; in some of them one rank takes longer in a
share of its steps, drawn by chance. `rank_health` then says who is a straggler. Prints how noisy the steps were, in how
many of the slowed runs the rank was found, and how often anybody else was named; 1 if a rank was missed or a name was
false.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from sync_runs import health, synchronous

from ranklake.demo.train import PEAK_LEARNING_RATE, Shape, SmallGpt, batches, change, corpus

RANKS = 8
STRETCH = 20
WARM_UP = 50
SLOWED_RUNS = 16


def measured(steps: int) -> np.ndarray:
    """Return seconds of wall time of steps of the demo's model, on one core that this process stays on."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    torch.manual_seed(7)
    shape = Shape()
    model = SmallGpt(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE)
    source = batches(corpus(), shape.context, 0)
    times = np.empty(WARM_UP + steps)
    for number in range(len(times)):
        begun = time.perf_counter()
        model(*next(source)).backward()
        change(model, optimizer)
        times[number] = time.perf_counter() - begun
    return times[WARM_UP:]


def drawn(rng: np.random.Generator, times: np.ndarray, steps: int) -> np.ndarray:
    """Return (steps, ranks) seconds, each rank's in stretches as they were measured."""
    stretches = -(-steps // STRETCH)
    starts = rng.integers(0, len(times) - STRETCH, (stretches, RANKS))
    places = starts[:, None, :] + np.arange(STRETCH)[None, :, None]
    return times[places].reshape(stretches * STRETCH, RANKS)[:steps]


def main() -> int:
    """Measure or read the times, draw runs, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--slowed-by", type=float, default=0.1)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--times", type=Path, help="JSON list of seconds; measured and written there if it is absent")
    asked = parser.parse_args()
    if asked.times and asked.times.exists():
        times = np.array(json.loads(asked.times.read_text()))
    else:
        times = measured(asked.steps)
        if asked.times:
            asked.times.write_text(json.dumps(times.tolist()))
    middle = float(np.median(times))
    spread = 1.4826 * float(np.median(np.abs(times - middle))) / middle
    late = float(np.mean(times > 1.1 * middle))
    print(f"{len(times)} steps of {middle * 1e3:.1f} ms, robust deviation {spread:.2%}, {late:.2%} beyond 10 %")
    rng = np.random.default_rng(1)
    runs, slow = [], {}
    for number in range(SLOWED_RUNS):
        compute = drawn(rng, times, asked.steps)
        slow[f"slow-{number}"] = number % RANKS
        compute[rng.random(asked.steps) < asked.share, number % RANKS] *= 1 + asked.slowed_by
        runs.append(synchronous(f"slow-{number}", compute))
    named = {key for key, row in health(runs).items() if row["is_straggler"]}
    found = len(named & set(slow.items()))
    false = len(named - set(slow.items()))
    print(f"slowed by {asked.slowed_by:.0%} in {asked.share:.1%} of the steps: found in {found} of {SLOWED_RUNS} runs")
    for begin in range(0, asked.clean, SLOWED_RUNS):
        some = range(begin, min(begin + SLOWED_RUNS, asked.clean))
        told = health([synchronous(f"clean-{number}", drawn(rng, times, asked.steps)) for number in some])
        false += sum(bool(row["is_straggler"]) for row in told.values())
    print(f"false names: {false}, in these and in {asked.clean} clean runs of {RANKS} ranks")
    return 0 if found == SLOWED_RUNS and not false else 1


if __name__ == "__main__":
    sys.exit(main())
