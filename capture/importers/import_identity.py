"""Import identity: what rows are imported from; the same file gives the same keys."""

import hashlib
from dataclasses import dataclass

from ranklake.capture.importers.typed_rows import SEVERAL


@dataclass(frozen=True, slots=True)
class ImportIdentity:
    """What rows are imported from.

    Attributes
    ----------
    format, mapping
        The importer, and the digest of the mapping's text; empty if it takes none.
    name, sha256
        The file's name without folders, and the digest of its bytes.
    by_name
        Whether two files of the same content are two imports, since rows depend on the name or the file's time.
    """

    format: str
    mapping: str
    name: str
    sha256: str
    by_name: bool = False

    def incarnation(self, run: str, attempt: int, rank: int) -> int:
        """Return the positive 63-bit number that stands for the import of a rank, or of `SEVERAL`."""
        own = (self.name,) if self.by_name else ()
        whose = "ranks" if rank == SEVERAL else str(rank)
        of = "\0".join((self.format, self.mapping, self.sha256, run, str(attempt), whose, *own))
        return (int.from_bytes(hashlib.sha256(of.encode()).digest()[:8], "big") >> 2) + 1
