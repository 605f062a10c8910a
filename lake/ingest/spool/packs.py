"""Files in the spool with their entries in the table ``segments``, and packs, whose members are read like single files.

A member's path is ``<path of the pack>#<offset>+<size>/<table>/<segment's name>``: who has it needs to know nothing
else to get at the bytes.
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
    fetch,
    forget,
)
from ranklake.lake.store.limits import DEFAULT
from ranklake.lake.store.writers import REFUSED
from ranklake.printable import printable_name
from ranklake.segments.pack import FOLDER, Member, NotAPackError, PackName, read_directory, salvage
from ranklake.segments.segment import SegmentName

_PATH: Final = re.compile(
    r"(?P<pack>.+\.zip)#(?P<offset>\d{1,18})\+(?P<size>\d{1,18})/[a-z_]+/[^/]+", re.ASCII | re.DOTALL
)
_AT_ONCE: Final = 500
_DIRECTORIES_BYTES: Final = 64 * 2**20
"""Directories that are read at a time; a larger one is nobody's."""
_SPARSE: Final = 4
"""Members that are this part of what lies between them are read one by one."""


def member_path(pack: str, member: Member) -> str:
    """Return the path under which ingest knows a member."""
    return f"{pack}#{member.offset}+{member.size}/{member.table}/{member.name}"


def pack_of(path: str) -> str | None:
    """Return the path of the pack that a member's path names; None if it is the path of a file of its own."""
    match = _PATH.fullmatch(path)
    return match["pack"] if match else None


def pack_name(path: str) -> PackName | None:
    """Return what the name of a file in the spool says of a pack; None if it is another kind of file."""
    folder, _, base = path.rpartition("/")
    if folder.rpartition("/")[2] != FOLDER:
        return None
    try:
        return PackName.parse(base)
    except NotAPackError:
        return None


@dataclass(frozen=True, slots=True)
class Contents:
    """What was found in a pack; `whole` is False if its directory is damaged, and there may have been more.

    Where it could not be read, `unread` says why.
    """

    members: list[Member]
    whole: bool
    unread: str = ""


def look_into(
    fs: AbstractFileSystem, packs: dict[str, int], most_bytes: int = DEFAULT.segment_bytes, root: str = ""
) -> dict[str, Contents]:
    """Return the contents of packs by path, their directories read some hundred at a time.

    Parameters
    ----------
    packs
        Size in bytes by path. One that is gone is left out.
    most_bytes
        Size of a pack that is searched for members where its directory is damaged.
    root
        As for `ranklake.lake.ingest.spool.gate.fetch`.

    Raises what the store raises where it gives nothing at all.
    """
    vast = {path for path in packs if min(packs[path], _name(path).directory_bytes) > _DIRECTORIES_BYTES}
    contents = {path: Contents([], whole=True, unread=TOO_LARGE) for path in vast}
    for chosen in _batches({path: size for path, size in packs.items() if path not in vast}):
        ends = [packs[path] for path in chosen]
        begins = [max(0, packs[path] - _name(path).directory_bytes) for path in chosen]
        tails = fs.cat_ranges(chosen, begins, ends, on_error="return")
        for path, begin, end, tail in zip(chosen, begins, ends, tails, strict=True):
            try:
                contents[path] = _contents(fs, path, (begin, end), tail, most_bytes, root)
            except FileNotFoundError:
                continue
            except UnreadError as error:
                contents[path] = Contents([], whole=True, unread=error.what)
    return contents


def _batches(packs: dict[str, int]) -> Iterator[list[str]]:
    """Yield packs to look into at a time."""
    chosen: list[str] = []
    held = 0
    for path in sorted(packs):
        size = min(packs[path], _name(path).directory_bytes)
        if chosen and (len(chosen) == _AT_ONCE or held + size > _DIRECTORIES_BYTES):
            yield chosen
            chosen, held = [], 0
        chosen.append(path)
        held += size
    if chosen:
        yield chosen


def _contents(
    fs: AbstractFileSystem, path: str, span: tuple[int, int], tail: bytes | BaseException, most_bytes: int, root: str
) -> Contents:
    """Return what is in a pack of which the tail was read, or not; a directory is damaged if it reads so twice."""
    begin, end = span
    if isinstance(tail, FileNotFoundError):
        raise tail
    for last in (False, True):
        if last or isinstance(tail, BaseException):
            forget(fs, path)
            tail = fetch(fs, path, begin, end, root)
        try:
            return Contents(read_directory(_name(path), tail, end), whole=True)
        except NotAPackError:
            continue
    return Contents(salvage(fetch(fs, path, root=root)) if end <= most_bytes else [], whole=False)


