"""Written: records survive what mapped slots survive, and one that is damaged costs itself alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import check_books, gaps, rows

from ranklake.capture.common.layouts import INTERVALS, SCALARS
from ranklake.capture.lanes.written import RecordFile, slots_in
from ranklake.capture.recover import recover
from ranklake.capture.spool.locations import file_system, is_network

PACK = SCALARS.packer.pack_into
MARK = 0x6C6B6E72


def slot(value):
    """Return the bytes of a slot of scalars."""
    made = bytearray(SCALARS.slot_bytes)
    PACK(made, 0, 1, 2, value, 3, MARK)
    return made


def write(path, count):
    """Write records to a new file and return its bytes."""
    file = RecordFile(path, SCALARS, 4096)
    for number in range(count):
        file.write(slot(float(number)))
    file.retire(None)
    raw = path.read_bytes()
    path.unlink()
    return raw


@given(data=st.data())
def test_a_flipped_bit_costs_one_record(tmp_path_factory, data):
    """Whichever bit of a file is wrong, all other records are read, and one is counted as damaged."""
    raw = bytearray(write(tmp_path_factory.getbasetemp() / "flipped", 20))
    at = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[at // 8] ^= 1 << at % 8
    slots, damaged = slots_in(bytes(raw), SCALARS)
    hit = at // 8 // (SCALARS.slot_bytes + 4)
    assert damaged == 1
    assert slots["value"][slots["mark"] == MARK].tolist() == [float(n) for n in range(20) if n != hit]


@given(length=st.integers(0, 20 * 36))
def test_a_torn_end_is_no_damage(tmp_path_factory, length):
    """A file cut anywhere gives its whole records; the torn one's call had not returned."""
    raw = write(tmp_path_factory.getbasetemp() / "torn", 20)[:length]
    slots, damaged = slots_in(raw, SCALARS)
    assert (len(slots), damaged) == (length // 36, 0)


def test_a_full_disk_leaves_no_half_record(tmp_path):
    """A record that is written in part is taken back; the next one that fits is whole."""
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from ranklake.capture.lanes.written import RecordFile\n"
        "from ranklake.capture.common.layouts import SCALARS\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "file = RecordFile(Path(sys.argv[1]), SCALARS)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        "done = 0\n"
        "for _ in range(10):\n"
        "    try: file.write(bytes(32)); done += 1\n"
        "    except OSError: pass\n"
        "print(done, file.position())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "full")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["2", "72"]
    assert (tmp_path / "full").stat().st_size == 72


KILLED = """
import os, signal, sys
from ranklake import capture
run = capture.start(run="r", spool=sys.argv[1], local_dir=sys.argv[2], spool_writes="records")
folded, sizes, read = run.aggregate("wait", every_s=3600), run.histogram("sizes", every_s=3600), run.counter("read")
for number in range(1000):
    folded.add(float(number))
    sizes.record(float(number + 1))
    read.add(2)
    run.log(a=1.0, b=2.0, step=number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_all_kinds_of_rows_survive_a_kill(tmp_path):
    """Rows, counters, intervals and histograms of a killed process are whole, written again in place or not."""
    spool, local = tmp_path / "spool", tmp_path / "local"
    done = subprocess.run([sys.executable, "-c", KILLED, str(spool), str(local)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert list(local.rglob("*_written-*.open"))
    assert recover(local, spool).troubles == ()
    found = rows(spool, "scalars")
    (folded,) = [row for row in found if row["metric"] == "wait"]
    assert (folded["agg_count"], folded["agg_min"], folded["agg_max"]) == (1000, 0.0, 999.0)
    (sizes,) = rows(spool, "distributions")
    assert (sizes["count"], sizes["min"], sizes["max"]) == (1000, 1.0, 1000.0)
    assert max(row["value"] for row in found if row["metric"] == "read") == 2000
    assert sorted(row["step"] for row in found if row["metric"] == "a") == list(range(1000))
    assert gaps(spool) == {}
    check_books(spool)


def test_a_record_is_not_written_again_once_its_file_is_taken(tmp_path):
    """What is sealed does not change any more: the writer is told, and begins another slot."""
    file = RecordFile(tmp_path / "file", INTERVALS)
    offset = file.write(bytes(INTERVALS.slot_bytes))
    assert file.rewrite(offset, b"x")
    file.retire(None)
    before = (tmp_path / "file").read_bytes()
    assert not file.rewrite(offset, b"y")
    assert (tmp_path / "file").read_bytes() == before


MOUNTS = r"""
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
40 21 0:35 / /home rw shared:20 - nfs4 filer:/home rw,vers=4.2
41 40 0:36 / /home/me/scratch rw - tmpfs tmpfs rw
42 21 0:37 / /mnt/with\040space rw - fuse.sshfs host:/ rw
43 21 0:38 / /data rw - ext4 /dev/sdb rw
44 21 0:39 / /data rw - lustre mgs@tcp:/fs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/tmp/x", "ext4"),
        ("/home/me/run", "nfs4"),
        ("/home/me/scratch/a", "tmpfs"),
        ("/homework", "ext4"),
        ("/mnt/with space/a", "fuse.sshfs"),
        ("/data/a", "lustre"),
    ],
)
def test_the_file_system_of_a_folder(path, kind):
    """The deepest mount counts, of those at one place the last one."""
    assert file_system(Path(path), MOUNTS) == kind


def test_local_disks_are_mapped(tmp_path, monkeypatch, place):
    """A local folder is written to by maps, and by records where the mount table says that it is on a network."""
    assert not is_network(tmp_path)
    listed = tmp_path / "mountinfo"
    listed.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {os.path.realpath(tmp_path)} rw - nfs4 b:/ rw\n")
    monkeypatch.setattr("ranklake.capture.spool.locations.MOUNTS", listed)
    assert is_network(tmp_path)
    run = place.start()
    run.log(x=1.0)
    assert list(place.local.rglob("scalars_written-*.open"))
    run.close()
    assert [row["value"] for row in rows(place.spool, "scalars")] == [1.0]
