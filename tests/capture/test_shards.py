"""Shards: each thread has slot files of its own, as an interpreter without a GIL needs it."""

import os
import threading

import pytest
from recorded import rows


@pytest.fixture
def sharded(monkeypatch):
    """Have every run record so, also in children."""
    monkeypatch.setenv("RANKLAKE_CAPTURE_SHARDS", "always")


def open_scalars(place):
    return sorted(place.local.rglob("scalars-*.open"))


def test_threads_write_to_files_of_their_own_and_nothing_is_lost(place, sharded):
    """Eight threads at once, cuts in between: each has its own file, and every value is stored once."""
    run = place.start(seal_every_s=0.05)
    handles = [run.scalar(f"bench/thread_{n}") for n in range(8)]
    ready = threading.Barrier(9)

    def write(n):
        handles[n].add(-1.0, 0)
        ready.wait()  # all have a file now
        ready.wait()
        for step in range(3000):
            handles[n].add(float(step), step)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    ready.wait()
    files = {path.name for path in place.local.rglob("scalars-*") if not path.name.endswith(".spare")}
    assert len(files) >= 8
    ready.wait()
    for thread in threads:
        thread.join()
    run.close()
    assert run.gaps() == {}
    found = rows(place.spool, "scalars")
    for n in range(8):
        mine = [row for row in found if row["metric"] == f"bench/thread_{n}"]
        assert sorted(row["value"] for row in mine) == [-1.0, *map(float, range(3000))]


def test_a_thread_that_ended_keeps_no_file(place, sharded):
    """Threads that come and go leave no open files behind: theirs are sealed and not replaced."""
    run = place.start(seal_every_s=3600)
    for n in range(20):
        thread = threading.Thread(target=run.scalar("bench/value").add, args=(float(n), n))
        thread.start()
        thread.join()
    assert run.flush()
    assert run.flush()
    assert open_scalars(place) == []
    assert len(run.recording.recorder.slots["scalars"]._open_shards()) == 0
    run.close()
    assert sorted(row["value"] for row in rows(place.spool, "scalars")) == [float(n) for n in range(20)]


def test_a_forked_child_has_its_own(place, sharded):
    """A child of a process whose threads record gets a stream of its own; both sides' values are stored once."""
    run = place.start()
    handle = run.scalar("bench/value")
    handle.add(1.0, 1)
    pid = os.fork()
    if pid == 0:
        handle.add(2.0, 2)
        thread = threading.Thread(target=handle.add, args=(3.0, 3))
        thread.start()
        thread.join()
        os._exit(0)
    os.waitpid(pid, 0)
    handle.add(4.0, 4)
    run.close()
    assert sorted(row["value"] for row in rows(place.spool, "scalars")) == [1.0, 2.0, 3.0, 4.0]


def test_after_the_close_every_thread_is_refused(place, sharded):
    """A thread that comes after the close opens no file; its values are counted."""
    run = place.start()
    handle = run.scalar("bench/value")
    handle.add(1.0, 1)
    run.close()
    thread = threading.Thread(target=handle.add, args=(2.0, 2))
    thread.start()
    thread.join()
    assert run.gaps() == {"scalars": {"after close": 1}}
