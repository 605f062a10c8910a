"""A lake recorded with eight faults, from its rows to the on-call page: each is found, and stands there."""

from datetime import timedelta
from functools import partial

import numpy as np
import pytest
from rollup_inputs import NOON, append
from sampled import gpu_samples, host_samples

from ranklake.insight.overview.oncall import on_call
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake

STEPS = 400
SECOND = timedelta(seconds=1)
UNTIL = NOON + timedelta(minutes=30)
RUNS = ("jump", "spike", "zeros", "halved", "diverged", "waits", "killed", "idle", "sound")


def usual(run, number, step):
    """Return what a step of a sound run has."""
    noise = np.random.default_rng([number, step]).normal(0, 0.01)
    return {
        "run": run, "attempt": 0, "rank": 0, "incarnation": 100 + number, "step": step, "tokens": 1000,
        "ts": NOON + timedelta(seconds=step), "step_time_s": 0.9 + noise / 10, "loss": 2.0 + noise,
        "grad_norm": 1.0 + noise, "lr": 1e-3,
    }  # fmt: skip


FAULTS = {
    "jump": lambda step: {"loss": 9.0} if 200 <= step < 204 else {},
    "spike": lambda step: {"grad_norm": 500.0} if step == 200 else {},
    "zeros": lambda step: {"grad_norm": 0.0} if 200 <= step < 300 else {},
    "halved": lambda step: {"step_time_s": 1.8, "ts": NOON + timedelta(seconds=2 * step - 200)} if step >= 200 else {},
    "diverged": lambda step: {"loss": None, "non_finite": "loss:nan"} if step >= 300 else {},
}


@pytest.fixture(scope="module")
def needs(tmp_path_factory):
    """Give what the on-call page of that lake says needs a look."""
    lake = Lake.create(str(tmp_path_factory.mktemp("planted") / "lake"))
    numbered = list(enumerate(RUNS))
    append(lake, "runs", [
        {"run": run, "incarnation": 100 + number, "ts": NOON, "world_size": 1, "device_count": 1, "job": run,
         "device_name": "NVIDIA H100 80GB HBM3"} for number, run in numbered
    ])  # fmt: skip
    append(lake, "steps", [
        {**usual(run, number, step), **FAULTS.get(run, lambda _: {})(step)}
        for number, run in numbered for step in range(STEPS)
    ])  # fmt: skip
    append(lake, "events", [
        {"run": run, "incarnation": 100 + number, "event": event, "severity": "info", "ts": NOON + at * SECOND}
        for number, run in numbered for event, at in (("run_start", 0), ("run_end", 700))
    ])  # fmt: skip
    host = partial(host_samples, 60)
    append(lake, "host_samples", [
        *({**row, "holder_run": "waits", "holder_attempt": 0, "cpu_iowait_ratio": 0.6} for row in host(host="n1")),
        *({**row, "holder_run": "killed", "holder_attempt": 0, "oom_kill_count": 2 if place > 30 else 1,
           "incarnation": 901} for place, row in enumerate(host(host="n2"))),
    ])  # fmt: skip
    append(lake, "gpu_samples", [
        {**row, "holder_run": "idle", "holder_attempt": 0, "holder_rank": 0, "sm_active_ratio": 0.4,
         "gpu_utilization_ratio": 0.9} for row in gpu_samples(60, every_s=10, device="GPU-7", start=NOON)
    ])  # fmt: skip
    append(lake, "ingest_plans", [{"plan": 1, "kind": "ingest", "created_ts": UNTIL, "committed_ts": UNTIL,
                                   "rows_stored": 10, "rows_rejected": 0, "date": UNTIL.date()}])  # fmt: skip
    run_rollups(lake)
    return on_call(lake).needs


@pytest.mark.parametrize(("run", "cause"), [
    ("jump", "made the loss jump"), ("spike", "gradients grew suddenly"), ("zeros", "nothing is learnt"),
    ("halved", "the pace changed"), ("diverged", "NaN or infinite values"), ("waits", "a file system or object store"),
    ("killed", "memory was used up"), ("idle", "devices wait while the run steps"),
])  # fmt: skip
def test_each_fault_stands_there_with_its_likely_cause(needs, run, cause):
    """As an incident of the run that it was planted in."""
    assert [need for need in needs if need.run == run and need.incident and cause.casefold() in need.detail.casefold()]


def test_what_matters_most_comes_first(needs):
    """NaN to the end, what stops or costs a run, then what may pass; nothing was planted in the sound run."""
    incidents = [need for need in needs if need.incident]
    assert (needs[0].run, needs[0].title.split(" (")[0]) == (
        "diverged", "The loss is NaN from step 300 on, in 100 steps",
    )  # fmt: skip
    states = {"failing": {"diverged", "halved", "zeros", "killed"}, "warning": {"waits", "idle", "jump", "spike"}}
    assert [need.state for need in incidents] == ["failing"] * 4 + ["warning"] * 4
    for state, runs in states.items():
        assert {need.run for need in incidents if need.state == state} == runs
    assert not [need.title for need in needs if need.run == "sound"]
