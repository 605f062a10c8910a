"""The guard finds what goes wrong in a rank's live values, and training that diverges comes back by itself."""

import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvml_player import Player
from recorded import rows

from ranklake import capture
from ranklake.capture.training.guard_watch import DeviceHeat
from ranklake.capture.training.live_detectors import Baseline, LevelDetector, SlowRankDetector, ZeroDetector

CHILD = """
import sys
import torch
from torch import distributed, nn
from ranklake import capture
rank, ranks, folder, fault = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if ranks > 1:
    store = distributed.FileStore(folder + "/store", ranks)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
target = torch.randn(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = capture.start(run="run", spool=folder + "/spool", local_dir=folder + "/local", rank=rank, world_size=ranks)
guard = capture.guard(run, divergence="roll_back", non_finite="roll_back", agree=True)
guard.protect(model, optimizer, every=20)
generator = torch.Generator().manual_seed(rank)
for n in range(400):
    x = torch.randn(64, 8, generator=generator)
    with run.step(n):
        loss = nn.functional.mse_loss(model(x), x @ target)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            distributed.all_reduce(parameter.grad, op=distributed.ReduceOp.AVG)
        decision = guard.check(n, loss=loss)
        run.log(loss=loss)
        if decision.restored_step is not None:
            print("restored", n, decision.restored_step, flush=True)
        if decision.skips:
            continue
        if n == fault:
            for group in optimizer.param_groups:
                group["lr"] = 50.0
        optimizer.step()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
print("end", loss.item(), weights.double().sum().item(), flush=True)
run.close()
"""


DISAGREEING = """
import math
import sys
from torch import distributed, nn
from ranklake import capture
rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", store=distributed.FileStore(folder + "/store", 2), rank=rank, world_size=2)
model = nn.Linear(2, 1)
run = capture.start(run="run", spool=folder + "/spool", local_dir=folder + "/local", rank=rank, world_size=2)
for case in ("both protect", "one protects"):
    guard = capture.guard(run, non_finite="roll_back", agree=True)
    if case == "both protect" or rank == 0:
        guard.protect(model, every=10)
    for n in range(30):
        loss, own_s = 1.0, None
        if rank == 1:
            loss, own_s = {12: ("no number", None), 14: (1.0, "no time")}.get(n, (loss, own_s))
        decision = guard.check(n, loss=math.nan if n == 25 else loss, own_s=own_s)
        if decision.action:
            print(case, n, decision.action.name, decision.restored_step, flush=True)
run.close()
"""


def test_ranks_do_the_same_whatever_one_of_them_gives(tmp_path):
    """A value that is no number costs no vote, and a rank that cannot go back keeps the other from it."""
    command = [sys.executable, "-c", DISAGREEING]
    started = [subprocess.Popen([*command, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True)
               for rank in range(2)]  # fmt: skip
    printed = [process.communicate(timeout=120)[0].splitlines() for process in started]
    assert printed == [["both protect 25 ROLL_BACK 20", "one protects 25 SKIP None"]] * 2


def train(folder, ranks, fault):
    """Train so many ranks; return what each printed, by line."""
    folder.mkdir()
    command = [sys.executable, "-c", CHILD]
    arguments = [[str(rank), str(ranks), str(folder), str(fault)] for rank in range(ranks)]
    started = [subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) for words in arguments]
    printed = [process.communicate(timeout=120)[0].split("\n") for process in started]
    assert [process.returncode for process in started] == [0] * ranks
    return [[line.split() for line in lines if line] for lines in printed]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_training_that_diverges_rolls_back_and_ends_as_a_clean_one(tmp_path, ranks):
    """A learning rate of 50 from one step on: every rank goes back to one step before it, and learns on."""
    (clean, *_) = train(tmp_path / "clean", ranks, fault=-1)
    broken = train(tmp_path / "broken", ranks, fault=200)
    (end,) = (line for line in clean if line[0] == "end")
    assert not any(line[0] == "restored" for line in clean)
    assert len({tuple(line) for lines in broken for line in lines if line[0] == "restored"}) >= 1
    assert len({tuple(map(tuple, lines[:-1])) for lines in broken}) == 1, "ranks differ in where they went back to"
    assert len({lines[-1][2] for lines in broken}) == 1, "parameters of ranks differ"
    for number, at, step in broken[0][:-1]:
        assert number == "restored"
        assert int(step) <= 200 < int(at)
    assert float(broken[0][-1][1]) < 2 * float(end[1]) + 1e-3
    events = [row for row in rows(tmp_path / "broken" / "spool", "events") if row["event"] == "guard"]
    assert {json.loads(row["attributes"])["finding"] for row in events} & {"divergence", "non_finite"}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 20))
