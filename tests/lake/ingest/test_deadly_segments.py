"""Segments that kill whoever reads them: set aside once they were seen to, and the others come in."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from bringing import adds_up, bring
from segments import put_bytes, put_segment, segment_bytes, step_rows

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import execution, ingest_plan, task
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans import workers
from ranklake.lake.plans.attempts import WHOLE, Attempts, segments_digest
from ranklake.lake.plans.workers import InProcess, WorkersError
from ranklake.lake.tables.read import read
from ranklake.segments.segment import SegmentFooter, SegmentName

KILLER = """
import os, signal, sys
sys.path[:0] = {path!r}
from ranklake.lake.ingest import batches
plain = batches.Loader._open
def deadly(self, row, batch):
    if "~r00003~" in row["path"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, row, batch)
batches.Loader._open = deadly
"""
"""Stands in for a crafted file at which a reader of Parquet dies: the process does die, by a real signal."""


@pytest.fixture
def deadly(tmp_path, monkeypatch):
    """Have every process that is started kill itself at segments of rank 3."""
    place = tmp_path / "site"
    place.mkdir()
    (place / "killer.py").write_text(KILLER.format(path=sys.path))
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr(workers, "_SERVE", f"import killer; {workers._SERVE}")
    return "import killer\n"


def segments(spool):
    return [put_segment(spool, step_rows(5, rank=rank, incarnation=rank + 1)) for rank in (2, 3)]


def mark(lake, what, how, count):
    for number in range(count):
        lake.put_if_absent(f"attempts/{1:010d}~{what}~{how}~{number + 1}", b"")


def unreadable(lake):
    told = read(lake.tables, contract("segments"), ["rank", "unreadable"]).to_pylist()
    return {row["rank"]: row["unreadable"] for row in told if row["unreadable"]}


@pytest.mark.slow
def test_a_segment_that_kills_is_set_aside(lake, spool, deadly, monkeypatch):
    """Ingests that are killed by a segment are followed by one that finds it, keeps its bytes and goes on."""
    segments(spool)
    script = f"""{deadly}
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.lake import Lake
from ranklake.lake.plans.workers import InProcess
ingest(Lake.open({lake.uri!r}), Spool({str(spool)!r}), InProcess())
"""
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script], env=path, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert Attempts(lake.store, 1).times_begun(WHOLE) == 1
    monkeypatch.setattr(execution, "TRIES", 1)
    monkeypatch.setattr(execution, "TRIES", 1)
    done = bring(lake, spool)
    assert (done.rows_stored, unreadable(lake)) == (5, {3: execution.DEADLY})
    assert len(list(Path(lake.path("quarantine")).iterdir())) == 1
    assert list(Path(lake.path("attempts")).iterdir()) == []
    adds_up(lake, spool)
    assert bring(lake, spool).plans == []


def test_a_footer_at_which_pyarrow_ends_the_process_is_damage(lake, spool):
    """One that says of a column's levels what its chunks deny is set aside like others: nobody dies of it."""
    plain = step_rows(5, rank=3, incarnation=4)
    name, raw = segment_bytes(plain)
    as_it_is, required = (bytes([0x25, repeated, 0x18, len("loss")]) + b"loss" for repeated in (2, 0))
    assert raw.count(as_it_is) == 1
    said = SegmentName.parse(name.rpartition("/")[2])
    owner = {field: getattr(said, field) for field in ("run", "attempt", "rank", "incarnation", "segment", "rows")}
    put_bytes(spool, raw.replace(as_it_is, required), SegmentFooter("steps", 1, world_size=1, **owner))
    put_segment(spool, step_rows(5, rank=2, incarnation=3))
    assert bring(lake, spool).rows_stored == 5
    assert unreadable(lake) == {3: "not readable as Parquet (OSError)"}
    assert list(Path(lake.path("attempts")).iterdir()) == []
    adds_up(lake, spool)


@pytest.mark.slow
def test_memory_that_is_not_there_is_no_damage(lake, spool, monkeypatch):
    """A task that runs out of memory is tried again by itself, and nothing is in quarantine."""
    segments(spool)
    plain, calls = task._compact, []

    def starved(group):
        calls.append(len(group.segments))
        if len(calls) == 1:
            raise pa.ArrowMemoryError("malloc of size 1 failed")
        return plain(group)

    monkeypatch.setattr(task, "_compact", starved)
    assert bring(lake, spool).rows_stored == 10
    assert calls == [2]
    assert not Path(lake.path("quarantine")).exists()
    assert list(Path(lake.path("attempts")).iterdir()) == []
    adds_up(lake, spool)


@pytest.mark.slow
def test_tries_are_counted_across_drivers(lake, spool, deadly):
    """What earlier drivers saw die is not tried over and over: the count lies beside the plans."""
    _, third = segments(spool)
    plan = ingest_plan.compose(lake, Spool(str(spool)), 1).plan
    lake.put_if_absent(plan.name, plan.to_json())
    mark(lake, WHOLE, "begun", execution.TRIES)
    mark(lake, segments_digest(plan.body["segments"]), "begun", 1)
    mark(lake, segments_digest([{"path": str(third)}]), "died", execution.TRIES - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "set_aside", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            bring(lake, spool)
    assert Attempts(lake.store, 1).times_died(segments_digest([{"path": str(third)}])) == execution.TRIES
    assert Attempts(lake.store, 1).times_begun(WHOLE) == execution.TRIES, "an interrupt is no death"
    started = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "run_group", lambda group: started.append(group) or task.compact(group))
        patch.setattr(execution, "InSubprocess", InProcess)
        assert bring(lake, spool).rows_stored == 5
    assert [str(third) in str(group.segments) for group in started] == [False, False], "it was tried again"
    assert unreadable(lake) == {3: execution.DEADLY}
    adds_up(lake, spool)


def _interrupt(*_):
    raise KeyboardInterrupt


def test_workers_that_die_at_nothing_blame_no_segment(lake, spool, monkeypatch):
    """Where processes die whatever they do, nothing is set aside, and the error says so."""
    segments(spool)
    killing = "import os; os.write(int(__import__('sys').argv[1]), b'R'); os._exit(9)"
    monkeypatch.setattr(workers, "_SERVE", killing)
    monkeypatch.setattr(task, "_compact", lambda _: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(WorkersError, match="empty task"):
        bring(lake, spool)
    monkeypatch.undo()
    assert not Path(lake.path("quarantine")).exists()
    assert bring(lake, spool).rows_stored == 10
    assert unreadable(lake) == {}
    adds_up(lake, spool)
