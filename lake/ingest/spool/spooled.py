"""A file in the spool, and its entry in the table ``segments``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.ingest.spool.gate import DENIED, IRREGULAR, MEMBER_LIKE, MISNAMED, NEWER, UNPRINTABLE, UNREAD
from ranklake.lake.ingest.spool.packs import pack_of
from ranklake.lake.store.writers import REFUSED
from ranklake.printable import printable_name
from ranklake.segments.segment import SegmentName

MISPLACED = "(no table)"

_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spooled:
    """A file in the spool, or a segment in a pack there.

    Attributes
    ----------
    path
        For the spool's file system, or as `ranklake.lake.ingest.spool.packs.member_path` makes it.
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


def is_rewritten(item: Spooled, judged: Mapping[str, datetime]) -> bool:
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
