"""Loaders: the wait for a batch is phase ``data`` of the step that the batch feeds, whatever the batches come from."""

import itertools
import threading

import pytest
import torch
from recorded import check_books, rows
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NS = 1_000_000_000


def columns(place):
    """Return the steps' rows, and their spans by step and name."""
    spans = {}
    for row in rows(place.spool, "spans"):
        spans.setdefault((row["step"], row["name"]), []).append(row)
    return rows(place.spool, "steps"), spans


class Clock:
    """Seconds that pass only when told."""

    def __init__(self, monkeypatch):
        self.ns = None
        for module in ("phase", "step", "waits"):
            monkeypatch.setattr(f"ranklake.capture.steps.{module}.now", self.now)

    def now(self):
        """Return the monotonic time."""
        if self.ns is None:
            import time

            self.ns = time.monotonic_ns()
        return self.ns

    def work(self, seconds):
        """Let time pass."""
        self.now()
        self.ns += round(seconds * NS)


@pytest.fixture
def clock(monkeypatch):
    """Give a clock that phases in Python read; those in C read the machine's."""
    monkeypatch.setattr("ranklake.capture.steps.phase.MODULE", None)
    return Clock(monkeypatch)


def slow(clock, batches, seconds):
    for batch in batches:
        clock.work(seconds)
        yield batch


def test_the_wait_before_a_step_is_the_steps(place, clock):
    """Step time is wait and block; the phases' sum is all of it; the span of the step holds that of the wait."""
    with place.start() as run:
        for n, _ in enumerate(run.loader(slow(clock, range(3), 2))):
            with run.step(n), run.phase("forward"):
                clock.work(5)
    steps, spans = columns(place)
    assert [(row["step_time_s"], row["data_time_s"], row["forward_time_s"]) for row in steps] == [(7, 2, 5)] * 3
    for n in range(3):
        (step,), waits = spans[n, "step"], spans[n, "data"]
        assert sum(row["duration_ns"] for row in waits) == 2 * NS
        assert step["duration_ns"] == 7 * NS
        assert {row["parent_id"] for row in waits} == {step["span_id"]}
        assert min(row["ts"] for row in waits) == step["ts"] == steps[n]["ts"]
    assert run.gaps() == {}
    check_books(place.spool)


def test_what_lies_between_wait_and_step_is_no_time_of_the_step(place, clock):
    """An evaluation after the wait is in the span's length, and neither in the row's time nor in its data."""
    with place.start() as run:
        for n, _ in enumerate(run.loader(slow(clock, range(2), 2))):
            with run.phase("evaluation"):
                for _ in run.loader(slow(clock, range(3), 10)):
                    clock.work(1)
            with run.step(n):
                clock.work(5)
    steps, spans = columns(place)
    assert [(row["step_time_s"], row["data_time_s"], row["evaluation_time_s"]) for row in steps] == [(7, 2, None)] * 2
    assert [row["duration_ns"] for row in spans[1, "step"]] == [(2 + 33 + 5) * NS]
    unfed = [row["duration_ns"] for row in spans[None, "data"]]
    assert sum(unfed) == 2 * 30 * NS
    assert {row["parent_id"] for row in spans[None, "data"]} == {row["span_id"] for row in spans[None, "evaluation"]}


def test_a_loader_of_an_evaluation_that_is_cut_short_feeds_no_step(place, clock):
    """Of two loaders under way, the step is fed by the one that fed the last."""
    with place.start() as run:
        batches = iter(run.loader(slow(clock, range(9), 2)))
        for n in range(2):
            next(batches)
            if n:
                next(iter(run.loader(slow(clock, range(9), 100))))
            with run.step(n):
                clock.work(5)
    assert [(row["step_time_s"], row["data_time_s"]) for row in columns(place)[0]] == [(7, 2)] * 2


