"""Files of the spool, their entries in the table ``segments``, and packs with members that are read like files.

The path of a member is ``<path of the pack>#<offset>+<size>/<table>/<segment's name>``. The path is enough to read the
member's bytes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from fsspec import AbstractFileSystem

from ranklake.lake.ingest.spool.gate import (
    DENIED,
    IRREGULAR,
    MEMBER_LIKE,
    MISNAMED,
    NEWER,
    TOO_LARGE,
    UNPRINTABLE,
    UNREAD,
    UnreadError,
    drop_cached,
    fetch,
)
from ranklake.lake.store.limits import DEFAULT
from ranklake.lake.store.writers import REFUSED
from ranklake.printable import printable_name
from ranklake.segments.pack import FOLDER, Member, NotAPackError, PackName, read_directory, salvage
from ranklake.segments.segment import SegmentName

_PATH: Final = re.compile(
    r"(?P<pack>.+\.zip)#(?P<offset>\d{1,18})\+(?P<size>\d{1,18})/[a-z_]+/[^/]+", re.ASCII | re.DOTALL
)
_BATCH_PACKS: Final = 500
_DIRECTORIES_BYTES: Final = 64 * 2**20
"""Bytes of pack directories that are read at a time. A pack with a larger directory is not read."""
_SPARSE: Final = 4
"""If the wanted members take less than a quarter of the bytes between the first and the last, each is read alone."""


def member_path(pack: str, member: Member) -> str:
    """Return the path of a member, as plans and the table ``segments`` name it."""
    return f"{pack}#{member.offset}+{member.size}/{member.table}/{member.name}"


def pack_of(path: str) -> str | None:
    """Return the path of the pack from the path of a member; None for any other path."""
    match = _PATH.fullmatch(path)
    return match["pack"] if match else None


def pack_name(path: str) -> PackName | None:
    """Parse the file name of a pack; None if the file is no pack."""
    folder, _, base = path.rpartition("/")
    if folder.rpartition("/")[2] != FOLDER:
        return None
    try:
        return PackName.parse(base)
    except NotAPackError:
        return None


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a pack.

    Attributes
    ----------
    members
        Its members; those that could be recovered, if the directory is damaged.
    is_complete
        False if the directory is damaged: the pack may have more members.
    unread
        The reason why the pack could not be read; empty if it was.
    """

    members: list[Member]
    is_complete: bool
    unread: str = ""


def read_contents(
    fs: AbstractFileSystem, packs: dict[str, int], most_bytes: int = DEFAULT.segment_bytes, root: str = ""
) -> dict[str, Contents]:
    """Return the contents of packs by path. Directories are read in batches of some hundred packs.

    Parameters
    ----------
    packs
        Size in bytes by path. A pack that no longer exists is left out of the result.
    most_bytes
        Up to this size, a pack with a damaged directory is searched for members.
    root
        As for `ranklake.lake.ingest.spool.gate.fetch`.

    Raises the store's error if the store is unreachable.
    """
    oversized = {path for path in packs if min(packs[path], _name(path).directory_bytes) > _DIRECTORIES_BYTES}
    contents = {path: Contents([], is_complete=True, unread=TOO_LARGE) for path in oversized}
    for batch in _batches({path: size for path, size in packs.items() if path not in oversized}):
        ends = [packs[path] for path in batch]
        begins = [max(0, packs[path] - _name(path).directory_bytes) for path in batch]
        tails = fs.cat_ranges(batch, begins, ends, on_error="return")
        for path, begin, end, tail in zip(batch, begins, ends, tails, strict=True):
            try:
                contents[path] = _contents(fs, path, (begin, end), tail, most_bytes, root)
            except FileNotFoundError:
                continue
            except UnreadError as error:
                contents[path] = Contents([], is_complete=True, unread=error.what)
    return contents


