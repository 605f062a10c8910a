"""Known files: digests of local files and checkpoints, kept between runs in one SQLite file of the local spool.

The file can be deleted at any time. Whatever is wrong with it, digests are then simply not known.
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
_EVERY: Final = 1000
_PATIENCE_S: Final = 2.0
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
    file = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level="DEFERRED")
    os.chmod(path, 0o600)  # noqa: PTH101 - which files there are is nobody else's business
    file.execute(table)
    file.commit()
    return file


def _forget_oldest(file: sqlite3.Connection, table: str, most: int) -> None:
    """Delete the rows that were seen longest ago, where there are too many."""
    (rows,) = file.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - a name of ours
    if rows > most:
        oldest = f"SELECT seen_s FROM {table} ORDER BY seen_s LIMIT 1 OFFSET ?"  # noqa: S608 - likewise
        file.execute(f"DELETE FROM {table} WHERE seen_s <= ({oldest})", (rows - most // 2,))  # noqa: S608 - likewise


class KnownFiles:
    """Digests by device, inode, times of change and size, shared by the processes of a node. For one thread.

    Parameters
    ----------
    folder
        The local spool.

    Notes
    -----
    A file is remembered only once it has been left alone for two seconds (`Hashed.identity`): within the granularity of
    its times it could change again and look the same. The time of the inode's change is part of the key, for a program
    can set the other.
    """

    def __init__(self, folder: Path) -> None:
        self._waiting = 0
        self._file: sqlite3.Connection | None = None
        with contextlib.suppress(sqlite3.Error, OSError):
            self._file = _open_database(folder, _FILES)

    def get(self, status: os.stat_result) -> bytes | None:
        """Return the digest of a file with this identity, if it is known."""
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
        """Remember a digest."""
        if self._file is None:
            return
        with contextlib.suppress(sqlite3.Error, OverflowError):
            values = (*identity_of(status), digest, int(time.time()))
            self._file.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            self._waiting += 1
            if self._waiting % _EVERY == 0:
                self._file.commit()

    def close(self) -> None:
        """Write down what is new."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(sqlite3.Error):
            if self._waiting:
                _forget_oldest(file, "files", MOST_FILES)
            file.commit()
        file.close()


class KnownCheckpoints:
    """Digests of checkpoints that ranks of this node have written, by place. Each call opens the file again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, place: str, sha256: str, state: str) -> None:
        """Remember the digest of a checkpoint, and the state of its files when it was taken."""
        with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(self._open()) as file, file:
            row = (place, sha256, state, int(time.time()))
            file.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", row)
            _forget_oldest(file, "checkpoints", MOST_CHECKPOINTS)

    def get(self, place: str) -> tuple[str, str] | None:
        """Return digest and state of the checkpoint that was last written to a place, if they are known."""
        with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(self._open()) as file:
            row = file.execute("SELECT sha256, state FROM checkpoints WHERE place = ?", (place,)).fetchone()
            return None if row is None else (str(row[0]), str(row[1]))
        return None

    def _open(self) -> sqlite3.Connection:
        return _open_database(self._folder, _CHECKPOINTS)