def test_waits_within_a_step_are_phases_of_it(place, clock):
    """Micro-batches fetched within the step add up in its column; several before it, too."""
    with place.start() as run:
        batches = iter(run.loader(slow(clock, range(9), 2)))
        with run.step(0):
            for _ in range(3):
                next(batches)
                clock.work(1)
        next(batches), next(batches)
        with run.step(1):
            next(batches)
    steps, spans = columns(place)
    assert [(row["step_time_s"], row["data_time_s"]) for row in steps] == [(9, 6), (6, 6)]
    assert [len(spans[n, "data"]) for n in range(2)] == [1 + 3, 3]  # beginning to iterate is a wait, too


def test_a_loader_that_is_read_ahead_feeds_the_steps_that_come(place, clock):
    """What was fetched before the loader ended is the next step's, though the end was found first."""
    with place.start() as run:
        batches = iter(run.loader(slow(clock, range(3), 2)))
        ahead = next(batches)
        for n in range(3):
            ahead = next(batches, None)
            with run.step(n):
                clock.work(5)
    assert ahead is None
    assert [row["data_time_s"] for row in columns(place)[0]] == [4, 2, None]


def test_waits_that_no_step_claims_are_recorded_at_the_close(place, clock):
    """A loop that ends between the wait and the step leaves a span without a step."""
    with place.start() as run:
        next(iter(run.loader(slow(clock, range(9), 2))))
    assert sum(row["duration_ns"] for row in columns(place)[1][None, "data"]) == 2 * NS
    check_books(place.spool)


def test_a_failed_step_keeps_its_wait(place):
    """The wait's span belongs to the step, which has no row."""
    with place.start() as run:
        next(iter(run.loader(range(3))))
        step = run.step(0)
        step.__enter__()
        step.__exit__(KeyError, KeyError("batch"), None)
    steps, spans = columns(place)
    assert steps == []
    assert spans[0, "data"]


def test_what_the_batches_raise_goes_on(place):
    """An error in the data set is training's, and the wait is recorded."""

    def broken():
        yield 1
        raise OSError("no such file")

    with place.start() as run:
        batches = iter(run.loader(broken()))
        assert next(batches) == 1
        with pytest.raises(OSError, match="no such file"):
            next(batches)
    assert run.gaps() == {}


def test_each_thread_has_its_waits(place):
    """A thread that fetches ahead gives no time to the step of another."""
    with place.start() as run:
        thread = threading.Thread(target=lambda: next(iter(run.loader(range(3)))))
        thread.start()
        thread.join()
        with run.step(0):
            pass
    assert columns(place)[0][0]["data_time_s"] is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # torch's workers fork while our sealer runs
def test_a_data_loader_is_what_it_was(place):
    """Length, sampler, epochs, attributes and worker processes of torch's DataLoader; its batches, in its order."""
    data = TensorDataset(torch.arange(12))
    sampler = DistributedSampler(data, num_replicas=2, rank=1, seed=3)
    plain = DataLoader(data, batch_size=2, sampler=sampler, num_workers=1)
    with place.start() as run:
        loader = run.loader(plain)
        assert (len(loader), loader.batch_size, loader.sampler, bool(loader)) == (3, 2, sampler, True)
        loader.sampler.set_epoch(1)
        loader.mark = 5
        assert plain.mark == 5
        seen = []
        for n, (batch,) in enumerate(loader):
            with run.step(n):
                seen += batch.tolist()
        assert seen == [int(one) for (batch,) in plain for one in batch]
        torch.manual_seed(1)
        shuffled = [batch for (batch,) in run.loader(DataLoader(data, shuffle=True))]
    torch.manual_seed(1)
    assert shuffled == [batch for (batch,) in DataLoader(data, shuffle=True)]
    assert all(row["data_time_s"] > 0 for row in columns(place)[0])
    assert run.gaps() == {}


def test_any_iterable_will_do(place):
    """One without length has none; a run that records nothing gives back what it got."""
    with place.start() as run:
        endless = run.loader(itertools.count())
        assert next(iter(endless)) == 0
        with pytest.raises(TypeError):
            len(endless)
        with pytest.raises(TypeError, match="not iterable"):
            iter(run.loader(5))
    batches = [1, 2]
    assert place.start(enabled=False).loader(batches) is batches
    assert run.loader(batches) is batches  # after the close