def test_a_baseline_is_that_of_the_last_values(values, size):
    """Median and deviation are those of a sorted copy of the window."""
    baseline = Baseline(size)
    for value in values:
        baseline.add(value)
    window = sorted(values[-size:])
    assert len(baseline) == len(window)
    assert baseline.median == window[len(window) // 2]
    assert baseline.deviation == (window[(3 * len(window)) // 4] - window[len(window) // 4]) / 1.349


def test_a_level_is_found_once_and_a_spike_is_none():
    """Noise is no finding; 2 to 9 is a spike first and a divergence after eight steps, then the new normal."""
    rng = np.random.default_rng(0)
    detector = LevelDetector("the loss", "loss_spike", "divergence")
    losses = [*(2 + 0.05 * rng.standard_normal(300)), *(9 + 0.05 * rng.standard_normal(300))]
    findings = [item for n, loss in enumerate(losses) if (item := detector.look(n, loss)) is not None]
    assert [(item.kind, item.step, item.since) for item in findings] == [
        ("loss_spike", 300, 300),
        ("divergence", 307, 300),
    ]
    assert detector.look(900, math.nan) is None


@pytest.mark.parametrize("losses", [[], [1.0] * 500, [math.nan] * 500, [1.0, 2.0, 3.0], [0.0] * 500, [-5.0] * 500])
def test_series_that_say_nothing_give_no_finding(losses):
    """Short, constant, undefined, zero, negative."""
    detector = LevelDetector("the loss", "loss_spike", "divergence")
    assert [item for n, loss in enumerate(losses) if (item := detector.look(n, loss)) is not None] == []


def test_zero_gradients_are_found_once():
    """Twenty in a row; one that is not begins anew."""
    detector = ZeroDetector()
    norms = [0.0] * 19 + [1.0] + [0.0] * 40
    assert [(n, item.since) for n, norm in enumerate(norms) if (item := detector.look(n, norm))] == [(39, 20)]


def test_a_slow_rank_knows_it():
    """By its median over fifty steps: a burst is none."""
    detector = SlowRankDetector()
    assert all(detector.look(n, 3.0 if n % 5 == 0 else 1.0, 1.0) is None for n in range(100))
    found = [n for n in range(100, 300) if detector.look(n, 1.2, 1.0)]
    assert len(found) == 1
    assert 100 < found[0] < 160


def test_rules_decide_and_calls_are_contained(tmp_path):
    """NaN is skipped by default, a rule may ignore it, and a callback that raises stops nothing."""
    called = []

    def call(finding):
        called.append(finding.kind)
        raise RuntimeError("of the user's")

    with capture.start(run="run", spool=tmp_path / "spool", local_dir=tmp_path / "local") as run:
        guard = capture.guard(run, call=call, gradient_spike="save")
        assert guard.check(0, loss=1.0, grad_norm=1.0).action == 0
        assert guard.check(1, loss=math.nan).skips
        for n in range(2, 40):
            assert not guard.check(n, loss=1.0, grad_norm=1.0).findings
        assert guard.check(40, loss=1.0, grad_norm=500.0).saves
        deaf = capture.guard(run, non_finite="ignore")
        assert not deaf.check(41, loss=math.inf).findings
        assert guard.check(42, loss="no number") == deaf.check(42, loss=1.0)
    assert called == ["non_finite", "gradient_spike"]
    events = [json.loads(row["attributes"]) for row in rows(tmp_path / "spool", "events") if row["event"] == "guard"]
    assert [(row["finding"], row["action"]) for row in events] == [("non_finite", "skip"), ("gradient_spike", "save")]


def test_a_rule_that_is_none_is_told(tmp_path, caplog):
    """With what was meant; the guard goes by the default."""
    with capture.start(run="run", spool=tmp_path / "spool", local_dir=tmp_path / "local") as run:
        guard = capture.guard(run, divergense="skip", heat="boil")
        assert guard.check(0, loss=math.nan).skips
    assert "did you mean 'divergence'?" in caplog.text
    assert "known: ignore, roll_back, save, skip, warn" in caplog.text.lower()


def test_what_stays_undefined_is_skipped_each_time_and_reported_seldom(tmp_path):
    """A run that is NaN for good costs an event each time that its length doubled; after 100 steps it is news again."""
    called = []
    with capture.start(run="run", spool=tmp_path / "spool", local_dir=tmp_path / "local") as run:
        guard = capture.guard(run, call=lambda finding: called.append(finding.step))
        losses = [*([math.nan] * 500), *([1.0, math.nan] * 50), *([1.0] * 100), math.nan]
        skipped = [n for n, loss in enumerate(losses) if guard.check(n, loss=loss).skips]
    assert skipped == [n for n, loss in enumerate(losses) if math.isnan(loss)]
    assert called == [0, 1, 3, 7, 15, 31, 63, 127, 255, 523, 700]
    assert len([row for row in rows(tmp_path / "spool", "events") if row["event"] == "guard"]) == len(called)


def test_steps_that_begin_anew_are_judged_as_others():
    """A spike is reported although one at a higher number was."""
    detector = LevelDetector("the loss", "loss_spike", "divergence")
    losses = {**dict.fromkeys(range(1000, 1050), 1.0), 1050: 9.0, **dict.fromkeys(range(50), 1.0), 50: 9.0}
    spikes = [n for n, loss in losses.items() if detector.look(n, loss)]
    assert spikes == [1050, 50]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"divergence": ["skip"]}, "no rule divergence=['skip']"),
        ({"stall_s": 0}, "stall_s=0 must be a number of seconds above 0"),
        ({"stall_s": math.nan}, "stall_s=nan must be a number of seconds above 0"),
    ],
)
def test_settings_that_are_none_raise_nothing_into_training(tmp_path, caplog, rules, message):
    """Each is a warning; what else was asked for is done."""
    with capture.start(run="run", spool=tmp_path / "spool", local_dir=tmp_path / "local") as run:
        guard = capture.guard(run, **rules)
        assert guard.check(0, loss=math.nan).skips
    assert message in caplog.text
    assert not any(thread.name == "ranklake-guard" for thread in threading.enumerate())


