"""What a search tells of a file: where a value is in it and how often, or why it could not be looked into."""

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ranklake.retention.traces.needles import Needles

CHUNK_BYTES: Final = 4 * 2**20
MOST_BYTES: Final = 2**30
"""Of a member of an archive, of what gzip holds, and of a row group once decoded."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A value that was found: `where` in the file, and how often; rows where it is a column, else occurrences."""

    where: str
    count: int


@dataclass(frozen=True, slots=True)
class Unsearched:
    """A file, or a part of it, that could not be looked into, and why."""

    why: str


Found = Hit | Unsearched


def occurrences(file: IO[bytes], sought: "Needles") -> int:
    """Count occurrences in bytes; one that lies across two pieces is found, too."""
    kept, found = b"", 0
    while piece := file.read(CHUNK_BYTES):
        both = kept + piece
        kept = both[len(both) - (sought.longest - 1) :] if len(both) >= sought.longest else both
        found += sought.count(both) - sought.count(kept)
    return found + sought.count(kept)