def _name(path: str) -> PackName:
    return PackName.parse(path.rpartition("/")[2])


def complete_packs(counts: pa.Table) -> set[str]:
    """Return the packs of which as many members were read as their names say: nobody need look into them again.

    Parameters
    ----------
    counts
        Columns pack and members; a pack may have several rows, of whose members none is the same.
    """
    sums = counts.group_by("pack").aggregate([("members", "sum")])
    pairs = zip(sums["pack"].to_pylist(), sums["members_sum"].to_pylist(), strict=True)
    return {pack for pack, members in pairs if (name := pack_name(pack)) and members == name.members}


class Reader:
    """Reads files and members of packs; of a pack, what lies between the first and the last that is wanted at one go.

    Parameters
    ----------
    paths
        All that will be asked for, each once. What was read of a pack is held until the last of its members was.
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
        """Read it again from the store, past the cache; raises likewise."""
        match = _PATH.fullmatch(path)
        forget(self._fs, match["pack"] if match else path)
        if match is None:
            return fetch(self._fs, path, root=self._root)
        begin = int(match["offset"])
        return fetch(self._fs, match["pack"], begin, begin + int(match["size"]), self._root)


def _extent(places: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return where the first of some places begins and the last of them ends."""
    begins, ends = zip(*places, strict=True)
    return min(begins), max(ends)


MISPLACED = "(no table)"

_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file in the spool, or a segment in a pack there.

    Attributes
    ----------
    path
        For the spool's file system, or as `member_path` makes it.
    table
        The folder it lies in, if a table could have its name; not necessarily one that exists.
    size_bytes
        As listed.
    name
        What the file name says, or None if it is not a segment's.
    sha256
        From the name; for a foreign file, of its path and size: nobody reads it before ingest does.
    modified
        When the file was written, as the store says; None where it does not.
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


def unfit(path: str, info: Mapping[str, Any]) -> str | None:
    """Say why a listed file must not be named by a plan; None if it may."""
    if path.endswith(".tmp"):
        return None
    if info["type"] not in {"file", "directory"}:
        return DENIED if info["type"] == "denied" else IRREGULAR
    if printable_name(path) != path:
        return UNPRINTABLE
    return MEMBER_LIKE if pack_of(path) is not None else None


def misread(damaged_rows: pa.Table) -> dict[str, str]:
    """Return the digest that the bytes of each damaged file had, by path."""
    read = _read(damaged_rows)
    damaged = read.filter(pc.is_valid(read["unreadable"]))
    return dict(zip(damaged["uri_name"].to_pylist(), damaged["sha256"].to_pylist(), strict=True))


def is_rewritten(item: SpoolFile, judged: Mapping[str, datetime]) -> bool:
    """Whether a file was written after one at its place was found damaged (`judged`, by path)."""
    when = judged.get(item.path)
    return when is not None and item.modified is not None and item.modified > when


def identities(ingested: pa.Table) -> tuple[set[tuple[str, str]], set[tuple[str, int]]]:
    """Return (table, digest) and (path, bytes) of all that was read, of rows of the table ``segments``.

    A file whose bytes did not have the digest in its name stands there under the digest they had, so it is known by its
    place and size; so is one that was refused where it lay or as it was named, of which a copy may lie where it
    belongs. One that nobody could read is not known: it may be read yet.
    """
    read = _read(ingested)
    astray = pc.or_(*(pc.starts_with(read["unreadable"], why) for why in (REFUSED, MISNAMED)))
    vouched = read.filter(pc.invert(pc.fill_null(astray, fill_value=False)))
    digests = set(zip(vouched["table"].to_pylist(), vouched["sha256"].to_pylist(), strict=True))
    places = set(zip(read["uri_name"].to_pylist(), read["bytes"].to_pylist(), strict=True))
    return digests, places


def _read(ingested: pa.Table) -> pa.Table:
    return ingested.filter(pc.invert(is_unread(ingested["unreadable"])))


def is_unread(reasons: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which rows of the table ``segments`` tell of bytes that nobody read, or that wait; no NULL."""
    newer = pc.fill_null(pc.starts_with(reasons, NEWER), fill_value=False)
    return pc.or_(pc.is_in(reasons, value_set=_UNREAD), newer)


_UNREAD: Final = pa.array(sorted(UNREAD), pa.string())
