"""Packs as ingest reads them: members are found, named and read like files of their own.

A member's path is ``<path of the pack>#<offset>+<size>/<table>/<segment's name>``: who has it needs to know nothing
else to get at the bytes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from fsspec import AbstractFileSystem

from ranklake.lake.contracts.pack import FOLDER, Member, NotAPackError, PackName, read_directory, salvage

_PATH: Final = re.compile(r"(?P<pack>.+\.zip)#(?P<offset>\d+)\+(?P<size>\d+)/[a-z_]+/[^/]+")
_AT_ONCE: Final = 500


def member_path(pack: str, member: Member) -> str:
    """Return the path under which ingest knows a member."""
    return f"{pack}#{member.offset}+{member.size}/{member.table}/{member.name}"


def pack_of(path: str) -> str | None:
    """Return the path of the pack that a member's path names; None if it is the path of a file of its own."""
    found = _PATH.fullmatch(path)
    return found["pack"] if found else None


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
    """What was found in a pack; `whole` is False if its directory is damaged, and there may have been more."""

    members: list[Member]
    whole: bool


def look_into(fs: AbstractFileSystem, packs: dict[str, int]) -> dict[str, Contents]:
    """Return the contents of packs by path, their directories read some hundred at a time.

    Parameters
    ----------
    packs
        Size in bytes by path. One that is gone is left out.

    Raises whatever the store raises.
    """
    found: dict[str, Contents] = {}
    paths = sorted(packs)
    for at in range(0, len(paths), _AT_ONCE):
        chosen = paths[at : at + _AT_ONCE]
        ends = [packs[path] for path in chosen]
        begins = [max(0, packs[path] - _name(path).directory_bytes) for path in chosen]
        for path, tail in zip(chosen, fs.cat_ranges(chosen, begins, ends, on_error="return"), strict=True):
            if isinstance(tail, FileNotFoundError):
                continue
            if isinstance(tail, BaseException):
                raise tail
            try:
                found[path] = Contents(read_directory(_name(path), tail, packs[path]), whole=True)
            except NotAPackError:
                found[path] = Contents(salvage(fs.cat_file(path)), whole=False)
    return found


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
    """

    def __init__(self, fs: AbstractFileSystem, paths: Iterable[str]) -> None:
        self._fs = fs
        self._wanted: dict[str, set[tuple[int, int]]] = {}
        self._held: dict[str, tuple[int, bytes]] = {}
        for path in paths:
            if found := _PATH.fullmatch(path):
                place = (int(found["offset"]), int(found["offset"]) + int(found["size"]))
                self._wanted.setdefault(found["pack"], set()).add(place)

    def read(self, path: str) -> bytes:
        """Return the bytes of a file, or of a member of a pack. Raises whatever the store raises."""
        found = _PATH.fullmatch(path)
        if found is None:
            return bytes(self._fs.cat_file(path))
        pack, begin, end = found["pack"], int(found["offset"]), int(found["offset"]) + int(found["size"])
        wanted = self._wanted.setdefault(pack, set())
        if pack not in self._held:
            first = min((place[0] for place in wanted), default=begin)
            last = max((place[1] for place in wanted), default=end)
            first, last = min(first, begin), max(last, end)
            self._held[pack] = first, bytes(self._fs.cat_file(pack, start=first, end=last))
        first, raw = self._held[pack]
        wanted.discard((begin, end))
        if not wanted:
            del self._held[pack]
        return raw[begin - first : end - first]