@pytest.mark.parametrize("given", [{"every": 0}, {"keep": -1}, {"every": "often"}])
def test_copies_that_cannot_be_made_raise_nothing_into_training(tmp_path, caplog, given):
    """Nor does what has no state; the step of a NaN is skipped then."""
    with capture.start(run="run", spool=tmp_path / "spool", local_dir=tmp_path / "local") as run:
        guard = capture.guard(run, non_finite="roll_back")
        guard.protect(object(), **given)
        assert guard.check(0, loss=1.0).action == 0
        assert (guard.check(1, loss=math.nan).action.name, guard.check(2, loss=1.0).action.name) == ("SKIP", "IGNORE")
    assert "the guard's copies failed" in caplog.text


def test_a_loss_scale_falls_although_its_overflows_are_skipped(tmp_path):
    """The scaler is updated in skipped steps, too; where training rolls back, it goes back with the model."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(model.weight)  # drawn small, it would overflow nothing
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10)
    decisions, scales = [], []
    with capture.start(run="run", spool=tmp_path / "spool", local_dir=tmp_path / "local") as run:
        guard = capture.guard(run, divergence="roll_back")
        guard.protect(model, optimizer, scaler, every=10)
        for n in range(100):
            loss = (model(torch.full((4, 1), 8.0)) ** 2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            decision = guard.check(n, loss=1e6 if 80 <= n < 88 else 1.0, grad_norm=norm)
            if not decision.skips:
                scaler.step(optimizer)
            scaler.update()
            decisions.append(decision)
            scales.append(scaler.get_scale())
            optimizer.zero_grad()
    assert decisions[0].skips
    assert not decisions[79].skips
    (restored,) = (n for n, decision in enumerate(decisions) if decision.restored_step is not None)
    assert scales[restored] == scales[decisions[restored].restored_step - 1] < 2.0**127


def test_a_stall_is_called_while_the_loop_stands(tmp_path):
    """From the guard's own thread."""
    stalled = threading.Event()
    with capture.start(run="run", spool=tmp_path / "spool", local_dir=tmp_path / "local") as run:
        capture.guard(run, stall_s=0.2, call=lambda finding: finding.kind == "stall" and stalled.set())
        with run.step(7):
            assert stalled.wait(30)
    (event,) = (row for row in rows(tmp_path / "spool", "events") if row["event"] == "guard")
    assert event["step"] == 7
    stacks = [row["exception_stacktrace"] for row in rows(tmp_path / "spool", "logs") if row["logger"] == "stacks"]
    assert sum("stalled.wait(30)" in stack for stack in stacks) == 1


def test_heat_is_what_the_driver_says():
    """A device above its own limit, or one that slows down for its heat; not one at its power cap."""
    nvml = Player(Path(__file__).parents[1] / "support" / "nvml_handmade.jsonl")
    nvml.nvmlInit()
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
    heat = DeviceHeat(nvml, uuid)
    nvml.answer("nvmlDeviceGetCurrentClocksEventReasons", [{"handle": "h0"}], 0x4)
    assert heat.look() is None
    nvml.answer("nvmlDeviceGetCurrentClocksEventReasons", [{"handle": "h0"}], 0x40)
    assert heat.look() == (54.0, 90.0)
    with pytest.raises(LookupError):
        DeviceHeat(nvml, "GPU-none")


def test_a_check_costs_microseconds(tmp_path):
    """At most a thousandth of a step of 100 ms, in the median of many; no clock of a busy machine moves that far."""
    with capture.start(run="run", spool=tmp_path / "spool", local_dir=tmp_path / "local") as run:
        guard = capture.guard(run)
        spent = []
        for n in range(2000):
            begun = time.perf_counter_ns()
            guard.check(n, loss=1.0 + 0.001 * (n % 7), grad_norm=1.0)
            spent.append(time.perf_counter_ns() - begun)
    assert sorted(spent)[1000] < 100_000
