"""Stream: the folder of one incarnation (one process that records) and what the names in it say.

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
import re
import secrets
import shutil
import stat
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from ranklake.capture.common.layouts import TABLE_OF_LANE
from ranklake.capture.spool.clock import Anchor, read_anchor
from ranklake.capture.spool.files import sync_folder
from ranklake.capture.spool.frames import FrameFile, Scan
from ranklake.capture.spool.ntp import read_clock
from ranklake.capture.spool.owner import HELD, Owner, OwnerLock, boot_id, start_ticks
from ranklake.capture.spool.ownership import is_mine, open_regular, regular_files, with_rights_of
from ranklake.segments.segment import RUN_NAME, ClockReading, SegmentName

META_FILE: Final = "meta.frames"
OPEN, SPARE, SEALED, ACKED, DROPPED = ".open", ".spare", ".sealed", ".acked", ".dropped"
NEW, GONE, DAMAGED_FOLDER = ".new-", ".gone-", "damaged"

_STALE_S: Final = 3600.0
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_FOLDER: Final = re.compile(r"r(\d{1,9})-([0-9a-f]{16})")
_ATTEMPT: Final = re.compile(r"a(\d{1,9})")
_OPEN: Final = re.compile(r"([a-z_]+)-(\d{6,9})\.open")
_SEALED: Final = re.compile(
    r"([a-z_]+)-(\d{6,9})~(\d{4}-\d{2}-\d{2})~(\d{1,10})~([0-9a-f]{64})(?:\.([0-9a-f]{8}))?\.sealed"
)


@dataclass(frozen=True, slots=True, order=True)
class StreamName:
    """Whose rows a folder holds."""

    run: str
    attempt: int
    rank: int
    incarnation: int

    def folder(self, root: Path) -> Path:
        """Return where the stream lies below a local spool."""
        return root / self.run / f"a{self.attempt}" / f"r{self.rank:05d}-{self.incarnation:016x}"

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Read the name off a folder's path; None if it is no stream's."""
        own, attempt = _FOLDER.fullmatch(folder.name), _ATTEMPT.fullmatch(folder.parent.name)
        run = folder.parent.parent.name
        if not own or not attempt or not RUN_NAME.fullmatch(run):
            return None
        return cls(run, int(attempt[1]), int(own[1]), int(own[2], 16))


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file of slots or frames that is not sealed yet."""

    path: Path
    lane: str
    segment: int

    @property
    def table(self) -> str:
        """The table that its rows belong to."""
        return TABLE_OF_LANE[self.lane]

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Read the name of a path; None if it is another kind of file."""
        found = _OPEN.fullmatch(path.name)
        if not found or found[1] not in TABLE_OF_LANE:
            return None
        return cls(path, found[1], int(found[2]))


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A segment that waits for its upload; `key_id` as in `SegmentName`."""

    path: Path
    table: str
    segment: int
    date: str
    rows: int
    sha256: str
    key_id: str = ""

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Read the name of a path; None if it is another kind of file."""
        found = _SEALED.fullmatch(path.name)
        if not found:
            return None
        return cls(path, found[1], int(found[2]), found[3], int(found[4]), found[5], found[6] or "")

    @staticmethod
    def local_name(table: str, segment: int, date: str, rows: int, sha256: str, key_id: str = "") -> str:
        """Return the file's name in its stream."""
        return f"{table}-{segment:06d}~{date}~{rows}~{sha256}{f'.{key_id}' if key_id else ''}{SEALED}"

    def acknowledge(self) -> Path:
        """Write down, by its name, that the segment is in the spool; return what the file is called then.

        Raises `OSError`. Whoever else has sent it and was faster has done this: that is no error.
        """
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(self.acked)
        return self.acked

    @property
    def acked(self) -> Path:
        """What the file is called when its segment is in the spool."""
        return self.path.with_suffix(ACKED)

    def read_to_send(self) -> bytes:
        """Return the segment's bytes, and mark the file as one that may be in the store from now on.

        The mark is that its owner may no longer write to it. Raises `OSError`: if there is no such file, it was sent
        or given up.
        """
        with open(open_regular(self.path), "rb") as file:  # noqa: PTH123 - a descriptor
            with contextlib.suppress(PermissionError, NotImplementedError):  # a file system without permissions
                os.fchmod(file.fileno(), stat.S_IRUSR)
            return file.read()

    @staticmethod
    def is_tried(path: Path) -> bool:
        """Say whether a segment, whatever it is called now, may be in the store. Raises `OSError`."""
        return not path.stat().st_mode & stat.S_IWUSR

    def remote(self, stream: StreamName) -> str:
        """Return the segment's path below the spool's URI."""
        name = SegmentName(
            run=stream.run,
            attempt=stream.attempt,
            rank=stream.rank,
            incarnation=stream.incarnation,
            segment=self.segment,
            rows=self.rows,
            sha256=self.sha256,
            key_id=self.key_id,
        )
        return f"segments/{self.date}/{self.table}/{name}"


