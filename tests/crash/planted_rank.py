"""A rank that trains the demo's model case by case, each a run of its own with a fault planted in it, or sound.

    torchrun … planted_rank.py PLAN      PLAN: JSON with "cases", "spool", "local" and "out"; of cases that are trained
                                         side by side, a step of each in turn, "every_s", too

All ranks of the group train each case, record it with the real capture library, and end it before the next one. A fault
is done, not written down: batches are spoilt, gradients scaled, ranks sleep, files are changed. What a rank knows of it
(when the first bad step began) goes to ``out``, a line of JSON per case and rank.
"""

import hashlib
import json
import os
import socket
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from fake_hardware import Gpu, Host
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ranklake import capture
from ranklake.capture.samplers import inprocess
from ranklake.capture.samplers.gpu import GpuSampler
from ranklake.capture.samplers.host import HostSampler
from ranklake.demo.train import Shape, SmallGpt, change, corpus

CONTEXT = 16
LEARNING_RATE = 3e-3
SAVES = 5
"""Steps between two checkpoints of a case that saves."""


@dataclass
class Case:
    """What is planted, as the plan has it; `at` and `length` are steps, `rank` who does it, None for all.

    `work_s` stands for what a device computes; with `hardware` each rank samples a GPU and host of its own.
    """

    name: str
    kind: str = "none"
    steps: int = 260
    at: int = 150
    length: int = 10**9
    rank: int | None = None
    value: float = 0.0
    seed: int = 0
    width: int = 32
    batch: int = 8
    attempt: int = 0
    first: int = 0
    schedule: str = "constant"
    work_s: float = 0.0
    hardware: bool = False
    settings: dict = field(default_factory=dict)

    def on(self, step, rank):
        """Whether the fault is on."""
        return self.at <= step < self.at + self.length and self.rank in {None, rank}


