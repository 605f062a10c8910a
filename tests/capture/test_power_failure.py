"""Power failure, on a model of a disk: what was synced is there; of all else, any page may be, or not.

The model watches a real run. A sync brings to the disk what the file held when the call began; syncing a folder, its
names. When the power fails, each page is what was synced or what the page cache held, by chance; each folder's names
are those that were synced or the current ones (journals keep the order of names). Then real recovery runs on that.
"""

import contextlib
import json
import os
import random
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recorded import gaps, rows

from ranklake.capture.lanes import slots
from ranklake.capture.lanes.slots import SlotFile
from ranklake.capture.recording.recorder import Recorder

PAGE = 4096
CUTS = 6
SEED = int(os.environ.get("RANKLAKE_SEED", str(random.SystemRandom().randrange(10**9))))


class Disk:
    """What a power failure would leave.

    Attributes
    ----------
    synced
        Bytes that are on the disk, by inode. Every inode is held open, so that no other file gets its number.
    names
        Names and inodes that are on the disk, by inode of the folder.
    rounds
        Begins of the syncing rounds that have ended.
    """

    def __init__(self, monkeypatch):
        self.synced, self.names, self.rounds = {}, {}, []
        self._held, self._maps = {}, {}
        self._watch(monkeypatch)

    def _watch(self, monkeypatch):
        fsync, fdatasync, msync = os.fsync, os.fdatasync, slots.sync
        make, around = SlotFile.__init__, Recorder.sync

        def synced(call, fd):
            facts = os.fstat(fd)
            if stat.S_ISDIR(facts.st_mode):
                before = self._listed(Path(f"/proc/self/fd/{fd}").readlink())
                call(fd)
                self.names[facts.st_ino] = before
                return
            self._hold(Path(f"/proc/self/fd/{fd}"), facts.st_ino)
            before = self._content(facts.st_ino)
            call(fd)
            self.synced[facts.st_ino] = before

        def mapped(self_, *args):
            make(self_, *args)
            facts = os.fstat(self_._fd)
            self._maps[id(self_._map)] = facts.st_ino
            self._hold(self_.path, facts.st_ino)

        def map_synced(mapping, begin, end):
            inode = self._maps[id(mapping)]
            end = min(-(-end // PAGE) * PAGE, len(mapping))
            before = mapping[begin:end]
            msync(mapping, begin, end)
            old = self.synced.get(inode, b"").ljust(end, b"\0")
            self.synced[inode] = old[:begin] + before + old[end:]

        def round_(self_):
            began = time.monotonic()
            around(self_)
            self.rounds.append(began)

        monkeypatch.setattr(os, "fsync", lambda fd: synced(fsync, fd))
        monkeypatch.setattr(os, "fdatasync", lambda fd: synced(fdatasync, fd))
        monkeypatch.setattr(slots, "sync", map_synced)
        monkeypatch.setattr(SlotFile, "__init__", mapped)
        monkeypatch.setattr(Recorder, "sync", round_)

    def _hold(self, path, inode):
        if inode not in self._held:
            fd = os.open(path, os.O_RDONLY)
            if self._held.setdefault(inode, fd) != fd:
                os.close(fd)

    def _content(self, inode):
        fd = self._held[inode]
        return os.pread(fd, os.fstat(fd).st_size, 0)

    def _listed(self, folder):
        found = {}
        for entry in os.scandir(folder):
            try:
                if not entry.is_dir():
                    self._hold(Path(entry.path), entry.inode())
                found[entry.name] = entry.inode()
            except FileNotFoundError:
                continue
        return found

    def fail(self, folder, image, rng):
        """Write to `image` what may be left of a folder."""
        image.mkdir()
        on_disk = self.names.get(folder.stat().st_ino, {})
        for name, inode in rng.choice([on_disk, self._listed(folder)]).items():
            if inode in self._held:
                (image / name).write_bytes(self._left(inode, rng))
            elif (folder / name).is_dir():
                self.fail(folder / name, image / name, rng)

    def _left(self, inode, rng):
        disk, cache = self.synced.get(inode, b""), self._content(inode)
        size = rng.choice([len(disk), max(len(disk), len(cache))])
        left = bytearray(disk[:size].ljust(size, b"\0"))
        share = rng.choice([0.0, 0.5, 1.0])
        for at in range(0, size, PAGE):
            if rng.random() < share:
                page = cache[at : min(at + PAGE, size)]
                left[at : at + len(page)] = page
        return bytes(left)

    def close(self):
        """Let go of all files."""
        for fd in self._held.values():
            os.close(fd)


@pytest.fixture
def disk(monkeypatch, place):
    """Give the model; `place` comes first, and is closed last but for it."""
    made = Disk(monkeypatch)
    yield made
    for run in place.runs:
        run.close()
    made.close()


RECOVER = """
import sys
from pathlib import Path
from ranklake.capture.recover import recover
for place in sys.argv[1:]:
    done = recover(Path(place) / "local", Path(place) / "spool")
    assert not done.troubles and not done.left, done
"""


def record(run, count, said, number):
    """Record rows of all kinds; note in `said` when each was acknowledged."""
    handle, many = said["handle"], said["acknowledged"]
    for step in range(number, number + count):
        with run.step(step):
            handle.add(float(step) + 0.5, step)
            run.log({f"m{at}": float(step) for at in range(16)}, step=step)
        if step % 10 == 0:
            run.event("mark", step=step)
        many.append(time.monotonic())
        time.sleep(0.001)


def check(spool, steps_sure, steps_most):
    """Assert that what is sure is there, once, and that nothing is there which was not recorded."""
    steps = [row["step"] for row in rows(spool, "steps")]
    assert len(steps) == len(set(steps))
    assert set(range(steps_sure)) <= set(steps) <= set(range(steps_most))
    values = {}
    for row in rows(spool, "scalars"):
        assert (row["metric"], row["step"]) not in values
        assert row["value"] == row["step"] + (0.5 if row["metric"] == "handle" else 0.0)
        values[row["metric"], row["step"]] = row["value"]
    for metric in ("handle", *(f"m{at}" for at in range(16))):
        assert {step for name, step in values if name == metric} >= set(range(steps_sure))
    marks = [row["step"] for row in rows(spool, "events") if row["event"] == "mark"]
    assert len(marks) == len(set(marks))
    assert set(marks) >= set(range(0, steps_sure, 10))
    spans = [row["step"] for row in rows(spool, "spans")]
    assert len(spans) == len(set(spans))
    assert set(spans) >= set(range(steps_sure))
    assert {reason for reasons in gaps(spool).values() for reason in reasons} <= {"damaged"}


@pytest.mark.slow
@pytest.mark.parametrize("writes", ["mmap", "records"])
def test_a_power_failure_costs_what_was_not_synced(place, disk, tmp_path, writes, capsys):
    """Everything acknowledged before the last round of syncing is recovered, whenever the power fails, once."""
    rng = random.Random(SEED)
    with capsys.disabled():
        print(f"\npower failures with {writes}, RANKLAKE_SEED={SEED}")
    run = place.start(spool_writes=writes, sync_every_s=0.2, seal_every_s=0.7, disk_budget_bytes=4 << 20)
    said = {"handle": run.scalar("handle"), "acknowledged": []}
    cuts, waited = [], []
    for cut in range(CUTS):
        record(run, rng.randrange(100, 500), said, len(said["acknowledged"]))
        image = tmp_path / f"cut-{cut}"
        image.mkdir()
        last, now = disk.rounds[-1], time.monotonic()
        disk.fail(place.local, image / "local", rng)
        subprocess.run(["cp", "-r", str(place.spool), str(image / "spool")], check=False, capture_output=True)
        sure = sum(moment < last for moment in said["acknowledged"])
        cuts.append((image, sure, len(said["acknowledged"])))
        waited.append(now - last)
    run.close()
    for image, _, _ in cuts:
        for owner in image.rglob("owner.json"):
            with contextlib.suppress(ValueError):  # not on the disk yet
                facts = json.loads(owner.read_text())
                owner.write_text(json.dumps(facts | {"boot_id": "before", "spool": str(image / "spool")}))
    command = [sys.executable, "-c", RECOVER, *(str(image) for image, _, _ in cuts)]
    subprocess.run(command, check=True, timeout=120)
    for image, sure, most in cuts:
        check(image / "spool", sure, most)
    assert sum(sure for _, sure, _ in cuts) > 0
    with capsys.disabled():
        print(f"{CUTS} failures, at most {max(waited):.3f} s of rows not sure with sync_every_s=0.2")
