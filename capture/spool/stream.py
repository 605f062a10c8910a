"""Stream: the folder of one incarnation (one process that records).

    <local>/<run>/a<attempt>/r<rank>-<incarnation>/
        owner.json                                  locked while its process lives
        meta.frames                                 identity, anchors, definitions, gaps, what was sealed
        <lane>.spare                                prepared, empty
        <lane>-<segment>.open                       slots or frames being written
        <table>-<segment>~<date>~<rows>~<sha256>.sealed   Parquet, to be uploaded; encrypted: ….<key id>.sealed
        ….acked                                     uploaded, about to be deleted; by the stream's process if it lives
        ….dropped                                   given up for lack of room, about to be counted and deleted

The state of a file is its name and changes by rename alone. A local name leaves out what the folder says: with run,
table and date a segment's full name can pass the 255 bytes that file systems allow.
"""

import contextlib
import errno
import itertools
import os
import secrets
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from ranklake.capture.common.layouts import table_of
from ranklake.capture.spool.clock import Anchor, asleep_between, read_anchor, read_clock, step_between
from ranklake.capture.spool.files import is_mine, sync_folder, with_rights_of
from ranklake.capture.spool.frames import FrameFile, Scan
from ranklake.capture.spool.owner import HELD, Owner, OwnerLock, boot_id, start_ticks
from ranklake.capture.spool.stream_files import ACKED, GONE, NEW, OPEN, StreamName, empty_folders, leftover_folders
from ranklake.segments.segment import ClockReading

META_FILE: Final = "meta.frames"

_STALE_S: Final = 3600.0
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


def new_incarnation() -> int:
    """Return a random positive 63-bit number."""
    return secrets.randbits(62) + 1


@dataclass
class Stream:
    """A stream being written by this process.

    Attributes
    ----------
    name, folder
        Whose it is and where.
    inode
        Of the folder: if another one is found at its path, or none, the stream has vanished.
    waiting
        Rows of sealed segments that are not uploaded, by file name, so that they can be counted if the folder vanishes.
    files_named
        How many files were given a name so far.
    sealed_rows
        Rows in segments that were sealed so far.
    clock_step_ns
        By how much the wall clock was set, as far as no event tells it yet.
    """

    name: StreamName
    folder: Path
    owner: Owner
    inode: int
    _lock_file: OwnerLock
    _meta: FrameFile
    waiting: dict[str, tuple[str, int]] = field(default_factory=dict)
    files_named: int = 0
    sealed_rows: int = 0
    clock_step_ns: int = 0
    _last_anchor: tuple[Anchor, ClockReading] | None = None
    _names_synced: int = -1
    _names_again: bool = False
    _numbers: "defaultdict[str, itertools.count[int]]" = field(default_factory=lambda: defaultdict(itertools.count))
    _mutex: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def create(  # noqa: PLR0913 - a stream is who writes it and how
        cls,
        root: Path,
        run: str,
        attempt: int,
        rank: int,
        *,
        world_size: int,
        spool: str,
        family: int,
        worker: bool,
        encrypted: bool = False,
        signed: bool = False,
    ) -> Self:
        """Make a stream's folder, already locked when it appears.

        Raises `OSError`, leaving nothing a reader would take up.
        """
        name = StreamName(run, attempt, rank, new_incarnation())
        folder = name.folder(root)
        anchor = read_anchor()
        pid = os.getpid()
        owner = Owner(
            pid=pid,
            start_ticks=start_ticks(pid),
            boot_id=boot_id(),
            role="worker" if worker else "main",
            family=family,
            spool=spool,
            world_size=world_size,
            anchor=anchor,
            encrypted=encrypted,
            signed=signed,
        )
        hidden = folder.with_name(NEW + folder.name)
        _make(hidden)
        HELD.take(name.incarnation)
        lock = None
        try:
            lock = OwnerLock.create(hidden, owner, name.incarnation)
            meta = FrameFile(hidden / META_FILE)
            hidden.rename(folder)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            if lock is not None:
                lock.release()
            HELD.drop(name.incarnation)
            raise
        stream = cls(name, folder, owner, folder.stat().st_ino, lock, meta)
        reading = read_clock(anchor[0])
        stream.note(anchor_frame(anchor, reading))
        stream._last_anchor = anchor, reading
        return stream

    def note(self, facts: dict[str, Any]) -> None:
        """Append a frame to meta.frames. Raises `OSError`, or what `frames.pack` raises."""
        with self._mutex:
            self._meta.append(facts)
            self.sealed_rows += facts["r"] if facts.get("k") == "sealed" else 0

    def anchor(self) -> None:
        """Note both clocks, and what the kernel says of them. Raises `OSError`."""
        anchor = read_anchor()
        reading = read_clock(anchor[0])
        self.note(anchor_frame(anchor, reading))
        before, self._last_anchor = self._last_anchor, (anchor, reading)
        if before is not None:
            self.clock_step_ns += step_between(before[0], anchor, asleep_between(before[1], reading))

    def note_gaps(self, counts: "Counter[tuple[str, str]]") -> None:
        """Note gap counts, all in one frame, so that they are written down whole or not. Raises `OSError`."""
        self.note({"k": "gaps", "n": [[table, reason, rows] for (table, reason), rows in sorted(counts.items())]})

    def next_segment(self, table: str) -> int:
        """Return a segment number that this table has not had."""
        return next(self._numbers[table])

    def next_open(self, lane: str) -> Path:
        """Return the path of a lane's next file."""
        self.files_named += 1
        return self.folder / f"{lane}-{self.next_segment(table_of(lane)):06d}{OPEN}"

    def note_acks(self) -> None:
        """Take note of what the agent has sent, and delete it. Raises `OSError`."""
        for name in list(self.waiting):
            acked = (self.folder / name).with_suffix(ACKED)
            if acked.exists():
                self.waiting.pop(name, None)
                acked.unlink(missing_ok=True)

    def is_gone(self) -> bool:
        """Whether the folder is no longer the one that was made; one that cannot be asked for now has not vanished.

        What a server that does not answer has may yet be sealed, so it must not be counted as lost.
        """
        try:
            return self.folder.stat().st_ino != self.inode
        except OSError as error:
            return error.errno in _NOT_THERE

    def frames(self) -> Scan:
        """Read meta.frames back, wherever it is now. Raises `OSError`."""
        with self._mutex:
            return self._meta.read()

    def sync(self) -> None:
        """Bring meta.frames to the disk. Raises `OSError`."""
        self._meta.sync()

    def sync_names(self) -> None:
        """Bring the names of new files, and at first of the folder itself, to the disk. Raises `OSError`.

        A file gets its name a moment before it is made, so after each new name the next round syncs once more.
        """
        named = self.files_named
        if named == self._names_synced and not self._names_again:
            return
        sync_folder(self.folder)
        if self._names_synced < 0:
            self._lock_file.sync()
            for parent in self.folder.parents[:3]:
                sync_folder(parent)
        self._names_again = named != self._names_synced
        self._names_synced = named

    def close(self) -> None:
        """Close files and give up the lock; the folder stays for whoever adopts it."""
        self._meta.close()
        with contextlib.suppress(OSError):  # then it is adopted when the process has ended
            self._lock_file.resign(self.owner)
        self._lock_file.release()

    def give_to(self, name: StreamName, world_size: int) -> Path:
        """Let go of the stream, which turned out to be another's; return its folder, for whoever seals it.

        Nothing of it may be sealed yet. Raises `OSError`; the stream is let go of all the same.
        """
        before, self.owner = self.folder, replace(self.owner, world_size=world_size)
        folder = name.folder(before.parents[2])
        try:  # while it is locked: nobody may take it for the other's
            if folder != before:
                hidden = folder.with_name(NEW + folder.name)
                _make(hidden)
                before.rename(folder)
                hidden.rmdir()
                _remove_empty(before)
                self.folder, self.name = folder, name
        finally:
            self.close()
        return self.folder

    def discard(self) -> None:
        """Remove the stream, all of whose rows are safe elsewhere, and give up the lock."""
        discard(self.folder)
        self.close()