def open_files(folder: Path) -> list[OpenFile]:
    """Return the unsealed files of a stream, by table and segment. Raises `OSError`."""
    found = [file for path in regular_files(folder) if (file := OpenFile.of(path))]
    return sorted(found, key=lambda file: (file.table, file.segment))


def sealed_files(folder: Path) -> list[SealedFile]:
    """Return the segments of a stream that wait, by table and segment. Raises `OSError`."""
    found = [file for path in regular_files(folder) if (file := SealedFile.of(path))]
    return sorted(found, key=lambda file: (file.table, file.segment))


def ready_files(folder: Path) -> list[SealedFile]:
    """Return the segments of a stream that may be sent, by table and segment. Raises `OSError`.

    A segment whose slots are still there may have to be sealed again, so it is not ready. What is sealed is listed
    first: slots that are gone by the second listing are gone for good.
    """
    waiting = sealed_files(folder)
    unfinished = {(file.table, file.segment) for file in open_files(folder)}
    return [file for file in waiting if (file.table, file.segment) not in unfinished]


def streams(root: Path, whose: Callable[[Path], bool] = is_mine) -> Iterator[Path]:
    """Yield the folders of streams below a local spool, sorted; what cannot be listed is skipped.

    Parameters
    ----------
    whose
        Says of a folder whether to yield it; by default those of this process's user.
    """
    yield from (path for path in _below_attempts(root) if StreamName.of(path) and whose(path))


def remains(root: Path, kind: str, whose: Callable[[Path], bool] = is_mine) -> Iterator[Path]:
    """Yield what killed processes left of streams half made (`NEW`) or half removed (`GONE`); `whose` as `streams`."""
    yield from (path for path in _below_attempts(root) if path.name.startswith(kind) and whose(path))


def _below_attempts(root: Path) -> Iterator[Path]:
    """Yield all that lies where streams do. Not by a glob, which raises if a folder goes while it is listed."""
    for run in _entries(root):
        for attempt in _entries(run):
            if _ATTEMPT.fullmatch(attempt.name):
                yield from _entries(attempt)


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


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
    """

    name: StreamName
    folder: Path
    owner: Owner
    inode: int
    _lock_file: OwnerLock
    _meta: FrameFile
    waiting: dict[str, tuple[str, int]] = field(default_factory=dict)
    files_named: int = 0
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
        stream.note(anchor_frame(anchor, read_clock(anchor[0])))
        return stream

    def note(self, facts: dict[str, Any]) -> None:
        """Append a frame to meta.frames. Raises `OSError`, or what `frames.pack` raises."""
        with self._mutex:
            self._meta.append(facts)

    def anchor(self) -> None:
        """Note both clocks, and what the kernel says of them. Raises `OSError`."""
        anchor = read_anchor()
        self.note(anchor_frame(anchor, read_clock(anchor[0])))

    def note_gaps(self, counts: "Counter[tuple[str, str]]") -> None:
        """Note gap counts, all in one frame, so that they are written down whole or not. Raises `OSError`."""
        self.note({"k": "gaps", "n": [[table, reason, rows] for (table, reason), rows in sorted(counts.items())]})

    def next_segment(self, table: str) -> int:
        """Return a segment number that this table has not had."""
        return next(self._numbers[table])

    def next_open(self, lane: str) -> Path:
        """Return the path of a lane's next file."""
        self.files_named += 1
        return self.folder / f"{lane}-{self.next_segment(TABLE_OF_LANE[lane]):06d}{OPEN}"

    def note_acks(self) -> None:
        """Take note of what the agent has sent, and delete it. Raises `OSError`."""
        for name in list(self.waiting):
            acked = (self.folder / name).with_suffix(ACKED)
            if acked.exists():
                self.waiting.pop(name, None)
                acked.unlink(missing_ok=True)

    def vanished(self) -> bool:
        """Say whether the folder is no longer the one that was made; one that cannot be asked for now has not vanished.

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
    _, *said = astuple(reading)
    return {"k": "anchor", "m": anchor[0], "w": anchor[1], **({"c": said} if any(x is not None for x in said) else {})}


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


def sweep(root: Path, whose: Callable[[Path], bool] = is_mine) -> None:
    """Remove streams that were never opened or are half removed, left by killed processes; `whose` as for `streams`."""
    for folder in remains(root, GONE, whose):
        with contextlib.suppress(OSError), with_rights_of(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for folder in remains(root, NEW, whose):
        with contextlib.suppress(OSError), with_rights_of(folder):
            if time.time() - folder.stat().st_mtime > _STALE_S:
                shutil.rmtree(folder, ignore_errors=True)
