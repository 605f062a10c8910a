"""A lake of a sweep: runs whose settings make their loss, of which some end early."""

import json
from datetime import timedelta

import numpy as np
from rollup_inputs import NOON, append, told

from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake

RATES = (0.1, 0.01, 0.001)
SEEDS = range(4)
STEPS = 40


def name_of(rate, seed):
    """Return the name of a run."""
    return f"sweep-{rate}-{seed}"


def losses(rate, seed):
    """Return the loss of each step; the last seed ends half way."""
    count = STEPS // 2 if seed == max(SEEDS) else STEPS
    noise = np.random.default_rng([seed, int(rate * 1000)]).normal(scale=0.05, size=count)
    return 1 + rate * 10 + noise + 1 / (1 + np.arange(count))


def sweep_lake(folder):
    """Return the lake: twelve runs, tagged ``sweep=lr``, with samples of a GPU of the first."""
    lake = Lake.create(str(folder / "lake"))
    runs = [(rate, seed) for rate in RATES for seed in SEEDS]
    told(lake, "runs", [
        {"run": name_of(rate, seed), "incarnation": place, "ts": NOON + timedelta(minutes=place), "rank": 0,
         "attempt": 0, "world_size": 1, "job": "sweep",
         "config": json.dumps({"optimizer": {"lr": rate}, "seed": seed, "layers": 2, "own": place * (seed == 0)}),
         "labels": json.dumps({"shape": "small" if seed % 2 else "large"})}
        for place, (rate, seed) in enumerate(runs)
    ])  # fmt: skip
    told(lake, "steps", [
        {"run": name_of(rate, seed), "incarnation": place, "ts": NOON + timedelta(minutes=place, seconds=step),
         "rank": 0, "attempt": 0, "step": step, "loss": float(loss), "step_time_s": 0.5 + rate, "tokens": 10}
        for place, (rate, seed) in enumerate(runs)
        for step, loss in enumerate(losses(rate, seed))
    ])  # fmt: skip
    append(lake, "annotations", [
        {"run": name_of(rate, seed), "ts": NOON, "incarnation": 1, "kind": "tag", "key": "sweep", "value": "lr"}
        for rate, seed in runs
    ])  # fmt: skip
    told(lake, "gpu_samples", [
        {"run": "agent", "incarnation": 99, "ts": NOON + timedelta(seconds=second), "holder_run": name_of(0.1, 0),
         "device_uuid": f"GPU-{device}", "power_watts": 300.0 + 100 * device, "gpu_utilization_ratio": 0.9}
        for second in range(30) for device in range(2)
    ])  # fmt: skip
    told(lake, "host_samples", [
        {"run": name_of(0.1, 0), "incarnation": 98, "ts": NOON + timedelta(seconds=second), "subject": subject,
         "cpu_utilization_ratio": ratio}
        for second in range(30) for subject, ratio in (("host", 0.25), ("process", 0.75))
    ])  # fmt: skip
    run_rollups(lake)
    return lake
