"""Memory: a worker takes what it is given, whatever lies in the spool; DataFusion keeps no more than it uses again."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import telemetry

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import execution
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.dask_workers import workers
from ranklake.lake.plans.workers import ONE, DaskSection, InProcess, Room
from ranklake.lake.query.roles import Role
from ranklake.lake.tables.commit import swap
from ranklake.lake.tables.parquet import write_days
from ranklake.lake.tables.tables import ensure_table
from ranklake.masking.masks import Mask
from ranklake.retention.shares.sharing import share

LIMIT_BYTES = 768 * 2**20
SHARING_BYTES = 2**30


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
    with workers(DaskSection(workers=1, memory_limit=str(LIMIT_BYTES))) as crew:
        assert crew.room() == Room(1, LIMIT_BYTES)
        ((before, _),) = crew.client.run(peak).values()
        done = ingest(lake, Spool(str(spool)), crew)
        ((after, held),) = crew.client.run(peak).values()
    assert done.rows_stored + done.rows_duplicate == rows
    assert before == after, "the worker was killed"
    assert held < LIMIT_BYTES


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
@pytest.mark.parametrize("masked", [(), ("rank",)], ids=["as it lies", "sorted anew"])
def test_a_small_worker_shares_in_smaller_pieces(lake, tmp_path, masked):
    """A copy of more rows than the worker could hold goes through, too, also where all of them are sorted anew."""
    spans = contract("spans")
    columns = {("spans", spans.column(name).id): Mask("bucket", "4") for name in masked}
    role = Role("reader", frozenset({"operational"}), frozenset({"spans"}), column_masks=columns)
    handle = ensure_table(lake.tables, spans)
    rows = [telemetry.segment_rows("spans", rank, 0, 150_000) for rank in range(8)]
    swap(handle, 1, add=[file for some in rows for file in write_days(lake.store, spans, some, 1)])
    with workers(DaskSection(workers=1, memory_limit=str(SHARING_BYTES))) as crew:
        ((before, _),) = crew.client.run(peak).values()
        (done,) = share(lake, role, str(tmp_path / "shared"), "somebody", crew).tables
        ((after, held),) = crew.client.run(peak).values()
    assert done.rows_added == sum(some.num_rows for some in rows)
    assert before == after, "the worker was killed"
    assert held < SHARING_BYTES


KEPT = []


def fill(full):
    """Hold memory until a worker's process has so much of what it may have, as an allocator does."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    more = int(full * LIMIT_BYTES) - int(status["VmRSS"].split()[0]) * 1024
    KEPT.append(b"x" * max(0, more))
    return more


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_a_worker_whose_allocators_keep_memory_goes_on():
    """Dask would have it begin nothing until it holds less, which it never does."""
    with workers(DaskSection(workers=1, memory_limit=str(LIMIT_BYTES))) as crew:
        assert crew.run(fill, [0.87]) > [0]
        for number in range(30):  # its memory is looked at ten times a second
            assert crew.run(pause_briefly, [number]) == [number]


def pause_briefly(number):
    """Take a tenth of a second."""
    time.sleep(0.1)
    return number


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_tasks_are_even(tasks):
    """Where there are rows enough every worker has the same to do; where there are few, they make few files."""
    segments = [{"path": f"{number}~0~0", "rows": 20_000, "bytes": 100_000} for number in range(700)]
    cut = [sum(row["rows"] for row in chunk) for chunk in execution._chunks(segments, tasks)]
    assert sum(cut) == 14_000_000
    assert len(cut) % tasks == 0
    assert max(cut) - min(cut) <= 0.2 * max(cut)
    assert max(cut) <= execution.GROUP_ROWS + 20_000
    assert len(list(execution._chunks(segments[:10], tasks))) == 1
    assert InProcess().room() == ONE


LOADED = """
import os
before = dict(os.environ)
import ranklake.lake.query.scan
assert dict(os.environ) == before
"""


@pytest.mark.slow
@pytest.mark.parametrize(("said", "kept_ms"), [({}, "1000"), ({"MIMALLOC_PURGE_DELAY": "77"}, "77")])
def test_datafusion_keeps_freed_memory_for_a_second(said, kept_ms):
    """Its allocator is told so when it is loaded, unless somebody said otherwise; the environment stays as it was."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MIMALLOC_")}
    environment = {**inherited, "MIMALLOC_VERBOSE": "1", **said}
    done = subprocess.run([sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, check=True)
    assert f"mimalloc: option 'purge_delay': {kept_ms} " in done.stderr


READS_MANY_FILES = """
import sys
from pathlib import Path
from ranklake.lake.query.sql import session
from ranklake.lake.store.lake import Lake

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

lake = Lake.open(sys.argv[1])
session(lake, ["steps"]).sql("SELECT 1").to_arrow_table()
before = threads()
for _ in range(3):
    ctx = session(lake, ["steps"], threads=2)
    (row,) = ctx.sql("SELECT sum(step_time_s) FROM steps").to_arrow_table().to_pylist()
    assert all(row.values())
print(threads() - before)
"""


@pytest.mark.slow
def test_threads_do_not_grow_with_the_files_that_are_read(lake):
    """Each thread that reads keeps memory of its own, so that a process would grow with what it has read."""
    steps = contract("steps")
    handle = ensure_table(lake.tables, steps)
    written = [
        file
        for rank in range(64)
        for file in write_days(lake.store, steps, telemetry.segment_rows("steps", rank, 0, 50), 1)
    ]
    swap(handle, 1, add=written)
    command = [sys.executable, "-c", READS_MANY_FILES, lake.uri]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 16