def anchor_frame(anchor: Anchor, reading: ClockReading) -> dict[str, Any]:
    """Return the frame that holds an anchor; what the kernel does not say is left out."""
    _, *reading_fields = astuple(reading)
    return {
        "k": "anchor",
        "m": anchor[0],
        "w": anchor[1],
        **({"c": reading_fields} if any(x is not None for x in reading_fields) else {}),
    }


def _make(folder: Path) -> None:
    """Make a folder and its parents, which another process may be removing: its own stream there was the last."""
    for tries_left in (2, 1, 0):
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileNotFoundError:
            if not tries_left:
                raise
        else:
            return


def discard(folder: Path) -> None:
    """Remove a finished stream.

    It is renamed first: a stream without its meta.frames, left by a process killed in here, would look like one
    whose end nobody had recorded.
    """
    gone = folder.with_name(GONE + folder.name)
    try:
        folder.rename(gone)
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True)
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    for parent in (folder.parent, folder.parent.parent):  # the last stream of an attempt, of a run
        try:
            parent.rmdir()
        except OSError:
            return


def sweep(root: Path, is_ours: Callable[[Path], bool] = is_mine) -> None:
    """Remove streams that were never opened or are half removed, left by killed processes; `is_ours` as of `streams`.

    Likewise folders of attempts and runs that are empty: whoever is about to make a stream there tries again.
    """
    for folder in leftover_folders(root, GONE, is_ours):
        with contextlib.suppress(OSError), with_rights_of(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in leftover_folders(root, NEW, is_ours):
        with contextlib.suppress(OSError), with_rights_of(folder):
            if time.time() - folder.stat().st_mtime > _STALE_S:
                shutil.rmtree(folder, ignore_errors=True)
    for folder in empty_folders(root, is_ours):
        with contextlib.suppress(OSError), with_rights_of(folder):
            folder.rmdir()
