"""What the protocol says of shares: lists, versions, metadata and files of tables, as plain values.

A role is a share, with one schema, ``tables``. https://github.com/delta-io/delta-sharing/blob/main/PROTOCOL.md
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.store import Store
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import DATA_PATH, files
from ranklake.lake.tables.tables import latest
from ranklake.retention.shares.place import open_place
from ranklake.retention.shares.register import Share, shares
from ranklake.retention.shares.shared_table import tables_there

if TYPE_CHECKING:
    from deltalake import DeltaTable


SCHEMA: Final = "tables"
_FILE: Final = re.compile(DATA_PATH)
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")


class NotThereError(RanklakeError):
    """A share, schema or table that is not there, or not for who asks."""


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A data file of a shared table: its path in the table, date, bytes and rows."""

    path: str
    day: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at a version: what the protocol calls its metadata, and its files."""

    version: int
    metadata: dict[str, Any]
    files: tuple[SharedFile, ...]


class SharedTables:
    """Shares of a lake as a server reads them: what did not change is not read again."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._lock = threading.Lock()
        self._places: dict[str, Tables] = {}
        self._known: dict[tuple[str, str], tuple[tuple[str, int], Snapshot]] = {}

    def place(self, role: str) -> Store:
        """Return the place of a role's share. Raises `NotThereError`."""
        return self._open_role(role).store

    def _open_role(self, role: str) -> Tables:
        share = self._share(role)
        with self._lock:
            if share.uri not in self._places:
                self._places[share.uri] = Tables(open_place(self._store, share.uri))
            return self._places[share.uri]

    def tables(self, role: str) -> list[str]:
        """Return the tables of a share, by name. Raises `NotThereError`."""
        return sorted(tables_there(self.place(role)))

    def file(self, role: str, table: object, path: object) -> str:
        """Return where a data file of a shared table is, or was. Raises `NotThereError`."""
        if not _NAME.fullmatch(str(table)) or not _FILE.fullmatch(str(path)):
            raise NotThereError("no data file of a share")
        return self.place(role).path("tables", str(table), str(path))

    def snapshot(self, role: str, table: str) -> Snapshot:
        """Return a table as it is now. Raises `NotThereError`."""
        place = self._open_role(role)
        with self._lock:  # one reader brings it up to date, the others find it so
            handle = latest(place, table) if _NAME.fullmatch(table) else None
            if handle is None:
                raise NotThereError(f"no table {table!r} in this share")
            mark = (str(handle.metadata().id), handle.version())
            known = self._known.get((place.store.uri, table))
            if known is None or known[0] != mark:
                known = self._known[place.store.uri, table] = (mark, _snapshot(handle))
            return known[1]

    def _share(self, role: str) -> Share:
        share = next((share for share in shares(self._store) if share.role == role), None)
        if share is None:
            raise NotThereError("no such share")
        return share


def _snapshot(handle: "DeltaTable") -> Snapshot:
    table = handle.metadata()
    metadata = {
        "id": str(table.id),
        "name": table.name,
        "format": {"provider": "parquet"},
        "schemaString": handle.schema().to_json(),
        "partitionColumns": list(table.partition_columns),
        "configuration": {},
    }
    live = files(handle)
    columns = [live[name].to_pylist() for name in ("path", "date", "size_bytes", "num_records")]
    shared = (SharedFile(path, day.isoformat(), size, rows) for path, day, size, rows in zip(*columns, strict=True))
    return Snapshot(handle.version(), metadata, tuple(shared))


def metadata_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield the protocol and the metadata of a table, as lines of JSON."""
    yield json.dumps({"protocol": {"minReaderVersion": 1}})
    yield json.dumps({"metaData": snapshot.metadata})


def file_lines(snapshot: Snapshot, most: int | None, url: Callable[[SharedFile], tuple[str, int]]) -> Iterator[str]:
    """Yield the files of a table, as lines of JSON.

    Parameters
    ----------
    most
        Rows that are enough; None for all.
    url
        Returns the URL of a file, and when it expires (milliseconds since 1970).
    """
    rows = 0
    for file in snapshot.files:
        if most is not None and rows >= most:
            return
        rows += file.rows
        where, until = url(file)
        facts = {"url": where, "id": file.path, "partitionValues": {"date": file.day}, "size": file.size_bytes}
        stats = json.dumps({"numRecords": file.rows})
        yield json.dumps({"file": {**facts, "stats": stats, "expirationTimestamp": until}})
