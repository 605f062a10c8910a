"""A pack: many segments in one object, as the node agent sends them.

A pack is a ZIP archive without compression. Each member is a segment, byte for byte, with the path of a segment that is
sent alone: ``<date>/<table>/<segment's name>``. So unzipping the packs of a spool in its folder ``segments`` gives the
spool as without an agent. The archive's directory is at its end, and the pack's name has the directory's length: one
read of a few kilobytes returns the list of members.

Equal members give equal bytes and the same name, so that sending a pack again is harmless.
"""

import hashlib
import io
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from ranklake.errors import RanklakeError
from ranklake.segments.segment import NotASegmentError, SegmentName

FOLDER: Final = "packs"
"""Name in place of a table in paths of packs."""

_NAME: Final = re.compile(
    r"(?P<members>\d{1,7})~(?P<rows>\d{1,12})~(?P<directory_bytes>\d{1,9})~(?P<sha256>[0-9a-f]{64})\.zip",
    re.ASCII,
)
_MEMBER: Final = re.compile(r"(?P<date>\d{4}-\d{2}-\d{2})/(?P<table>[a-z_]+)/(?P<name>[^/]+)", re.ASCII)
_ENTRY_BYTES: Final = 1024
"""Most bytes of a member's entry in the directory: its path has at most 350 characters."""
_LOCAL: Final = struct.Struct("<4s5H3L2H")  # the header before each member, APPNOTE.TXT 4.3.7
_LOCAL_SIGN: Final = b"PK\x03\x04"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class NotAPackError(RanklakeError):
    """A file whose name or directory is not a pack's."""


@dataclass(frozen=True, slots=True)
class PackName:
    """The facts in a pack's file name.

    Attributes
    ----------
    members, rows
        Segments in it, and rows in them.
    directory_bytes
        Length of the directory, which ends the file.
    sha256
        Lower-case hex digest of the file's bytes.
    """

    members: int
    rows: int
    directory_bytes: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.members}~{self.rows}~{self.directory_bytes}~{self.sha256}.zip"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read a file name (no folders). Raises `NotAPackError` if it is not a pack's."""
        match = _NAME.fullmatch(name)
        if not match:
            raise NotAPackError("not a pack's name", where=name)
        facts = cls(int(match["members"]), int(match["rows"]), int(match["directory_bytes"]), match["sha256"])
        if str(facts) != name or facts.directory_bytes > (facts.members + 1) * _ENTRY_BYTES:
            raise NotAPackError("not a pack's name", where=name)
        return facts


@dataclass(frozen=True, slots=True)
class Member:
    """A segment in a pack: its name, and offset and size of its bytes."""

    date: str
    table: str
    name: SegmentName
    offset: int
    size: int

    @classmethod
    def of(cls, path: str, offset: int, size: int) -> Self | None:
        """Parse a member's path in the archive; None if it is not a segment's."""
        match = _MEMBER.fullmatch(path)
        if not match:
            return None
        try:
            return cls(match["date"], match["table"], SegmentName.parse(match["name"]), offset, size)
        except NotASegmentError:
            return None


def pack(segments: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Return the path below the spool's URI, and the bytes, of a pack.

    Parameters
    ----------
    segments
        Bytes by path below the spool's URI, ``segments/<date>/<table>/<segment's name>``; at least one. Members come
        in the order of table, date and name, so that ingest reads the members of a table in one read.
    """
    members = {path.removeprefix("segments/"): raw for path, raw in segments.items()}
    ordered = sorted(members, key=lambda path: (path.split("/")[1], path))
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for path in ordered:
            info = zipfile.ZipInfo(path, _EPOCH)
            info.external_attr = 0o644 << 16
            archive.writestr(info, members[path])
        begin = archive.start_dir
    raw = sink.getvalue()
    rows = sum(SegmentName.parse(path.rpartition("/")[2]).rows for path in ordered)
    name = PackName(len(ordered), rows, len(raw) - begin, hashlib.sha256(raw).hexdigest())
    date = max(path.split("/")[0] for path in ordered)
    return f"segments/{date}/{FOLDER}/{name}", raw


def read_directory(name: PackName, tail: bytes, pack_bytes: int) -> list[Member]:
    """Return the members of a pack, in its order.

    Parameters
    ----------
    tail
        The file's last `PackName.directory_bytes` bytes.
    pack_bytes
        Size of the whole file.

    Raises
    ------
    NotAPackError
        The directory is damaged, or does not match the pack's name.
    """
    try:
        entries = zipfile.ZipFile(io.BytesIO(tail)).infolist()
    except Exception as error:  # the bytes are untrusted, and zipfile raises many kinds of errors
        raise NotAPackError("the directory of the pack is not readable") from error
    cut = pack_bytes - len(tail)  # zipfile counts offsets from the start of the given bytes
    members = []
    end = 0
    for entry in entries:
        begin = entry.header_offset + cut + _LOCAL.size + len(entry.filename.encode())
        member = Member.of(entry.filename, begin, entry.file_size)
        stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
        if member is None or not stored or entry.header_offset + cut != end:
            raise NotAPackError("the directory of the pack disagrees with itself")
        members.append(member)
        end = begin + entry.file_size
    if len(members) != name.members or end != cut:
        raise NotAPackError("name and directory of the pack disagree")
    return members


def salvage(raw: bytes) -> list[Member]:
    """Return the members of a pack whose directory is damaged, by the headers before each of them.

    Their bytes may be damaged or cut off, too: verify them by the digests in their names.
    """
    return list(_headers(raw))


def _headers(raw: bytes) -> Iterable[Member]:
    at = raw.find(_LOCAL_SIGN)
    while 0 <= at <= len(raw) - _LOCAL.size:
        *_, size, name_bytes, extra_bytes = _LOCAL.unpack_from(raw, at)
        begin = at + _LOCAL.size + name_bytes + extra_bytes
        path = raw[at + _LOCAL.size : at + _LOCAL.size + name_bytes].decode("ascii", "replace")
        member = Member.of(path, begin, min(size, len(raw) - begin)) if begin <= len(raw) else None
        if member is not None:
            yield member
        at = raw.find(_LOCAL_SIGN, at + 1 if member is None else begin + member.size)
