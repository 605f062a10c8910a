"""The spool as ingest sees it: which segments lie there, and which may go."""

import hashlib
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.segment import NotASegmentError, SegmentName
from ranklake.lake.store import LakeUnreachableError, filesystem

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Spooled:
    """A file in the spool.

    Attributes
    ----------
    path
        For the spool's file system.
    table
        The folder it lies in; not necessarily a table that exists.
    size_bytes
        As listed.
    name
        What the file name says, or None if it is not a segment's.
    sha256
        From the name; for a foreign file, of its bytes.
    """

    path: str
    table: str
    size_bytes: int
    name: SegmentName | None
    sha256: str

    @property
    def order(self) -> tuple[str, int, int, int, int, str]:
        """Sort key that puts segments of one stream side by side."""
        name = self.name
        if name is None:
            return (self.table, -1, -1, -1, -1, self.sha256)
        return (name.run, name.attempt, name.rank, name.incarnation, name.segment, self.sha256)


class Spool:
    """The spool at a URI.

    Parameters
    ----------
    uri
        Folder or object-store URI, as capture was given it.
    storage
        Options under delta-rs's names.
    """

    def __init__(self, uri: str, storage: dict[str, str] | None = None) -> None:
        self.uri = uri.rstrip("/")
        self.fs, root = filesystem(self.uri, dict(storage or {}))
        self.root = f"{root.rstrip('/')}/segments"

    def listing(self) -> list[Spooled]:
        """Return the files there, in stream order; an absent folder is an empty spool.

        Files still being written (names that end in .tmp) are left out. Raises `LakeUnreachableError`.
        """
        try:
            found: dict[str, dict[str, Any]] = self.fs.find(self.root, detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:  # object stores raise a class of their own per client
            mend = "check the URI, the network and your rights there"
            raise LakeUnreachableError(f"the spool cannot be listed: {error}", where=self.uri, mend=mend) from error
        spooled = (
            self._look(path, int(info["size"] or 0)) for path, info in found.items() if not path.endswith(".tmp")
        )
        return sorted(spooled, key=lambda item: (item.table, item.order))

    def _look(self, path: str, size: int) -> Spooled:
        folder, _, base = path.rpartition("/")
        table = folder.rpartition("/")[2]
        try:
            name = SegmentName.parse(base)
        except NotASegmentError:
            digest = hashlib.sha256(self.fs.cat_file(path)).hexdigest()
            return Spooled(path, table, size, None, digest)
        return Spooled(path, table, size, name, name.sha256)

    def purge(self, ingested: pa.Table, today: date, keep_days: int) -> int:
        """Delete segments that were ingested more than `keep_days` before `today`; return how many went.

        Parameters
        ----------
        ingested
            Columns uri_name and date of the table ``segments``: only what a finished plan named may go.
        """
        old = ingested.filter(pc.less(ingested["date"], pa.scalar(today - timedelta(days=keep_days), pa.date32())))
        return sum(self._delete(path) for path in self._present(old["uri_name"].to_pylist()))

    def _present(self, paths: "Iterable[str]") -> list[str]:
        return [path for path in paths if self.fs.exists(path)]

    def _delete(self, path: str) -> int:
        try:
            self.fs.rm_file(path)
        except FileNotFoundError:  # another driver was faster
            return 0
        return 1
