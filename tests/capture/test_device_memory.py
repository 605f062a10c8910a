"""Steps tell what a GPU's memory held: by torch's own statistics, which stand in here for those of a device."""

import pytest
import torch
from recorded import check_books, rows

from ranklake.capture.training import parts


@pytest.fixture
def held(monkeypatch):
    """Let torch use a GPU whose allocator holds what is in the list that is returned, look by look."""
    looks = []

    def memory_stats():
        return looks.pop(0)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", memory_stats)
    return looks


def stats(allocated, reserved):
    """Return what torch tells, as far as it is read."""
    return {"allocated_bytes.all.current": allocated, "reserved_bytes.all.current": reserved}


def memory(place):
    """Return what each step's row tells."""
    ordered = sorted(rows(place.spool, "steps"), key=lambda row: row["step"])
    return [(row["memory_allocated_bytes"], row["memory_reserved_bytes"]) for row in ordered]


def test_a_step_a_second_tells_what_memory_held(place, held, monkeypatch):
    """The figures are in the row of the step that ended; others have none, and a step that fails takes none."""
    held += [stats(1_572_562_432, 41_641_050_112), stats(3 << 40, 4 << 40)]
    moments = iter([10_000_000_000, 10_500_000_000, 11_250_000_000, 11_500_000_000])
    monkeypatch.setattr(parts, "now", lambda: next(moments))
    with place.start() as run:
        for n in range(4):
            with run.step(n, tokens=7):
                run.log(loss=1.0)
    assert memory(place) == [(1_572_562_432, 41_641_050_112), (None, None), (3 << 40, 4 << 40), (None, None)]
    assert {(row["tokens"], row["loss"]) for row in rows(place.spool, "steps")} == {(7, 1.0)}
    assert held == []
    check_books(place.spool)


def test_what_cannot_be_told_is_null(place, held, monkeypatch):
    """Without a device that torch uses, with an allocator that tells nothing, and with one that fails."""
    looks = iter([False, True, True])
    monkeypatch.setattr(parts, "cuda_in_use", lambda: next(looks))
    monkeypatch.setattr(parts, "_INTERVAL_NS", 0)
    held.append({})  # and no answer for the third step
    with place.start() as run:
        for n in range(3):
            with run.step(n):
                pass
    assert memory(place) == [(None, None)] * 3
