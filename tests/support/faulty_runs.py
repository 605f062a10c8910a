"""Runs made by hand as rows of step_rollup: sound ones with the noise that runs have, and faults planted in them."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
from rollup_inputs import NOON

from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.load import contract

SCHEDULES = ("cosine", "linear", "constant", "step", "wsd")


def learning_rates(kind, steps, peak=3e-4):
    """Return a schedule with a warm-up of 5 %."""
    n = np.arange(steps)
    done = n / steps
    decay = {
        "cosine": 0.1 + 0.45 * (1 + np.cos(np.pi * done)),
        "linear": 1 - done,
        "constant": np.ones(steps),
        "step": 0.1 ** np.floor(3 * done),
        "wsd": np.clip((1 - done) / 0.2, 0, 1),
    }[kind]
    return peak * decay * np.minimum(1, (n + 1) / (0.05 * steps))


def sound(seed, steps=1200, seconds=1.0):
    """Return the columns of a sound run, as arrays; its level, noise and schedule are drawn."""
    rng = np.random.default_rng(seed)
    n = np.arange(steps)
    floor, fall = rng.uniform(0.5, 3), rng.uniform(2, 8)
    loss = floor + fall / (1 + n / rng.uniform(5, 80)) ** rng.uniform(0.4, 0.9)
    loss *= np.exp(rng.normal(0, rng.uniform(0.005, 0.06), steps))
    norm = rng.uniform(0.2, 2) * (1 + 3 / (1 + n / 20)) * np.exp(rng.normal(0, rng.uniform(0.1, 0.4), steps))
    time = seconds * (1 + 0.02 * rng.standard_normal(steps) + 0.03 * rng.exponential(1, steps))
    time[rng.random(steps) < 0.005] *= rng.uniform(1.5, 4)  # a garbage collection, a slow file
    memory = np.round(rng.uniform(10, 60) * 2**30 * (1 + 0.002 * rng.standard_normal(steps)))
    return {
        "step": n, "attempt": np.zeros(steps, int), "mean_loss": loss, "loss_flag": np.full(steps, None),
        "max_grad_norm": norm, "lr": learning_rates(SCHEDULES[seed % len(SCHEDULES)], steps),
        "median_step_time_s": time, "mean_step_time_s": time.copy(),
        "mean_data_time_s": rng.uniform(0.005, 0.08) * time * np.exp(rng.normal(0, 0.3, steps)),
        "mean_collective_time_s": rng.uniform(0.05, 0.25) * time * np.exp(rng.normal(0, 0.1, steps)),
        "max_memory_allocated_bytes": memory, "max_memory_reserved_bytes": memory + 2**30,
        "ranks": np.full(steps, 8), "non_finite_ranks": np.zeros(steps, int), "pause_s": np.zeros(steps),
    }  # fmt: skip


def _loss(run, at, factor, length):
    run["mean_loss"][at : at + length] *= factor


def _grow(run, at, rate):
    n = len(run["mean_loss"]) - at
    run["mean_loss"][at:] *= 1 + rate * np.arange(n)


def _flag(run, at, length):
    run["loss_flag"][at : at + length] = "nan"
    run["mean_loss"][at : at + length] = np.nan
    run["non_finite_ranks"][at : at + length] = 8


def _times(run, name, at, length, factor):
    end = at + length
    run[name][at:end] *= factor


def _slow(run, at, length, factor):
    for name in ("median_step_time_s", "mean_step_time_s"):
        _times(run, name, at, length, factor)


def _share(run, name, at, length, share):
    run[name][at : at + length] = share * run["mean_step_time_s"][at : at + length]


def _leak(run, at, each):
    run["max_memory_allocated_bytes"][at:] += each * np.arange(len(run["step"]) - at)


def _stall(run, at, seconds):
    run["max_data_time_s"] = 1.1 * run["mean_data_time_s"]
    run["max_data_time_s"][at] = seconds
    for name in ("median_step_time_s", "mean_step_time_s"):
        run[name][at] += seconds


def _set(run, name, at, length, value):
    run[name][at : at + length] = value


END = 10**9
FAULTS = {
    "loss_spike": [lambda run, at, f=f, n=n: _loss(run, at, f, n)
                   for f, n in ((4.5, 1), (3, 3), (10, 10), (2.2, 5), (6, 20))],
    "divergence": [lambda run, at: _loss(run, at, 4.5, END), lambda run, at: _grow(run, at, 0.005),
                   lambda run, at: _grow(run, at, 0.05), lambda run, at: _loss(run, at, 1.8, END),
                   lambda run, at: _loss(run, at, 3, 200)],
    "non_finite": [lambda run, at, n=n: _flag(run, at, n) for n in (1, 3, 20, 100, END)],
    "gradient_spike": [lambda run, at, v=v, n=n: _set(run, "max_grad_norm", at, n, v)
                       for v, n in ((500, 1), (100, 3), (1e5, 1), (60, 10), (2000, 2))],
    "zero_gradients": [lambda run, at, n=n: _set(run, "max_grad_norm", at, n, 0.0) for n in (25, 50, 100, 200, END)],
    "learning_rate": [lambda run, at, n=n: _set(run, "lr", at, n, run["lr"][at]) for n in (60, 100, 200, 300, 400)],
    "throughput_drop": [lambda run, at, f=f, n=n: _slow(run, at, n, f)
                        for f, n in ((2, END), (1.3, END), (1.25, 200), (5, 60), (1.5, 100))],
    "collective_share": [lambda run, at, s=s, n=n: _share(run, "mean_collective_time_s", at, n, s)
                         for s, n in ((0.7, END), (0.5, END), (0.6, 100), (0.8, 300), (0.55, 200))],
    "loader_share": [lambda run, at, s=s, n=n: _share(run, "mean_data_time_s", at, n, s)
                     for s, n in ((0.5, END), (0.4, 100), (0.6, 60), (0.8, 200), (0.35, END))],
    "data_stall": [lambda run, at, s=s: _stall(run, at, s) for s in (8, 15, 30, 60, 200)],
    "memory_growth": [lambda run, at, e=e: _leak(run, at, e) for e in (2**25, 2**26, 2**24, 2**27, 2**28)],
    "rank_silence": [lambda run, at, v=v, n=n: _set(run, "ranks", at, n, v)
                     for v, n in ((7, END), (4, 100), (6, 30), (1, END), (7, 50))],
    "stall": [lambda run, at, s=s: _set(run, "pause_s", at, 1, s) for s in (400, 900, 1800, 3600, 7200)],
}  # fmt: skip
"""Five faults of each detector over steps, each a function that puts it into a run from a step on."""


def planted(name, number):
    """Return a run with a fault, and the step at which that begins."""
    seed = 1000 + 10 * sorted(FAULTS).index(name) + number
    run = sound(seed - seed % 5 if name == "learning_rate" else seed)  # a rate that decays can be stuck
    at = int(np.random.default_rng(seed).integers(400, 700))
    FAULTS[name][number](run, at)
    return run, at


def table(runs, start=NOON):
    """Return runs, by name, as a table of step_rollup."""
    parts = []
    schema = arrow_schema(contract("step_rollup"))
    for name, run in runs.items():
        count = len(run["step"])
        columns = {key: value for key, value in run.items() if key != "pause_s"}
        columns.setdefault("max_data_time_s", 1.1 * columns["mean_data_time_s"])
        elapsed = np.cumsum(run["mean_step_time_s"] + run["pause_s"]) - run["mean_step_time_s"]
        begin = int(datetime.timestamp(start.astimezone(UTC)) * 1e6)
        ts = pa.array(begin + (1e6 * elapsed).astype(np.int64)).cast(pa.timestamp("us", tz="UTC"))
        nought = {
            each.name: pa.array(np.zeros(count, np.int64)).cast(each.type)
            for each in schema
            if not each.nullable and each.name not in {"run", "ts", "lead_ts", "date", *columns}
        }
        arrays = {
            key: pa.array(value.tolist() if value.dtype == object else value, from_pandas=True)
            for key, value in columns.items()
        }
        for key, array in arrays.items():
            kind = schema.field(key).type
            arrays[key] = array.cast(kind, safe=False)
        names = pa.array([name] * count)
        parts.append(conform(
            pa.table({**nought, **arrays, "run": names, "ts": ts, "lead_ts": ts, "date": ts.cast(pa.date32())}),
            contract("step_rollup"),
        ))  # fmt: skip
    return pa.concat_tables(parts)


def day_of(run):
    """Return how long a run took."""
    return timedelta(seconds=float(np.sum(run["mean_step_time_s"] + run["pause_s"])))
