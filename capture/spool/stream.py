"""Stream: the folder of one incarnation, which is one process that records.

    <local>/<run>/a<attempt>/r<rank>-<incarnation>/
        owner.json                                  locked while its process lives
        meta.frames                                 identity, anchors, definitions, gaps, sealed segments
        <lane>.spare                                prepared, empty
        <lane>-<segment>.open                       slots or frames being written
        <table>-<segment>~<date>~<rows>~<sha256>.sealed   Parquet, to be uploaded; encrypted: ….<key id>.sealed
        ….acked                                     uploaded; the stream's process deletes it, or recovery
        ….dropped                                   evicted to free disk space; to be counted and deleted

The state of a file is its name, and changes only by renaming. Local names omit the facts in the folder's name, because
a segment's full name, with run, table and date, can exceed the 255 bytes that file systems allow.
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

_STALE_AFTER_S: Final = 3600.0
_MISSING_ERRORS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


def new_incarnation() -> int:
    """Return a random positive 63-bit number."""
    return secrets.randbits(62) + 1


@dataclass
class Stream:
    """A stream that this process writes.

    Attributes
    ----------
    name, folder
        Identity of the stream, and its folder.
    inode
        Inode of the folder. If the path has another inode, or none, the stream has vanished.
    waiting
        Table and rows of segments that are not uploaded, by file name, for counting them if the folder vanishes.
    files_named
        Number of files that were given a name so far.
    sealed_rows
        Rows in segments sealed so far.
    clock_step_ns
        Sum of the steps of the wall clock that no event has reported yet.
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
    _is_sync_repeated: bool = False
    _numbers: "defaultdict[str, itertools.count[int]]" = field(default_factory=lambda: defaultdict(itertools.count))
    _mutex: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def create(  # noqa: PLR0913 - a stream has many independent facts
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
        """Create a stream's folder, locked from the moment when it appears.

        Raises `OSError`; a folder that is left behind then is hidden from readers.
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
        _make_folder(hidden)
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
        """Append a frame to meta.frames. Raises `OSError`, and the errors of `frames.pack`."""
        with self._mutex:
            self._meta.append(facts)
            self.sealed_rows += facts["r"] if facts.get("k") == "sealed" else 0

    def anchor(self) -> None:
        """Write a frame with the time of both clocks and the kernel's clock state. Raises `OSError`."""
        anchor = read_anchor()
        reading = read_clock(anchor[0])
        self.note(anchor_frame(anchor, reading))
        before, self._last_anchor = self._last_anchor, (anchor, reading)
        if before is not None:
            self.clock_step_ns += step_between(before[0], anchor, asleep_between(before[1], reading))

    def note_gaps(self, counts: "Counter[tuple[str, str]]") -> None:
        """Write all gap counts in one frame, so that either all or none are written. Raises `OSError`."""
        self.note({"k": "gaps", "n": [[table, reason, rows] for (table, reason), rows in sorted(counts.items())]})

    def next_segment(self, table: str) -> int:
        """Return the next segment number of a table."""
        return next(self._numbers[table])

    def next_open(self, lane: str) -> Path:
        """Return the path of a lane's next file."""
        self.files_named += 1
        return self.folder / f"{lane}-{self.next_segment(table_of(lane)):06d}{OPEN}"

    def note_acks(self) -> None:
        """Delete the segments that the agent has uploaded. Raises `OSError`."""
        for name in list(self.waiting):
            acked = (self.folder / name).with_suffix(ACKED)
            if acked.exists():
                self.waiting.pop(name, None)
                acked.unlink(missing_ok=True)

    def is_gone(self) -> bool:
        """Whether the folder was removed or replaced. False on other errors.

        A file server that does not answer may still have the files, so they must not be counted as lost.
        """
        try:
            return self.folder.stat().st_ino != self.inode
        except OSError as error:
            return error.errno in _MISSING_ERRORS

    def frames(self) -> Scan:
        """Read meta.frames through its open descriptor, even if it was moved. Raises `OSError`."""
        with self._mutex:
            return self._meta.read()

    def sync(self) -> None:
        """Sync meta.frames to disk. Raises `OSError`."""
        self._meta.sync()

    def sync_names(self) -> None:
        """Sync the names of new files to disk; the first call also syncs the folder's own name. Raises `OSError`.

        A name is counted shortly before its file is created, so the next call after a new name syncs again.
        """
        named = self.files_named
        if named == self._names_synced and not self._is_sync_repeated:
            return
        sync_folder(self.folder)
        if self._names_synced < 0:
            self._lock_file.sync()
            for parent in self.folder.parents[:3]:
                sync_folder(parent)
        self._is_sync_repeated = named != self._names_synced
        self._names_synced = named

    def close(self) -> None:
        """Close files and release the lock. The folder is kept for the process that adopts it."""
        self._meta.close()
        with contextlib.suppress(OSError):  # on an error, it is adopted after the process has ended
            self._lock_file.resign(self.owner)
        self._lock_file.release()

    def give_to(self, name: StreamName, world_size: int) -> Path:
        """Rename the stream to another run or rank and release it; return its folder, for sealing.

        No segment of it may be sealed yet. Raises `OSError`; the stream is released in this case, too.
        """
        before, self.owner = self.folder, replace(self.owner, world_size=world_size)
        folder = name.folder(before.parents[2])
        try:  # the rename happens under the lock, so that nobody adopts the stream meanwhile
            if folder != before:
                hidden = folder.with_name(NEW + folder.name)
                _make_folder(hidden)
                before.rename(folder)
                hidden.rmdir()
                _remove_empty(before)
                self.folder, self.name = folder, name
        finally:
            self.close()
        return self.folder

    def discard(self) -> None:
        """Delete the stream, whose rows are all stored elsewhere, and release the lock."""
        discard(self.folder)
        self.close()


def anchor_frame(anchor: Anchor, reading: ClockReading) -> dict[str, Any]:
    """Return the frame of an anchor, with the kernel's clock state if it is known."""
    _, *reading_fields = astuple(reading)
    return {
        "k": "anchor",
        "m": anchor[0],
        "w": anchor[1],
        **({"c": reading_fields} if any(x is not None for x in reading_fields) else {}),
    }


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents; try again if another process removes an empty parent meanwhile."""
    for tries_left in (2, 1, 0):
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileNotFoundError:
            if not tries_left:
                raise
        else:
            return


def discard(folder: Path) -> None:
    """Delete a finished stream.

    It is renamed first. A process that is killed between deletions would otherwise leave a stream without meta.frames,
    which looks like a stream whose end was not recorded.
    """
    removed = folder.with_name(GONE + folder.name)
    try:
        folder.rename(removed)
    except OSError:
        return
    shutil.rmtree(removed, ignore_errors=True)
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    for parent in (folder.parent, folder.parent.parent):  # the last stream of an attempt, of a run
        try:
            parent.rmdir()
        except OSError:
            return


def sweep(root: Path, is_ours: Callable[[Path], bool] = is_mine) -> None:
    """Delete streams that killed processes left half created or half deleted, and empty folders of attempts and runs.

    A process that is creating a stream in such an empty folder tries again. `is_ours` is as in `streams`.
    """
    for folder in leftover_folders(root, GONE, is_ours):
        with contextlib.suppress(OSError), with_rights_of(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in leftover_folders(root, NEW, is_ours):
        with contextlib.suppress(OSError), with_rights_of(folder):
            if time.time() - folder.stat().st_mtime > _STALE_AFTER_S:
                shutil.rmtree(folder, ignore_errors=True)
    for folder in empty_folders(root, is_ours):
        with contextlib.suppress(OSError), with_rights_of(folder):
            folder.rmdir()
