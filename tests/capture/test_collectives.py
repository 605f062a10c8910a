"""Collectives on two real ranks with gloo: what is timed, that nothing waits for it, and that training is the same."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import check_books, rows

from ranklake.capture.steps import collectives

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("collectives_child.py")
LATE_S = 0.05


def train(folder):
    """Run the child on two ranks; return what each said, and its spans."""
    command = [sys.executable, str(CHILD), str(folder / "spool"), str(folder / "local")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said = [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(2)]
    check_books(folder / "spool")
    return said, rows(folder / "spool", "spans")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Give what two ranks said and recorded: steps 0 to 33 with DDP, 40 to 43 with FSDP2, 50 with plain calls."""
    folder = tmp_path_factory.mktemp("collectives")
    return *train(folder), folder / "spool"


def of(spans, name, steps, rank=0):
    return [row for row in spans if row["name"] == name and row["step"] in steps and row["rank"] == rank]


def test_training_is_the_same(trained):
    """The parameters are those of plain DDP to the last bit that matters, and those of the user's hook alone."""
    said, _, _ = trained
    for one in said:
        assert one["ours"] == pytest.approx(one["plain"], rel=1e-5)
        assert one["both"] == one["alone"]
        assert "only be called once" in one["refused"]
        assert one["gaps"] == {}
    assert said[0]["ours"] == said[1]["ours"]


def test_gradients_are_ddps_to_the_last_bit(tmp_path):
    """On three ranks a division and a product with the reciprocal differ: the mean is computed as DDP does.

    So it is under ``model.join()``, where ranks run out of batches one after the other, in both of its ways.
    """
    command = [sys.executable, str(CHILD.with_name("gradients_child.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    spans = rows(tmp_path / "spool", "spans")
    assert {row["rank"] for row in spans if row["name"] == "all_reduce"} == {0, 1, 2}


def test_each_bucket_is_a_span(trained):
    """All buckets of all steps: bytes of all parameters in float32, group, sequence, coordinates; not on the thread."""
    _, spans, _ = trained
    for rank in range(2):
        buckets = of(spans, "all_reduce", range(4), rank)
        for step in range(4):
            mine = [row for row in buckets if row["step"] == step]
            assert sum(row["bytes"] for row in mine) == 4 * (64 * 64 + 64) * 4
        assert len(buckets) > 4
        for row in buckets:
            facts = (row["kind"], row["stream"], row["group_size"], row["dp_rank"], row["pp_rank"], row["tp_rank"])
            assert facts == ("collective", "gloo", 2, rank, 0, None)
            assert row["device_time"] is None
    by_rank = [[row["sequence"] for row in of(spans, "all_reduce", range(4), rank)] for rank in range(2)]
    assert sorted(by_rank[0]) == sorted(by_rank[1])
    assert len(set(by_rank[0])) == len(by_rank[0])


def test_what_training_waits_for_is_the_steps_column(trained):
    """The rank that is on time waits for the late one, in its column and nowhere twice; the late one does not."""
    _, spans, spool = trained
    steps = [row for row in rows(spool, "steps") if row["step"] in range(1, 4)]
    waits = {rank: [row["collective_time_s"] for row in steps if row["rank"] == rank] for rank in range(2)}
    assert min(waits[0]) > LATE_S / 2
    assert sum(waits[1]) < sum(waits[0]) / 2
    for row in steps:
        parts = [row[f"{phase}_time_s"] for phase in ("forward", "backward", "collective", "optimizer")]
        assert sum(parts) <= row["step_time_s"] * 1.001
        (wait,) = of(spans, "collective", [row["step"]], row["rank"])
        (backward,) = of(spans, "backward", [row["step"]], row["rank"])
        assert wait["parent_id"] == backward["span_id"]


def test_nothing_waits_for_a_bucket(trained):
    """Buckets are under way at the same time: one is started before the one before it has ended."""
    _, spans, _ = trained
    overlapping = 0
    for step in range(1, 4):
        buckets = sorted(of(spans, "all_reduce", [step]), key=lambda row: row["ts"])
        for earlier, later in itertools.pairwise(buckets):
            overlapping += (later["ts"] - earlier["ts"]).total_seconds() * 1e9 < earlier["duration_ns"]
    assert overlapping


def test_a_hook_of_the_users(trained):
    """One that comes after ours is timed under its name; one that was there stays, and an event says so."""
    _, spans, spool = trained
    assert len(of(spans, "fp16_compress_hook", range(10, 14))) >= 4
    assert len(of(spans, "collective", range(10, 14))) == 4
    assert len(of(spans, "all_reduce", range(20, 24))) >= 4  # its own call
    assert of(spans, "collective", range(20, 24)) == []
    told = [row for row in rows(spool, "events") if row["event"] == "collectives_not_timed"]
    assert {row["rank"] for row in told} == {0, 1}


def test_gradients_that_are_accumulated_are_reduced_once(trained):
    """With no_sync a step of three micro-batches has the collectives of one."""
    _, spans, _ = trained
    assert len(of(spans, "collective", range(30, 34))) == 4


def test_fully_sharded_collectives_are_timed(trained):
    """FSDP2 gathers and scatters by torch.distributed: both are spans, and phase ``collective`` of the step."""
    _, spans, spool = trained
    for rank in range(2):
        mine = [row for row in spans if row["step"] in range(40, 44) and row["rank"] == rank]
        names = {row["name"] for row in mine if row["kind"] == "collective"}
        assert any(name.startswith("all_gather") for name in names), names
        assert any(name.startswith("reduce_scatter") for name in names), names
    for row in rows(spool, "steps"):
        assert row["step"] not in range(40, 44) or 0 < row["collective_time_s"] < row["step_time_s"]


def test_plain_calls_are_timed(trained):
    """With and without waiting, by position and by name; errors go on, results are right, functions are put back."""
    said, spans, spool = trained
    for rank, one in enumerate(said):
        assert one["restored"]
        assert one["failed"]
        assert one["gathered"] == [0.0] * 10 + [1.0] * 10
        waited, sent, *_ = of(spans, "all_reduce", [50], rank)
        assert (waited["bytes"], waited["stream"], sent["bytes"], sent["stream"]) == (4000, None, 80, "gloo")
        assert waited["process_group"] != sent["process_group"]
        (barrier,) = of(spans, "barrier", [50], rank)
        assert barrier["bytes"] is None
        (gathered,) = of(spans, "all_gather_into_tensor", [50], rank)
        assert (gathered["bytes"], gathered["group_size"]) == (40, 2)
        assert gathered["sequence"] > waited["sequence"]
    assert [row["collective_time_s"] > 0 for row in rows(spool, "steps") if row["step"] == 50] == [True, True]


def test_without_torch_distributed_there_is_nothing_to_time(place, monkeypatch):
    """It is no error, and a run that records nothing watches nothing."""
    monkeypatch.setattr(collectives, "_torch_distributed", lambda: None)
    with place.start() as run:
        run.collectives()
    assert run.gaps() == {}
    assert place.start(enabled=False).collectives() is None
