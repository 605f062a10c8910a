"""Packing: which of a node's sealed segments go into one object."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ranklake.capture.spool.stream_files import SealedFile

PACK_BYTES: Final = 32 << 20
PACK_MEMBERS: Final = 5000


@dataclass(frozen=True, slots=True)
class WaitingSegment:
    """A sealed segment of some stream.

    Attributes
    ----------
    remote
        Its path below the spool when it is sent alone.
    uri
        The spool that it is meant for; empty if nobody said.
    size_bytes, age_s
        Of the file, and since it was sealed.
    adopted
        True if its process is dead: then it is sent at once, and nobody else deletes it.
    """

    file: SealedFile
    remote: str
    uri: str
    size_bytes: int
    age_s: float
    adopted: bool


def packs_of(waiting: list[WaitingSegment]) -> Iterator[list[WaitingSegment]]:
    """Yield what goes into one pack each: one spool's segments, those of one table side by side."""
    members: list[WaitingSegment] = []
    size = 0
    for item in sorted(waiting, key=lambda item: (item.uri, item.file.table, item.remote)):
        full = size + item.size_bytes > PACK_BYTES or len(members) >= PACK_MEMBERS
        if members and (full or item.uri != members[0].uri):
            yield members
            members, size = [], 0
        members.append(item)
        size += item.size_bytes
    if members:
        yield members
