"""With torch: tensors are values, FLOPs are counted on the real step, and a CPU's peak is measured."""

import copy
import threading

import pytest
from recorded import rows

from ranklake.capture.common.gaps import BAD_VALUE, DEVICE_VALUE
from ranklake.capture.steps.device_values import MOST_PENDING, DeviceQueue

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "int8", "uint8", "bool"],
)
def test_tensors_of_every_dtype_are_values(place, dtype):
    """A tensor of one element in main memory is recorded, whatever its dtype, shape or gradient."""
    with place.start() as run:
        run.log({"flat": torch.tensor(1, dtype=getattr(torch, dtype)), "deep": torch.ones(1, 1)})
        with run.step(0):
            run.log(loss=torch.tensor(2.0, requires_grad=True) * 1)
    assert [row["value"] for row in rows(place.spool, "scalars")] == [1.0, 1.0]
    assert rows(place.spool, "steps")[0]["loss"] == 2.0
    assert run.gaps() == {}


DTYPES = sorted({str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore")  # torch warns of quantized tensors, and of dropping imaginary parts
def test_a_tensor_of_any_dtype_is_a_value_or_a_gap(place, dtype):
    """Real numbers are recorded in every way, what is no number to torch is counted; a complex one is never cut."""
    kind = getattr(torch, dtype)
    try:
        one = torch.ones((), dtype=torch.uint8).view(kind) if "bit" in dtype else torch.ones(()).to(kind)
    except (RuntimeError, TypeError, NotImplementedError):
        one = torch.empty((), dtype=kind)
    with place.start() as run:
        for given in (1.0, one):
            run.log({"alone": given})
            run.log({"a": given, "b": 1.0})
            run.scalar("x").add(given)
            run.aggregate("x").add(given)
            run.histogram("x").record(given)
    counted = run.gaps()
    found = rows(place.spool, "scalars")
    recorded = sum(row["agg_count"] or 1 for row in found)
    assert recorded + counted.get("scalars", {}).get(BAD_VALUE, 0) == 10
    (spread,) = rows(place.spool, "distributions")
    assert spread["count"] + counted.get("distributions", {}).get(BAD_VALUE, 0) == 2
    assert {reason for reasons in counted.values() for reason in reasons} <= {BAD_VALUE}
    if kind.is_floating_point and "x2" not in dtype:
        assert {row["value"] for row in found} == {1.0}
        assert counted == {}
    if kind.is_complex:
        assert counted == {"scalars": {BAD_VALUE: 4}, "distributions": {BAD_VALUE: 1}}


def test_tensors_that_are_no_number(place):
    """Several elements, none, or complex ones are counted as bad values."""
    with place.start() as run:
        run.log(a=torch.ones(2), b=torch.ones(0), c=torch.ones(1, dtype=torch.complex64))
    assert run.gaps() == {"scalars": {BAD_VALUE: 3}}


def test_tensors_elsewhere_are_never_waited_for(place):
    """A tensor on a device that cannot hand values over without waiting is a gap, not a synchronisation."""
    with place.start() as run, run.step(torch.zeros(1, dtype=torch.int64)):
        run.log(loss=torch.ones(1, device="meta"), other=torch.ones(1, device="meta"))
        run.scalar("x").add(torch.ones(1, device="meta"))
    assert run.gaps() == {"scalars": {DEVICE_VALUE: 3}}
    assert rows(place.spool, "steps")[0]["loss"] is None


class Arrival:
    """An event that has happened once a test says so."""

    def __init__(self, happened):
        self.happened = happened

    def query(self):
        """Say whether the copy is done."""
        return self.happened.is_set()


def send_late(run, monkeypatch):
    """Let tensors on the meta device arrive as CUDA tensors do: later. Returns what makes them arrive."""
    happened = threading.Event()

    def send(self, tensor, deliver):
        self.add(Arrival(happened), torch.tensor(float(tensor.numel())), deliver)
        return True

    monkeypatch.setattr(DeviceQueue, "send", send)
    return happened


def test_a_value_that_arrives_later_is_in_its_steps_row(place, monkeypatch):
    """The loss of a step that has ended is put into its row when it arrives; metrics are recorded then."""
    with place.start() as run:
        arrived = send_late(run, monkeypatch)
        far = torch.ones(1, device="meta")
        with run.step(0):
            run.log(loss=far, extra=far)
        arrived.set()
        with run.step(1):
            run.log(loss=2.0)
    assert [row["loss"] for row in rows(place.spool, "steps")] == [1.0, 2.0]
    assert [(row["metric"], row["step"], row["value"]) for row in rows(place.spool, "scalars")] == [("extra", 0, 1.0)]


def test_a_value_that_arrives_after_its_row_is_sealed_is_a_metric(place, monkeypatch):
    """What is too late for the row is kept as train/loss of that step."""
    with place.start() as run:
        arrived = send_late(run, monkeypatch)
        with run.step(5):
            run.log(loss=torch.ones(1, device="meta"))
        run.flush()
        arrived.set()
    assert rows(place.spool, "steps")[0]["loss"] is None
    assert [(row["metric"], row["step"], row["value"]) for row in rows(place.spool, "scalars")] == [
        ("train/loss", 5, 1.0)
    ]


def test_a_value_that_never_arrives_is_counted_at_the_close(place, monkeypatch):
    """The close waits a second at most, then counts it."""
    with place.start() as run:
        send_late(run, monkeypatch)
        with run.step(0):
            run.log(loss=torch.ones(1, device="meta"))
    assert run.gaps() == {"scalars": {DEVICE_VALUE: 1}}


def test_too_many_values_under_way_are_refused():
    """The queue is bounded."""
    deferred = DeviceQueue()
    for _ in range(MOST_PENDING):
        deferred.add(Arrival(threading.Event()), None, print)
    assert not deferred.send(torch.ones(1, device="meta"), print)
    assert deferred.give_up() == {"scalars": MOST_PENDING}
    deferred.drain()


@pytest.mark.slow
def test_flops_of_a_real_step_are_counted(place):
    """Forward and backward of a linear layer: 2·m·n·k for each of its three products."""
    layer = torch.nn.Linear(64, 32, bias=False)
    data = torch.ones(16, 64, requires_grad=True)
    with place.start() as run, run.step(0), run.count_flops(tokens=16) as count:
        layer(data).sum().backward()
    expected = 3 * 2 * 16 * 64 * 32
    assert count.flops == expected
    assert {row["metric"]: row["value"] for row in rows(place.spool, "scalars")} == {
        "model/flops_per_step": expected,
        "model/hardware_flops_per_step": expected,
        "model/flops_per_token": expected / 16,
    }


@pytest.mark.slow
def test_a_gradient_of_a_gradient_is_the_models_own(place):
    """With ``create_graph`` a backward pass runs with gradients enabled, and computes nothing a second time."""
    layer = torch.nn.Linear(8, 8, bias=False)
    data = torch.ones(4, 8, requires_grad=True)
    with place.start() as run, run.step(0), run.count_flops() as count:
        (gradient,) = torch.autograd.grad(layer(data).square().sum(), data, create_graph=True)
        gradient.square().sum().backward()
    assert count.flops == count.hardware_flops > 3 * 2 * 4 * 8 * 8


@pytest.mark.slow
def test_a_counted_step_that_fails_counts_nothing(place):
    """The exception goes on, and no number is made up."""
    run = place.start()

    def train():
        with run.count_flops(tokens=1):
            torch.ones(2, 2) @ torch.ones(2, 2)
            raise KeyError("batch")

    with pytest.raises(KeyError):
        train()
    run.close()
    assert rows(place.spool, "scalars") == []


def test_the_peak_of_a_cpu_is_measured_and_training_draws_the_same_numbers(place):
    """The peak is a plausible positive number, recorded once, and the random state is left alone."""
    before = copy.deepcopy(torch.get_rng_state())
    with place.start() as run:
        peak = run.calibrate_peak()
    assert torch.equal(before, torch.get_rng_state())
    assert 1e8 < peak < 1e14
    assert [(row["metric"], row["value"]) for row in rows(place.spool, "scalars")] == [
        ("device/peak_flops_measured", peak)
    ]


def test_the_run_row_names_the_framework(place):
    """The framework and its version are those that training has imported."""
    place.start().close()
    (row,) = rows(place.spool, "runs")
    assert (row["framework"], row["framework_version"]) == ("torch", torch.__version__)
