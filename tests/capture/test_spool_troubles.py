"""A local spool that vanishes, fills up or cannot be written: training goes on, and every row is counted."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from recorded import check_books, gaps, rows, segments

from ranklake.capture.common.gaps import AFTER_CLOSE, BAD_VALUE, SPOOL_FULL, SPOOL_REFUSED, SPOOL_VANISHED
from ranklake.capture.recover import recover
from ranklake.capture.spool.stream import META_FILE
from ranklake.capture.spool.stream_files import streams
from ranklake.segments.segment import SegmentName


def vanish(folder):
    """Take a folder away at one moment, whatever threads are making in it."""
    gone = folder.with_name(f"taken-away-{folder.name}")
    folder.rename(gone)
    while gone.exists():
        shutil.rmtree(gone, ignore_errors=True)


def wait_for(condition, timeout_s=60):
    """Wait until something holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_folder_that_vanishes_is_counted_and_replaced(place):
    """Rows of the lost folder are gaps, to the row; later rows are recorded into a new one."""
    run = place.start(seal_every_s=0.1)
    handle = run.scalar("x")
    run.flush()
    for number in range(100):
        handle.add(1.0, number)
        run.log(a=1.0, b=2.0, c=3.0)
    with run.step(1):
        pass
    run.event("lost")
    vanish(place.local)
    wait_for(run.gaps)
    for number in range(50):
        handle.add(2.0, number)
    run.close()
    found = rows(place.spool, "scalars")
    lost = run.gaps()
    assert {reason for reasons in lost.values() for reason in reasons} == {SPOOL_VANISHED}
    assert len(found) + lost["scalars"][SPOOL_VANISHED] == 100 * 4 + 50
    assert [row["value"] for row in found if row["value"] == 2.0] == [2.0] * 50
    assert gaps(place.spool) == lost
    check_books(place.spool)


def test_a_folder_that_vanishes_just_before_the_close(place):
    """The last rows are counted, too."""
    run = place.start()
    with run.step(1), run.phase("forward"):
        run.log(x=1.0)
    vanish(place.local)
    run.close()
    assert rows(place.spool, "steps") == []
    lost = gaps(place.spool)
    assert lost["steps"] == {SPOOL_VANISHED: 1}
    assert lost["spans"] == {SPOOL_VANISHED: 2}
    assert lost["scalars"] == {SPOOL_VANISHED: 1}
    assert lost["runs"] == {SPOOL_VANISHED: 1}
    check_books(place.spool)


def test_a_folder_that_cannot_come_back(place, caplog):
    """With its place taken by a file, rows are counted in memory, training goes on, and the loss is told at exit."""
    run = place.start(seal_every_s=0.1)
    vanish(place.local)
    place.local.write_text("taken")
    wait_for(run.gaps)
    for number in range(100):
        with run.step(number):
            run.log(x=1.0)
    run.close(timeout_s=0.5)
    counted = run.gaps()
    assert sum(counted["steps"].values()) == 100
    assert sum(counted["scalars"].values()) == 100
    run.recording.at_exit()
    assert f"{sum(sum(reasons.values()) for reasons in counted.values())} gaps are in no segment" in caplog.text


# A limit on file sizes makes every allocation beyond it fail, as a full disk does, in this process alone.
FULL = """
import json, resource, sys
from ranklake import capture
run = capture.start(job="j", run="full", spool=sys.argv[1], local_dir=sys.argv[2], seal_every_s=3600)
handle = run.scalar("x")
handle.add(1.0)
run.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
for number in range(300_000):
    handle.add(2.0, number)
run.log(a=1.0, b=2.0, c=3.0)
counted = run.gaps()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
run.close()
print(json.dumps(counted))
"""