class Trainer:
    """One case on one rank."""

    def __init__(self, case, rank, text, folder):
        self.case, self.rank, self.text, self.folder = case, rank, text, folder
        self.times = []
        self.begun = None
        self.parts = []
        if case.hardware:
            uuid = f"GPU-{case.seed:08d}-0000-4000-8000-{rank:012d}"
            own = case.rank in {None, rank}
            self.parts = [Gpu(uuid, case.kind if own else ""), Host(folder / f"root-{rank}", case.kind if own else "")]

    @property
    def pace(self):
        """Seconds that a step takes without the fault."""
        return median(self.times[-100:]) if self.times else 0.01

    def batches(self):
        """Yield batches at random places; late ones where the input is what fails."""
        case = self.case
        generator = torch.Generator().manual_seed(1000 * case.seed + self.rank)
        for step in range(case.first, case.steps):
            starts = torch.randint(len(self.text) - CONTEXT - 1, (case.batch,), generator=generator)
            window = torch.stack([self.text[start : start + CONTEXT + 1] for start in starts.tolist()])
            if case.on(step, self.rank):
                self.note()
                if case.kind == "data_stall":
                    time.sleep(case.value)
                if case.kind == "loader_share":
                    time.sleep(case.value * self.pace)
                if case.kind == "loss_spike":
                    window[:, 1:] = torch.randint(128, 256, window[:, 1:].shape, generator=generator)
            yield window[:, :-1], window[:, 1:]

    def note(self):
        """Remember when the first bad step began."""
        self.begun = self.begun or time.time()

    def rate(self, step):
        """Return the learning rate of a step."""
        case = self.case
        if case.kind == "lr_stuck" and step >= case.at:
            step = min(case.at, step) if step < case.at + case.length else step
        rate = LEARNING_RATE * (1 - step / case.steps) if case.schedule == "linear" else LEARNING_RATE
        if case.kind == "lr_restart" and case.attempt:
            rate *= case.value
        return rate * (case.value if case.kind == "divergence" and step >= case.at else 1)

    def train(self, run):
        """Train the case's steps; yields after each."""
        case, rank = self.case, self.rank
        torch.manual_seed(case.seed)
        model = SmallGpt(Shape(context=CONTEXT, layers=1, heads=2, width=case.width))
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        run.coordinates(dp=rank)
        run.collectives(parallel)
        source = run.loader(self.batches())
        for step, (tokens, targets) in zip(range(case.first, case.steps), source, strict=True):
            bad = case.on(step, rank)
            for part in self.parts:
                part.turn(bad=bad)
            if bad:
                self.note()
                self.between(run, step)
            began = time.perf_counter()
            optimizer.param_groups[0]["lr"] = self.rate(step)
            with run.step(step, tokens=tokens.numel(), samples=len(tokens)):
                with run.phase("forward"):
                    time.sleep(case.work_s)
                    if bad and case.kind in {"straggler", "rank_slowdown", "throughput_drop"}:
                        time.sleep(case.value * self.pace)
                    loss = parallel(tokens, targets)
                with run.phase("backward"):
                    scale = {"gradient_spike": case.value, "zero_gradients": 0.0, "non_finite": float("nan")}
                    (loss * (scale.get(case.kind, 1.0) if bad else 1.0)).backward()
                if bad and case.kind == "collective_share":
                    for _ in range(int(case.value)):
                        distributed.all_reduce(torch.zeros(1 << 18))
                with run.phase("optimizer"):
                    gradient, *_ = change(model, optimizer)
                is_nan = bad and case.kind == "non_finite"
                run.log(loss=loss * float("nan") if is_nan else loss, grad_norm=gradient, lr=self.rate(step))
                if case.kind.startswith("checkpoint") and rank == 0 and step % SAVES == 0:
                    self.save(run, model, step, bad=bad)
            if not bad and step > case.first + 5:
                self.times.append(time.perf_counter() - began)
            if bad and case.kind == "run_failed":
                raise PlantedError("the planted failure")
            yield step

    def between(self, run, step):
        """Do what happens between two steps."""
        case = self.case
        if case.kind in {"stall", "hang"} and step == case.at:
            time.sleep(case.value)
        if case.kind == "rank_silence" and step == case.at:
            run.close()
        if case.kind == "clock_skew" and step == case.at:
            real = time.time_ns
            time.time_ns = lambda: real() + int(case.value * 1e9)

    def save(self, run, model, step, *, bad):
        """Save, slowly, in vain, or so that what is read back is not what was written."""
        case, place = self.case, self.folder / f"step-{step}.pt"
        with suppress(OSError), run.checkpoint(place, step=step) as path:
            if bad and case.kind == "checkpoint_failure":
                raise OSError(28, "No space left on device")
            if bad and case.kind == "checkpoint_duration":
                time.sleep(case.value)
            torch.save(model.state_dict(), path)
        if bad and case.kind == "checkpoint_corrupt":
            raw = bytearray(place.read_bytes())
            digest = hashlib.sha256(raw).hexdigest()
            raw[len(raw) // 2] ^= 1
            place.write_bytes(raw)
            with run.loading(place, step=step, sha256=digest):
                place.read_bytes()


@contextmanager
def recorded(case, rank, text, plan):
    """Give the trainer of a case and its run, which ends with the block."""
    folder = Path(plan["out"]) / f"saved-{case.name}"
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(case, rank, text, folder)
    config = {"width": case.width, "batch": case.batch, "schedule": case.schedule}
    version, host, time_ns, parts = torch.__version__, socket.gethostname, time.time_ns, vars(inprocess).copy()
    if case.kind == "version_skew" and rank == case.rank:
        torch.__version__ = "2.0.0"
    if case.hardware:
        gpu, files = trainer.parts
        socket.gethostname = lambda: f"{case.name}-node{rank}"
        inprocess.samples_here = lambda *_: True
        inprocess.gpus = lambda holders: GpuSampler(gpu.player, holders)
        inprocess.HostSampler = lambda holders, root: HostSampler(holders, root, str(files.root))
    local = f"{plan['local']}/{case.name}-{rank}" if case.hardware else plan["local"]
    samplers = {"samplers": "on", "sample_every_s": 2.0} if case.hardware else {"samplers": "off"}
    settings = {"announce": "off", "seal_every_s": 30.0, **samplers, **case.settings}
    try:
        run = capture.start(
            job="planted",
            run=case.name,
            attempt=case.attempt,
            spool=plan["spool"],
            local_dir=local,
            config=config,
            **settings,
        )
        vars(inprocess).update(parts)
        socket.gethostname = host
        with suppress(PlantedError), run:
            yield trainer, run
    finally:
        torch.__version__, time.time_ns = version, time_ns
    with (Path(plan["out"]) / f"rank-{rank}.jsonl").open("a") as out:
        out.write(json.dumps({"run": case.name, "attempt": case.attempt, "rank": rank, "begun": trainer.begun,
                              "pace_s": trainer.pace}) + "\n")  # fmt: skip


class PlantedError(RuntimeError):
    """What a trainer fails with."""


def side_by_side(cases, rank, text, plan):
    """Train cases, a step of each in turn, each turn no sooner than it is due."""
    with ExitStack() as stack:
        trained = [trainer.train(run) for trainer, run in
                   (stack.enter_context(recorded(case, rank, text, plan)) for case in cases)]  # fmt: skip
        due = time.monotonic()
        while trained:
            due += plan["every_s"]
            distributed.barrier()  # a rank that comes later would have the first case wait for it in its collectives
            trained = [one for one in trained if next(one, None) is not None]
            time.sleep(max(0.0, due - time.monotonic()))


def main():
    """Train all cases of the plan."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, text = distributed.get_rank(), corpus()
    cases = [Case(**facts) for facts in plan["cases"]]
    if plan.get("every_s"):
        side_by_side(cases, rank, text, plan)
        cases = []
    for case in cases:
        distributed.barrier()
        with recorded(case, rank, text, plan) as (trainer, run):
            for _ in trainer.train(run):
                pass
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
