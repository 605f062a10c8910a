"""Stream files: parse the names of a stream's folder and files, list them, and count unsent segments."""

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from ranklake.capture.common.layouts import table_of
from ranklake.capture.spool.files import is_mine, open_regular, regular_files
from ranklake.segments.segment import RUN_NAME, SegmentName

OPEN, SPARE, SEALED, ACKED, DROPPED = ".open", ".spare", ".sealed", ".acked", ".dropped"
NEW, GONE, DAMAGED_FOLDER = ".new-", ".gone-", "damaged"
_FOLDER: Final = re.compile(r"r(\d{1,9})-([0-9a-f]{16})")
_ATTEMPT: Final = re.compile(r"a(\d{1,9})")
_OPEN: Final = re.compile(r"([a-z][a-z0-9_]*)-(\d{6,9})\.open")
_SEALED: Final = re.compile(
    r"([a-z][a-z0-9_]*)-(\d{6,9})~(\d{4}-\d{2}-\d{2})~(\d{1,10})~([0-9a-f]{64})(?:\.([0-9a-f]{8}))?\.sealed"
)


@dataclass(frozen=True, slots=True, order=True)
class StreamName:
    """Run, attempt, rank and incarnation of a stream."""

    run: str
    attempt: int
    rank: int
    incarnation: int

    def folder(self, root: Path) -> Path:
        """Return the folder of the stream in a local spool."""
        return root / self.run / f"a{self.attempt}" / f"r{self.rank:05d}-{self.incarnation:016x}"

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Parse a folder's path; None if it is not the folder of a stream."""
        own, attempt = _FOLDER.fullmatch(folder.name), _ATTEMPT.fullmatch(folder.parent.name)
        run = folder.parent.parent.name
        if not own or not attempt or not RUN_NAME.fullmatch(run):
            return None
        return cls(run, int(attempt[1]), int(own[1]), int(own[2], 16))


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An unsealed file of slots or frames."""

    path: Path
    lane: str
    segment: int

    @property
    def table(self) -> str:
        """Table of the file's rows."""
        return table_of(self.lane)

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Parse a file's name; None for another kind of file."""
        match = _OPEN.fullmatch(path.name)
        if not match:
            return None
        return cls(path, match[1], int(match[2]))


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A segment that is not uploaded yet; `key_id` is as in `SegmentName`."""

    path: Path
    table: str
    segment: int
    date: str
    rows: int
    sha256: str
    key_id: str = ""

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Parse a file's name; None for another kind of file."""
        match = _SEALED.fullmatch(path.name)
        if not match:
            return None
        return cls(path, match[1], int(match[2]), match[3], int(match[4]), match[5], match[6] or "")

    @staticmethod
    def local_name(table: str, segment: int, date: str, rows: int, sha256: str, key_id: str = "") -> str:
        """Return the file's name in its stream."""
        return f"{table}-{segment:06d}~{date}~{rows}~{sha256}{f'.{key_id}' if key_id else ''}{SEALED}"

    def acknowledge(self) -> Path:
        """Rename the file to mark the segment as uploaded; return the new path.

        It is not an error if another uploader has renamed the file already. Raises `OSError`.
        """
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(self.acked)
        return self.acked

    @property
    def acked(self) -> Path:
        """Path of the file after its segment was uploaded."""
        return self.path.with_suffix(ACKED)

    def read_to_send(self) -> bytes:
        """Return the segment's bytes, and mark that an upload was tried, so that the store may have it.

        The mark removes the owner's right to write the file. Raises `OSError`; a missing file was sent or evicted.
        """
        with open(open_regular(self.path), "rb") as file:  # noqa: PTH123 - a descriptor
            with contextlib.suppress(PermissionError, NotImplementedError):  # a file system without permissions
                os.fchmod(file.fileno(), stat.S_IRUSR)
            return file.read()

    @staticmethod
    def is_tried(path: Path) -> bool:
        """Whether an upload of the segment at a path was tried. Raises `OSError`."""
        return not path.stat().st_mode & stat.S_IWUSR

    def remote(self, stream: StreamName) -> str:
        """Return the segment's path relative to the spool's URI."""
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
    files = [file for path in regular_files(folder) if (file := OpenFile.of(path))]
    return sorted(files, key=lambda file: (file.table, file.segment))


def sealed_files(folder: Path) -> list[SealedFile]:
    """Return the unsent segments of a stream, by table and segment. Raises `OSError`."""
    files = [file for path in regular_files(folder) if (file := SealedFile.of(path))]
    return sorted(files, key=lambda file: (file.table, file.segment))


def ready_files(folder: Path) -> list[SealedFile]:
    """Return the segments of a stream that may be sent, by table and segment. Raises `OSError`.

    A segment is not ready while its slot file exists, because it may be sealed again. Sealed files are listed before
    slot files, so a slot file that is missing in the second listing was deleted after sealing.
    """
    waiting = sealed_files(folder)
    unfinished = {(file.table, file.segment) for file in open_files(folder)}
    return [file for file in waiting if (file.table, file.segment) not in unfinished]


def streams(root: Path, is_ours: Callable[[Path], bool] = is_mine) -> Iterator[Path]:
    """Yield the folders of streams in a local spool, sorted. Folders that cannot be listed are skipped.

    Parameters
    ----------
    is_ours
        Whether to yield a folder; by default, whether it belongs to this process's user.
    """
    yield from (path for path in _below_attempts(root) if StreamName.of(path) and is_ours(path))


def leftover_folders(root: Path, kind: str, is_ours: Callable[[Path], bool] = is_mine) -> Iterator[Path]:
    """Yield streams that killed processes left half created (`NEW`) or half deleted (`GONE`); `is_ours` as above."""
    yield from (path for path in _below_attempts(root) if path.name.startswith(kind) and is_ours(path))


def empty_folders(root: Path, is_ours: Callable[[Path], bool] = is_mine) -> Iterator[Path]:
    """Yield the empty folders of attempts, then those of runs; `is_ours` is as in `streams`."""
    for run in _entries(root):
        if RUN_NAME.fullmatch(run.name) and not run.name.startswith("."):  # hidden folders contain other files
            attempts = (folder for folder in _entries(run) if _ATTEMPT.fullmatch(folder.name))
            yield from (folder for folder in (*attempts, run) if is_ours(folder) and _is_empty(folder))


def _below_attempts(root: Path) -> Iterator[Path]:
    """Yield all entries of attempts' folders. A glob would raise if a folder were deleted meanwhile."""
    for run in _entries(root):
        for attempt in _entries(run):
            if _ATTEMPT.fullmatch(attempt.name):
                yield from _entries(attempt)


def _is_empty(folder: Path) -> bool:
    try:
        return not os.listdir(folder)  # noqa: PTH208 - names are enough
    except OSError:
        return False


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class PendingSegments:
    """Number of unsent segments and their rows, and of unsealed files, whose rows are not counted yet."""

    segments: int = 0
    rows: int = 0
    unsealed: int = 0


def pending_segments(root: Path) -> PendingSegments:
    """Return the counts of a local spool. Streams that cannot be listed are skipped."""
    segments = rows = unsealed = 0
    for folder in streams(root):
        try:
            sealed = sealed_files(folder)
            unsealed += len(open_files(folder))
        except OSError:  # sent meanwhile, or of another user
            continue
        segments += len(sealed)
        rows += sum(file.rows for file in sealed)
    return PendingSegments(segments, rows, unsealed)
