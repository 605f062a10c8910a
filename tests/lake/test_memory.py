"""A worker's memory: what it is given is what it takes, whatever lies in the spool."""

import os
from pathlib import Path

import pytest
import telemetry

from ranklake.lake import ingest_plan
from ranklake.lake.ingest import ingest
from ranklake.lake.spool import Spool
from ranklake.lake.workers import ONE, InProcess, Room, workers

LIMIT_BYTES = 768 * 2**20


def peak():
    """Return a worker's process, and the most memory that it held.

    Not `getrusage`, which begins with what the process held that started this one.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return os.getpid(), int(status["VmHWM"].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_a_small_worker_takes_smaller_pieces(lake, spool):
    """One task of more rows than the worker could hold goes through, by the worker that began it, within its limit."""
    rows = telemetry.fill(spool, "spans", 1_200_000)
    with workers(count=1, memory_limit=str(LIMIT_BYTES)) as crew:
        assert crew.room() == Room(1, LIMIT_BYTES)
        ((before, _),) = crew.client.run(peak).values()
        done = ingest(lake, Spool(str(spool)), crew)
        ((after, held),) = crew.client.run(peak).values()
    assert done.rows_stored + done.rows_duplicate == rows
    assert before == after, "the worker was killed"
    assert held < LIMIT_BYTES


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_tasks_are_even(tasks):
    """Where there are rows enough every worker has the same to do; where there are few, they make few files."""
    segments = [{"path": f"{number}~0~0", "rows": 20_000, "bytes": 100_000} for number in range(700)]
    cut = [sum(row["rows"] for row in chunk) for chunk in ingest_plan._chunks(segments, tasks)]
    assert sum(cut) == 14_000_000
    assert len(cut) % tasks == 0
    assert max(cut) - min(cut) <= 0.2 * max(cut)
    assert max(cut) <= ingest_plan.GROUP_ROWS + 20_000
    assert len(list(ingest_plan._chunks(segments[:10], tasks))) == 1
    assert InProcess().room() == ONE