@pytest.mark.slow
def test_a_full_disk_is_counted_to_the_row(tmp_path):
    """When no file can be made any more, each row is one gap; recorded and counted are all there is."""
    command = [sys.executable, "-c", FULL, str(tmp_path / "spool"), str(tmp_path / "local")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    counted = json.loads(done.stdout)
    stored = sum(segment.rows.num_rows for segment in segments(tmp_path / "spool", "scalars"))
    assert set(counted["scalars"]) == {SPOOL_FULL}
    assert counted["scalars"][SPOOL_FULL] > 1000
    assert stored + counted["scalars"][SPOOL_FULL] == 300_000 + 1 + 3
    assert gaps(tmp_path / "spool")["scalars"] == counted["scalars"]
    check_books(tmp_path / "spool")
    assert done.stderr.count(SPOOL_FULL) == 1


# A file system of 48 MiB, which something else fills to the last page while the run records in every way.
SMALL_DISK = """
import json, pathlib, sys, time
from collections import Counter
from ranklake import capture
spool, local = sys.argv[1:3]
run = capture.start(job="j", run="full", spool=spool, local_dir=local + "/spool", seal_every_s=0.2)
handle, folded, many, forward = run.scalar("x"), run.aggregate("y"), run.histogram("z"), run.phase("forward")
attempted = Counter()

def record(rounds):
    for number in range(rounds):
        with run.step(number), forward:
            run.log(a=1.0, b=2.0, c=3.0)
        for _ in range(20):
            handle.add(1.0, number)
        folded.add(1.0)
        many.record(1.0)
        run.event("tick")
    attempted.update(steps=rounds, spans=2 * rounds, scalars=24 * rounds, distributions=rounds, events=rounds)

record(100)
run.flush()
with pathlib.Path(local, "filler").open("wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
deadline = time.monotonic() + 60
while len(run.gaps()) < 5 and time.monotonic() < deadline:  # one table after the other is full
    record(100)
pathlib.Path(local, "filler").unlink()
full = run.gaps()
time.sleep(1.2)  # a lane asks for a file once a second
record(102)
run.close(30)
print(json.dumps([attempted, full, run.gaps(), 101]))
"""
MOUNT = 'mount -t tmpfs -o size=48m tmpfs "$2" && exec "$0" -c "$3" "$1" "$2"'


def may_mount():
    """Say whether a process may have a file system of its own here."""
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and not subprocess.run([unshare, "-rm", "true"], check=False, capture_output=True).returncode
    )


@pytest.mark.skipif(not may_mount(), reason="needs a mount namespace")
@pytest.mark.slow
def test_a_file_system_without_a_page_to_spare(tmp_path):
    """Every way of recording goes on, all that was attempted is stored or counted, and what comes later is recorded."""
    (tmp_path / "local").mkdir()
    command = ["unshare", "-rm", "sh", "-c", MOUNT, sys.executable, str(tmp_path / "spool"), str(tmp_path / "local")]
    done = subprocess.run([*command, SMALL_DISK], capture_output=True, text=True, check=True, timeout=150)
    attempted, full, counted, last_step = json.loads(done.stdout)
    assert set(full) == set(attempted)
    assert last_step in {row["step"] for row in rows(tmp_path / "spool", "steps")}
    assert {reason for reasons in counted.values() for reason in reasons} == {SPOOL_FULL}
    assert gaps(tmp_path / "spool") == counted
    assert "Traceback" not in done.stderr
    for table, rows_due in attempted.items():
        kept = rows(tmp_path / "spool", table)
        if table == "distributions":
            stored = sum(row["count"] for row in kept)
        elif table == "events":
            stored = sum(row["event"] == "tick" for row in kept)
        else:
            # Steps that begin anew are told, and what was told is a metric of ours.
            stored = sum(row.get("agg_count") or 1 for row in kept if row.get("metric") != "ranklake/misuses")
        more = stored + sum(counted[table].values()) - rows_due
        # Events that tell of gaps are attempted, too, each second one for a table.
        assert 0 <= more <= 5 * 60 if table == "events" else more == 0, (table, more)
    check_books(tmp_path / "spool")