def _batches(packs: dict[str, int]) -> Iterator[list[str]]:
    """Yield the paths of packs with directories that are read together."""
    batch: list[str] = []
    batch_bytes = 0
    for path in sorted(packs):
        size = min(packs[path], _name(path).directory_bytes)
        if batch and (len(batch) == _BATCH_PACKS or batch_bytes + size > _DIRECTORIES_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(path)
        batch_bytes += size
    if batch:
        yield batch


def _contents(
    fs: AbstractFileSystem, path: str, span: tuple[int, int], tail: bytes | BaseException, most_bytes: int, root: str
) -> Contents:
    """Return the contents of a pack from its last bytes, or read them if `tail` is an error.

    A directory counts as damaged only if a second read finds it damaged, too.
    """
    begin, end = span
    if isinstance(tail, FileNotFoundError):
        raise tail
    for is_retry in (False, True):
        if is_retry or isinstance(tail, BaseException):
            drop_cached(fs, path)
            tail = fetch(fs, path, begin, end, root)
        try:
            return Contents(read_directory(_name(path), tail, end), is_complete=True)
        except NotAPackError:
            continue
    return Contents(salvage(fetch(fs, path, root=root)) if end <= most_bytes else [], is_complete=False)


def _name(path: str) -> PackName:
    return PackName.parse(path.rpartition("/")[2])


def complete_packs(counts: pa.Table) -> set[str]:
    """Return the packs that were ingested completely: all members that the name counts.

    Parameters
    ----------
    counts
        Columns pack and members (a count). The counts of several rows of one pack are added up.
    """
    sums = counts.group_by("pack").aggregate([("members", "sum")])
    pairs = zip(sums["pack"].to_pylist(), sums["members_sum"].to_pylist(), strict=True)
    return {pack for pack, members in pairs if (name := pack_name(pack)) and members == name.members}


class Reader:
    """Reads files and members of packs. Of a pack, the bytes from the first to the last wanted member are read at once.

    Parameters
    ----------
    paths
        All paths that will be read, each once. The bytes of a pack are kept in memory until its last member is read.
    root
        As for `ranklake.lake.ingest.spool.gate.fetch`.
    """

    def __init__(self, fs: AbstractFileSystem, paths: Iterable[str], root: str = "") -> None:
        self._fs, self._root = fs, root
        self._wanted: dict[str, set[tuple[int, int]]] = {}
        self._held: dict[str, tuple[int, bytes]] = {}
        for path in paths:
            if match := _PATH.fullmatch(path):
                place = (int(match["offset"]), int(match["offset"]) + int(match["size"]))
                self._wanted.setdefault(match["pack"], set()).add(place)
        for pack, places in list(self._wanted.items()):
            if _SPARSE * sum(end - begin for begin, end in places) < _extent(places)[1] - _extent(places)[0]:
                del self._wanted[pack]

    def read(self, path: str) -> bytes:
        """Return the bytes of a file, or of a member of a pack. Raises as `ranklake.lake.ingest.spool.gate.fetch`."""
        match = _PATH.fullmatch(path)
        if match is None:
            return fetch(self._fs, path, root=self._root)
        pack, begin, end = match["pack"], int(match["offset"]), int(match["offset"]) + int(match["size"])
        wanted = self._wanted.setdefault(pack, set())
        if pack not in self._held:
            first, last = _extent({*wanted, (begin, end)})
            self._held[pack] = first, fetch(self._fs, pack, first, last, self._root)
        first, raw = self._held[pack]
        wanted.discard((begin, end))
        if not wanted:
            del self._held[pack]
        return raw[begin - first : end - first]

    def read_again(self, path: str) -> bytes:
        """Read bytes from the store again, not from a cache. Raises as `read`."""
        match = _PATH.fullmatch(path)
        drop_cached(self._fs, match["pack"] if match else path)
        if match is None:
            return fetch(self._fs, path, root=self._root)
        begin = int(match["offset"])
        return fetch(self._fs, match["pack"], begin, begin + int(match["size"]), self._root)


def _extent(places: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the lowest begin and the highest end of some byte ranges."""
    begins, ends = zip(*places, strict=True)
    return min(begins), max(ends)


MISPLACED = "(no table)"

_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file of the spool, or a segment in a pack.

    Attributes
    ----------
    path
        Path in the spool's file system, or the result of `member_path`.
    table
        Name of the file's folder, if it is a valid table name. The table need not exist.
    size_bytes
        Size from the listing.
    name
        The parsed file name; None if the file is no segment.
    sha256
        Digest from the name. For a file that is no segment, digest of its path and size, since listing does not read
        files.
    modified
        Time of modification from the store; None where the store has none.
    """

    path: str
    table: str
    size_bytes: int
    name: SegmentName | None
    sha256: str
    modified: datetime | None = None

    @property
    def order(self) -> tuple[str, int, int, int, int, str]:
        """Sort key that puts segments of one stream side by side."""
        name = self.name
        if name is None:
            return (self.table, -1, -1, -1, -1, self.sha256)
        return (name.run, name.attempt, name.rank, name.incarnation, name.segment, self.sha256)


def rejection(path: str, info: Mapping[str, Any]) -> str | None:
    """Return the reason why a plan must not name a listed file; None if it may."""
    if path.endswith(".tmp"):
        return None
    if info["type"] not in {"file", "directory"}:
        return DENIED if info["type"] == "denied" else IRREGULAR
    if printable_name(path) != path:
        return UNPRINTABLE
    return MEMBER_LIKE if pack_of(path) is not None else None


def misread(damaged_rows: pa.Table) -> dict[str, str]:
    """Return the actual digest of each damaged file's bytes, by path."""
    read = _rows_of_read_files(damaged_rows)
    damaged = read.filter(pc.is_valid(read["unreadable"]))
    return dict(zip(damaged["uri_name"].to_pylist(), damaged["sha256"].to_pylist(), strict=True))


def is_rewritten(item: SpoolFile, damaged_since: Mapping[str, datetime]) -> bool:
    """Whether a file was written after the file at its path was found damaged.

    Parameters
    ----------
    damaged_since
        When files were found damaged, by path.
    """
    found_at = damaged_since.get(item.path)
    return found_at is not None and item.modified is not None and item.modified > found_at


def identities(ingested: pa.Table) -> tuple[set[tuple[str, str]], set[tuple[str, int]]]:
    """Return (table, digest) and (path, bytes) of the files that were read, from rows of the table ``segments``.

    - A damaged file has the digest of its actual bytes there, not that in its name. It is known by path and size.
    - A file that was refused, or named wrongly, is known by path and size, too. A copy at the right path is new.
    - A file that could not be read is in neither set, so that a later ingest tries it again.
    """
    read = _rows_of_read_files(ingested)
    misplaced = pc.or_(*(pc.starts_with(read["unreadable"], reason) for reason in (REFUSED, MISNAMED)))
    accepted = read.filter(pc.invert(pc.fill_null(misplaced, fill_value=False)))
    digests = set(zip(accepted["table"].to_pylist(), accepted["sha256"].to_pylist(), strict=True))
    places = set(zip(read["uri_name"].to_pylist(), read["bytes"].to_pylist(), strict=True))
    return digests, places


def _rows_of_read_files(ingested: pa.Table) -> pa.Table:
    return ingested.filter(pc.invert(is_unread(ingested["unreadable"])))


def is_unread(reasons: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a mask, without NULL, of the reasons of files that could not be read or that wait in the spool."""
    newer = pc.fill_null(pc.starts_with(reasons, NEWER), fill_value=False)
    return pc.or_(pc.is_in(reasons, value_set=_UNREAD), newer)


_UNREAD: Final = pa.array(sorted(UNREAD), pa.string())
