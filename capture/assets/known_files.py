"""Known files: a cache of digests of local files and checkpoints, in one SQLite file of the local spool.

The file can be deleted at any time. If it cannot be read or written, nothing is cached.
"""

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from ranklake.capture.assets.file_entries import identity_of

NAME: Final = "fingerprints.sqlite"
MOST_FILES: Final = 5_000_000
MOST_CHECKPOINTS: Final = 100_000
_COMMIT_ROWS: Final = 1000
_TIMEOUT_S: Final = 2.0
_FILES: Final = (
    "CREATE TABLE IF NOT EXISTS files (device INT, inode INT, mtime_ns INT, ctime_ns INT, bytes INT,"
    " sha256 BLOB, seen_s INT, PRIMARY KEY (device, inode)) WITHOUT ROWID"
)
_CHECKPOINTS: Final = (
    "CREATE TABLE IF NOT EXISTS checkpoints (place TEXT PRIMARY KEY, sha256 TEXT, state TEXT, seen_s INT) WITHOUT ROWID"
)


def _open_database(folder: Path, table: str) -> sqlite3.Connection:
    """Open the file of a local spool. Raises `sqlite3.Error`, `OSError`."""
    path = folder / NAME
    file = sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level="DEFERRED")
    os.chmod(path, 0o600)  # noqa: PTH101 - other users must not see paths of checkpoints
    file.execute(table)
    file.commit()
    return file


def _delete_oldest(file: sqlite3.Connection, table: str, most: int) -> None:
    """Delete the oldest half of the rows if there are more than `most`."""
    (rows,) = file.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - a name of ours
    if rows > most:
        oldest = f"SELECT seen_s FROM {table} ORDER BY seen_s LIMIT 1 OFFSET ?"  # noqa: S608 - likewise
        file.execute(f"DELETE FROM {table} WHERE seen_s <= ({oldest})", (rows - most // 2,))  # noqa: S608 - likewise


class KnownFiles:
    """A cache of digests by device, inode, times of change and size, shared by the processes of a node.

    Not thread-safe.

    Parameters
    ----------
    folder
        The local spool.

    Notes
    -----
    A file is cached only if it has been unchanged for two seconds (`FileDigest.identity`): within the resolution of its
    times it could change again unnoticed. The key includes ctime, because programs can set mtime.
    """

    def __init__(self, folder: Path) -> None:
        self._new_rows = 0
        self._file: sqlite3.Connection | None = None
        with contextlib.suppress(sqlite3.Error, OSError):
            self._file = _open_database(folder, _FILES)

    def get(self, status: os.stat_result) -> bytes | None:
        """Return the cached digest of a file with this status; None if there is none."""
        if self._file is None:
            return None
        with contextlib.suppress(sqlite3.Error, OverflowError):
            row = self._file.execute(
                "SELECT sha256 FROM files WHERE device=? AND inode=? AND mtime_ns=? AND ctime_ns=? AND bytes=?",
                identity_of(status),
            ).fetchone()
            return None if row is None else bytes(row[0])
        return None

    def put(self, status: os.stat_result, digest: bytes) -> None:
        """Cache the digest of a file."""
        if self._file is None:
            return
        with contextlib.suppress(sqlite3.Error, OverflowError):
            values = (*identity_of(status), digest, int(time.time()))
            self._file.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            self._new_rows += 1
            if self._new_rows % _COMMIT_ROWS == 0:
                self._file.commit()

    def close(self) -> None:
        """Commit new digests, and close the file."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(sqlite3.Error):
            if self._new_rows:
                _delete_oldest(file, "files", MOST_FILES)
            file.commit()
        file.close()


class KnownCheckpoints:
    """A cache of digests of checkpoints written by ranks of this node, by path. Each call opens the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, place: str, sha256: str, state: str) -> None:
        """Cache the digest of a checkpoint, and the state of its files (`state_of`) at that time."""
        with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(self._open()) as file, file:
            row = (place, sha256, state, int(time.time()))
            file.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", row)
            _delete_oldest(file, "checkpoints", MOST_CHECKPOINTS)

    def get(self, place: str) -> tuple[str, str] | None:
        """Return digest and state of the last checkpoint written to a path; None if not cached."""
        with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(self._open()) as file:
            row = file.execute("SELECT sha256, state FROM checkpoints WHERE place = ?", (place,)).fetchone()
            return None if row is None else (str(row[0]), str(row[1]))
        return None

    def _open(self) -> sqlite3.Connection:
        return _open_database(self._folder, _CHECKPOINTS)
