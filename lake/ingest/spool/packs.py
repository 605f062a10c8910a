"""Packs as ingest reads them: members are found, named and read like single files.

A member's path is ``<path of the pack>#<offset>+<size>/<table>/<segment's name>``: who has it needs to know nothing
else to get at the bytes.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from fsspec import AbstractFileSystem

from ranklake.lake.ingest.spool.gate import TOO_LARGE, UnreadError, fetch, forget
from ranklake.lake.store.limits import DEFAULT
from ranklake.segments.pack import FOLDER, Member, NotAPackError, PackName, read_directory, salvage

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


def settled(counts: pa.Table) -> set[str]:
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
        """Return the same from the store itself, whatever was read before; raises likewise."""
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
