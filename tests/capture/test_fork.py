"""Forks: a child records into a stream of its own, and what it acknowledged outlives it."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from recorded import check_books, gaps, rows, segments, totals

from ranklake.capture.common.gaps import BEGUN_BEFORE_FORK
from ranklake.capture.recover import recover

# From Python 3.12 on, forking with threads warns; that data loaders do it all the time is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_child(work, *, then=0):
    """Run something in a forked child, end it without any clean-up, and return how it ended."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            if then >= 0:
                os._exit(then)
            os.kill(os.getpid(), -then)
    return os.waitpid(pid, 0)[1]


def test_what_a_living_child_records_is_synced_by_its_parent(place, monkeypatch):
    """A child starts no threads, so each second its parent brings the child's files and their names to the disk."""
    synced, fdatasync, fsync = set(), os.fdatasync, os.fsync

    def watch(call, fd):
        call(fd)
        synced.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fdatasync", lambda fd: watch(fdatasync, fd))
    monkeypatch.setattr(os, "fsync", lambda fd: watch(fsync, fd))
    run = place.start(sync_every_s=0.1)
    ends, mine = os.pipe()
    go_on, over = os.pipe()

    def work():
        run.log(a=1.0, step=1)
        folder = run.recording.recorder.stream.folder
        os.write(mine, str(folder).encode())
        os.read(go_on, 1)

    child = threading.Thread(target=in_child, args=(work,))
    child.start()
    folder = Path(os.read(ends, 1000).decode())
    files = {path.stat().st_ino for path in (folder, folder / "meta.frames", *folder.glob("scalars-*.open"))}
    deadline = time.monotonic() + 60
    while not files <= synced and time.monotonic() < deadline:
        time.sleep(0.01)
    os.write(over, b"x")
    child.join()
    for fd in (ends, mine, go_on, over):
        os.close(fd)
    assert len(files) == 3
    assert files <= synced


def test_a_child_records_into_its_own_stream(place):
    """Rows of parent and child, before and after the fork, are all there, each once, under two incarnations."""
    run = place.start()
    handle = run.scalar("x")
    handle.add(1.0)
    run.log(a=1.0, b=2.0)

    def work():
        handle.add(2.0)
        run.log(a=3.0, b=4.0)
        run.log(new=5.0)
        with run.step(7), run.phase("data"):
            pass
        run.event("in the child")

    assert in_child(work) == 0
    handle.add(6.0)
    run.close()
    found = rows(place.spool, "scalars")
    assert sorted(row["value"] for row in found) == [1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    parent = {row["incarnation"] for row in found if row["value"] in {6.0, 1.0}}
    child = {row["incarnation"] for row in found if row["value"] in {3.0, 4.0, 5.0}}
    assert len(parent) == len(child) == 1 != len(parent | child)
    assert [row["step"] for row in rows(place.spool, "steps")] == [7]
    assert "in the child" in {row["event"] for row in rows(place.spool, "events")}
    assert list(place.local.rglob("*.open")) == []
    assert totals(place.spool).keys() == parent | child
    check_books(place.spool)


def test_a_killed_child_loses_nothing_it_acknowledged(place):
    """SIGKILL in a child costs no row of it."""
    run = place.start()
    assert in_child(lambda: [run.log(x=float(n)) for n in range(500)], then=-signal.SIGKILL) == signal.SIGKILL
    run.close()
    assert sorted(row["value"] for row in rows(place.spool, "scalars")) == [float(n) for n in range(500)]


def test_a_child_that_outlives_its_parent_is_recovered_later(place):
    """A child that still runs when its parent closes keeps its stream; recovery takes it once it is dead."""
    run = place.start()
    reader, writer = os.pipe()
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        run.log(x=1.0)
        os.write(tell, b".")
        os.read(reader, 1)
        os._exit(0)
    os.read(ready, 1)
    run.close()
    assert recover(place.local, place.spool).alive == 1
    os.write(writer, b".")
    os.waitpid(pid, 0)
    assert recover(place.local, place.spool).rows == 1
    assert [row["value"] for row in rows(place.spool, "scalars")] == [1.0]
    for fd in (reader, writer, ready, tell):
        os.close(fd)


def test_a_fork_in_the_middle_of_a_step_is_counted_in_the_child(place):
    """Step and phase that were begun before the fork are recorded by the parent alone; the child counts them."""
    run = place.start()
    with run.step(1), run.phase("data"):
        pid = os.fork()
        if pid == 0:
            run.log(inside=1.0)
    if pid == 0:
        run.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    run.close()
    assert [row["step"] for row in rows(place.spool, "steps")] == [1]
    assert sorted(row["name"] for row in rows(place.spool, "spans")) == ["data", "step"]
    assert [(row["metric"], row["step"]) for row in rows(place.spool, "scalars")] == [("inside", 1)]
    assert gaps(place.spool) == {"steps": {BEGUN_BEFORE_FORK: 1}, "spans": {BEGUN_BEFORE_FORK: 2}}
    check_books(place.spool)


def test_what_a_child_could_not_record_is_counted(place):
    """Gaps of a child that ends without any clean-up are written down at once."""
    run = place.start()
    assert in_child(lambda: [run.log(x="text") for _ in range(3)]) == 0
    run.close()
    assert gaps(place.spool) == {"scalars": {"bad value": 3}}
    check_books(place.spool)


def test_a_child_that_exits_normally_sends_nothing_itself(place):
    """A child that closes, at exit even, seals and uploads nothing; its parent does."""
    run = place.start()
    process = multiprocessing.get_context("fork").Process(target=lambda: (run.log(x=1.0), run.close()))
    process.start()
    process.join()
    process.close()
    assert segments(place.spool) == []
    run.close()
    assert [row["value"] for row in rows(place.spool, "scalars")] == [1.0]


def test_children_fill_files_without_anybody_to_seal_them(place):
    """A child that records more than a file holds leaves several files, all of which are adopted."""
    run = place.start()

    def work():
        handle = run.scalar("x")
        for number in range(200_000):
            handle.add(float(number))

    assert in_child(work) == 0
    run.close()
    assert len(segments(place.spool, "scalars")) >= 2
    assert sum(segment.rows.num_rows for segment in segments(place.spool, "scalars")) == 200_000


@pytest.mark.slow
def test_forks_among_busy_threads(place):
    """Children are forked while threads record: no deadlock, and every row is there, once."""
    run = place.start(seal_every_s=0.05)
    stop, counts = threading.Event(), [0, 0]

    def work(thread):
        while not stop.wait(0.0001):
            run.log({f"of/{thread}": 1.0, "both": 1.0})
            with run.phase("busy"):
                run.event("tick")
            counts[thread] += 1

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for number in range(15):
        assert in_child(lambda number=number: run.log(child=float(number))) == 0
    stop.set()
    for thread in threads:
        thread.join()
    run.close()
    found = [row["metric"] for row in rows(place.spool, "scalars")]
    assert found.count("child") == 15
    assert found.count("both") == sum(counts)
    assert sum(row["event"] == "tick" for row in rows(place.spool, "events")) == sum(counts)
    check_books(place.spool)


def test_a_grandchild_is_adopted_too(place):
    """Children of children belong to the same family."""
    run = place.start()
    assert in_child(lambda: in_child(lambda: run.log(x=1.0))) == 0
    run.close()
    assert [row["value"] for row in rows(place.spool, "scalars")] == [1.0]