# Root may write anywhere, so the test becomes somebody else, with all modules loaded.
READ_ONLY = """
import json, os, sys, time
from ranklake import capture
import encodings.utf_8_sig  # who drops rights may not read modules then
import ranklake.capture.recording.threads, ranklake.capture.training.start
os.setgid(65534); os.setuid(65534)
run = capture.start(job="j", run="r", spool=sys.argv[1], local_dir=sys.argv[2])
handle = run.scalar("x")
for number in range(10):
    with run.step(number), run.phase("forward"):
        run.log(loss=1.0)
        run.log(a=1.0, b=2.0)
        handle.add(1.0)
run.close()
print(json.dumps(run.gaps()))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_is_not_ours_to_write(tmp_path):
    """A local spool without write permission: every row is counted, one warning says why, training goes on."""
    (tmp_path / "local").mkdir(mode=0o755)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    command = [sys.executable, "-c", READ_ONLY, str(tmp_path / "spool"), str(tmp_path / "local")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    counted = json.loads(done.stdout)
    del counted["events"], counted["runs"]
    assert counted == {
        "scalars": {SPOOL_REFUSED: 30},
        "spans": {SPOOL_REFUSED: 20},
        "steps": {SPOOL_REFUSED: 10},
    }
    assert "Traceback" not in done.stderr


def test_a_folder_that_can_be_had_only_later(place):
    """Rows are counted until the local spool can be used, and recorded from then on; handles made before work then."""
    place.local.parent.mkdir(exist_ok=True)
    place.local.write_text("taken")
    run = place.start(seal_every_s=0.1)
    handle = run.scalar("x")
    for number in range(10):
        handle.add(1.0, number)
    place.local.unlink()
    deadline = time.monotonic() + 60
    while not place.local.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.1)  # a lane asks for a file once a second
    for number in range(20):
        handle.add(2.0, number)
        with run.step(number):
            pass
    run.close()
    assert len(rows(place.spool, "steps")) == 20
    assert [row["value"] for row in rows(place.spool, "scalars")] == [2.0] * 20
    assert sum(gaps(place.spool)["scalars"].values()) == 10
    assert gaps(place.spool) == run.gaps()
    check_books(place.spool)


BEGIN_A_STEP = "run.step(50).__enter__(); run.phase('data').__enter__(); run.log(y=1.0);"
EXITS = {
    "returns": "",
    "closes": "run.close()",
    "os._exit": "import os; os._exit(0)",
    "os._exit in a step": BEGIN_A_STEP + "import os; os._exit(0)",
    "returns in a step": BEGIN_A_STEP,
    "raises": "raise SystemExit(3)",
    "fails": "1 / 0",
    "a thread is recording": "import threading; threading.Thread(target=lambda: [run.log(y=1.0) for _ in range(10**9)],"
    " daemon=True).start()",
    "late": "run.close(); run.log(z=1.0); run.log(z=2.0)",
}


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.slow
def test_however_a_process_ends_its_rows_are_there(tmp_path, how):
    """At every kind of exit the steps that ended are stored or recovered, and the process ends as it would have."""
    script = (
        "import sys; from ranklake import capture\n"
        "run = capture.start(job='j', run='r', spool=sys.argv[1], local_dir=sys.argv[2])\n"
        "for number in range(50):\n"
        "    with run.step(number): run.log(x=1.0)\n" + EXITS[how]
    )
    command = [sys.executable, "-c", script, str(tmp_path / "spool"), str(tmp_path / "local")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == {"raises": 3, "fails": 1}.get(how, 0)
    assert ("Traceback" in done.stderr) == (how == "fails")
    closed = not how.startswith("os._exit")
    recovered = recover(tmp_path / "local", tmp_path / "spool")
    assert recovered.streams == (0 if closed else 1)
    assert [row["step"] for row in rows(tmp_path / "spool", "steps")] == list(range(50))
    ended = [row["event"] for row in rows(tmp_path / "spool", "events")][-1]
    assert ended == ("rank_end" if closed else "abandoned")
    if how.endswith("in a step"):  # it did not end, so it is no row; what was logged in it is
        assert rows(tmp_path / "spool", "scalars")[-1]["metric"] == "y"
    if how == "late":
        assert gaps(tmp_path / "spool") == {"scalars": {"after close": 2}}
    check_books(tmp_path / "spool")


def test_gaps_written_down_in_a_folder_that_vanishes_are_not_forgotten(place):
    """Gaps whose footer was not uploaded are in those of the next stream, sealed already or not."""
    run = place.start(spool=None)  # so nothing is uploaded
    for _ in range(7):
        run.log(a="no number")
    run.flush(0.5)
    for _ in range(5):
        run.log(a="no number")
    run.recording.recorder.gap_notes.flush()
    (folder,) = streams(place.local)
    vanish(folder)
    wait_for(lambda: folder not in list(streams(place.local)) and list(streams(place.local)))
    run.close()
    recover(place.local, place.spool)
    assert gaps(place.spool)["scalars"] == run.gaps()["scalars"] == {BAD_VALUE: 12}
    check_books(place.spool)


class Hesitant(MemoryFileSystem):
    """A store in which a segment of scalars takes until somebody says so."""

    protocol = "hesitant"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    begun, go_on = threading.Event(), threading.Event()

    def pipe_file(self, path, value, **kwargs):
        """Store bytes."""
        if "/scalars/" in path:
            self.begun.set()
            assert self.go_on.wait(30)
        super().pipe_file(path, value, **kwargs)


@pytest.mark.slow
def test_what_is_being_sent_when_its_folder_vanishes_is_stored_and_no_gap(place):
    """A segment whose bytes are on their way is not counted as lost before it is known that it is."""
    fsspec.register_implementation("hesitant", Hesitant, clobber=True)
    run = place.start(spool="hesitant://spool", seal_every_s=0.1)
    for number in range(9):
        run.scalar("x").add(1.0, number)
    assert Hesitant.begun.wait(20)
    (folder,) = streams(place.local)
    vanish(folder)
    run.flush(3.0)  # longer than the sealer waits for it
    Hesitant.go_on.set()
    wait_for(lambda: list(streams(place.local)))
    run.close()
    stored = [SegmentName.parse(path.rpartition("/")[2]).rows for path in Hesitant.store if "/scalars/" in path]
    assert sum(stored) == 9
    assert "scalars" not in run.gaps()


def test_a_folder_that_cannot_be_asked_for_has_not_vanished(place):
    """What may still be there is not counted as lost: it will be sealed once it can be reached."""
    run = place.start()
    stream = run.recording.recorder.stream
    place.local.chmod(0)
    os.seteuid(65534 if os.getuid() == 0 else os.geteuid())
    try:
        with pytest.raises(PermissionError):
            stream.folder.stat()
        assert not stream.is_gone()
    finally:
        os.seteuid(os.getuid())
        place.local.chmod(0o700)
    vanish(stream.folder)
    assert stream.is_gone()


def test_a_damaged_child_holds_up_neither_its_siblings_nor_a_flush(place):
    """What cannot be recovered of one forked child is told; the others are adopted, and a flush gets its answer."""
    run = place.start()
    own = {run.recording.recorder.stream.folder}
    recorded, tell = os.pipe()
    leave, let = os.pipe()
    children = []
    for number in range(2):
        child = os.fork()
        if not child:
            run.scalar("child").add(float(number), number)
            os.write(tell, b".")
            os.read(leave, 1)
            os._exit(0)
        children.append(child)
        os.read(recorded, 1)
    hurt, sound = (folder for folder in streams(place.local) if folder not in own)  # they live: nobody adopts them yet
    (hurt / META_FILE).unlink()
    (hurt / META_FILE).mkdir()
    os.write(let, b"..")
    for child in children:
        os.waitpid(child, 0)
    for end in (recorded, tell, leave, let):
        os.close(end)
    assert run.flush()
    wait_for(lambda: not sound.exists())  # adopted at once, or in the next round, if there was one just before
    assert len(rows(place.spool, "scalars")) == 1


def test_what_is_refused_while_the_last_segments_are_sent_is_counted_in_the_spool(place):
    """The stream has said its totals by then: late gaps get a stream of their own, which recovery sends."""
    fsspec.register_implementation("hesitant", Hesitant, clobber=True)
    Hesitant.store.clear()
    Hesitant.go_on.clear()
    run = place.start(spool="hesitant://late")
    run.log(a=1.0)
    run.close(0.3)
    run.event("late")
    run.log(a=2.0, b=3.0)
    run.recording.at_exit()
    Hesitant.go_on.set()
    wait_for(lambda: run.recording.recorder.stream is None)
    recover(place.local, "hesitant://late")
    for path, file in Hesitant.store.items():
        target = place.spool / path.partition("/late/")[2]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.getvalue())
    assert gaps(place.spool) == run.gaps()
    assert run.gaps()["events"] == {AFTER_CLOSE: 1}
    check_books(place.spool)


def test_a_stream_that_is_given_up_while_it_is_synced_is_no_trouble(place, monkeypatch, caplog):
    """Who syncs finds its folder gone: there is nothing of it to bring to the disk, and nothing to tell."""
    run = place.start(spool=None)
    run.log(a=1.0)
    recorder = run.recording.recorder
    given_up, names = recorder.stream, type(recorder.stream).sync_names

    def too_late(stream):
        if stream is given_up and recorder.stream is given_up:
            recorder.abandon_stream()
            vanish(stream.folder)
            stream._names_synced = -1
        names(stream)

    monkeypatch.setattr(type(given_up), "sync_names", too_late)
    recorder.sync()
    assert recorder.stream is not given_up
    assert not [line for line in caplog.messages if "syncing" in line]
    run.close()
