"""Device phases: what is done with the device's times. The device is a stand-in but for the last test."""

import threading

import pytest
import torch
from recorded import check_books, rows

from ranklake.capture.common.gaps import DEVICE_VALUE
from ranklake.capture.steps import device_phases, phases

S = 1_000_000_000


class Stream:
    """A stream of work with a clock of its own: events happen when it is told to run."""

    def __init__(self):
        self.at_ms = 0.0
        self.ran = threading.Event()

    def mark(self):
        """Put an event behind the work given so far."""
        return Marked(self, self.at_ms)

    def work(self, milliseconds):
        """Give work that takes so long."""
        self.at_ms += milliseconds


class Marked:
    """An event of such a stream, with the calls of torch's."""

    def __init__(self, stream, at_ms):
        self.stream, self.at_ms = stream, at_ms

    def query(self):
        """Say whether it has happened."""
        return self.stream.ran.is_set()

    def elapsed_time(self, end):
        """Return the milliseconds to another; asking too early is what would make training wait."""
        assert self.query()
        assert end.query()
        return end.at_ms - self.at_ms


@pytest.fixture
def stream(monkeypatch):
    """Give a stream that stands for CUDA's."""
    made = Stream()
    monkeypatch.setattr(phases, "cuda_in_use", lambda: True)
    monkeypatch.setattr(device_phases, "mark_cuda", made.mark)
    return made


def train(run, stream):
    """One step: forward 30 s on the device, of which 10 s are a collective's."""
    with run.step(7), run.phase("forward", on_device=True):
        stream.work(15_000)
        with run.phase("collective", on_device=True):
            stream.work(10_000)
        stream.work(5_000)


def test_the_steps_columns_get_the_devices_times(place, stream):
    """Times that arrive after the step are put into its row; an inner phase's is its own alone. Nobody waited."""
    with place.start() as run:
        train(run, stream)
        stream.ran.set()
        with run.step(8):
            pass
    first = next(row for row in rows(place.spool, "steps") if row["step"] == 7)
    assert first["forward_time_s"] == pytest.approx(20)
    assert first["collective_time_s"] == pytest.approx(10)
    assert first["step_time_s"] < 10
    check_books(place.spool)


def test_both_sides_are_spans(place, stream):
    """The host's span says when the work was given, its child on the stream how long it took."""
    with place.start() as run:
        train(run, stream)
        stream.ran.set()
    spans = {(row["name"], row["stream"]): row for row in rows(place.spool, "spans")}
    assert set(spans) == {
        ("step", None),
        ("forward", None),
        ("collective", None),
        ("forward", "cuda"),
        ("collective", "cuda"),
    }
    assert spans["forward", "cuda"]["duration_ns"] == 30 * S
    assert spans["collective", "cuda"]["duration_ns"] == 10 * S
    for name in ("forward", "collective"):
        assert spans[name, "cuda"]["parent_id"] == spans[name, None]["span_id"]
        assert spans[name, "cuda"]["step"] == 7
    assert spans["collective", None]["parent_id"] == spans["forward", None]["span_id"]


def test_times_that_arrive_within_the_step_are_in_its_row(place, stream):
    """A device that is quicker than the step needs nothing put into a row that is written."""
    with place.start() as run, run.step(0):
        with run.phase("forward", on_device=True):
            stream.work(2)
        stream.ran.set()
        with run.step(1):
            pass
    row = next(row for row in rows(place.spool, "steps") if row["step"] == 0)
    assert row["forward_time_s"] == pytest.approx(0.002)


def test_a_time_that_never_arrives_is_null_and_counted(place, stream):
    """The host's time is not put in its stead."""
    with place.start() as run:
        train(run, stream)
    assert run.gaps() == {"spans": {DEVICE_VALUE: 2}}
    (row,) = rows(place.spool, "steps")
    assert (row["forward_time_s"], row["collective_time_s"]) == (None, None)
    check_books(place.spool)


def test_a_stream_that_cannot_be_timed_is_counted(place, stream, monkeypatch):
    """Under graph capture, say: no event, no time, and the host's span is there."""
    monkeypatch.setattr(device_phases, "mark_cuda", lambda: None)
    with place.start() as run:
        train(run, stream)
    assert run.gaps() == {"spans": {DEVICE_VALUE: 2}}
    assert {row["name"] for row in rows(place.spool, "spans")} == {"step", "forward", "collective"}


def test_without_cuda_it_is_an_ordinary_phase(place):
    """The same training script runs on a laptop, where the host's time is the device's."""
    if device_phases.cuda_in_use():
        pytest.skip("CUDA is in use")
    with place.start() as run, run.step(0), run.phase("forward", on_device=True):
        pass
    (row,) = rows(place.spool, "steps")
    assert row["forward_time_s"] is not None
    assert {row["stream"] for row in rows(place.spool, "spans")} == {None}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_real_gpu_is_timed_without_a_wait(place):
    """A second of work on the device is seen, though the host was through in a fraction of it."""
    torch.cuda.init()
    with place.start() as run:
        with run.step(0), run.phase("forward", on_device=True):
            torch.cuda._sleep(1_500_000_000)
        torch.cuda.synchronize()
        with run.step(1):
            pass
    row = next(row for row in rows(place.spool, "steps") if row["step"] == 0)
    assert row["step_time_s"] < row["forward_time_s"] / 2
