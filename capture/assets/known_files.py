"""Known files: cached digests of local files, so that a dataset of millions of files is read only once."""

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from ranklake.capture.assets.file_entries import identity_of

NAME: Final = "fingerprints.sqlite"
MOST_ROWS: Final = 5_000_000
_EVERY: Final = 1000
_PATIENCE_S: Final = 2.0


class KnownFiles:
    """A cache of digests by device, inode, times of change and size, shared by the processes of a node.

    Parameters
    ----------
    folder
        The local spool. The cache is `NAME` in it, and can be deleted at any time.

    Notes
    -----
    For one thread. Whatever is wrong with the file, digests are then simply not known. A file is remembered only once
    it has been left alone for two seconds (`Hashed.identity`): within the granularity of its times it could
    change again and look the same. The time of the inode's change is part of the key, for a program can set the other.
    """

    def __init__(self, folder: Path) -> None:
        self._waiting = 0
        self._file: sqlite3.Connection | None = None
        with contextlib.suppress(sqlite3.Error, OSError):
            path = folder / NAME
            self._file = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level="DEFERRED")
            os.chmod(path, 0o600)  # noqa: PTH101 - whose files there are is nobody else's business
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS files (device INT, inode INT, mtime_ns INT, ctime_ns INT, bytes INT,"
                " sha256 BLOB, seen_s INT, PRIMARY KEY (device, inode)) WITHOUT ROWID"
            )
            self._file.commit()

    def get(self, found: os.stat_result) -> bytes | None:
        """Return the digest of a file with this identity, if it is known."""
        if self._file is None:
            return None
        with contextlib.suppress(sqlite3.Error, OverflowError):
            row = self._file.execute(
                "SELECT sha256 FROM files WHERE device=? AND inode=? AND mtime_ns=? AND ctime_ns=? AND bytes=?",
                identity_of(found),
            ).fetchone()
            return None if row is None else bytes(row[0])
        return None

    def put(self, found: os.stat_result, digest: bytes) -> None:
        """Remember a digest."""
        if self._file is None:
            return
        with contextlib.suppress(sqlite3.Error, OverflowError):
            values = (*identity_of(found), digest, int(time.time()))
            self._file.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            self._waiting += 1
            if self._waiting % _EVERY == 0:
                self._file.commit()

    def close(self) -> None:
        """Write down what is new, and forget what was seen longest ago where there are too many."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(sqlite3.Error):
            if self._waiting:
                (rows,) = file.execute("SELECT count(*) FROM files").fetchone()
                if rows > MOST_ROWS:
                    file.execute(
                        "DELETE FROM files WHERE seen_s <= (SELECT seen_s FROM files ORDER BY seen_s LIMIT 1 OFFSET ?)",
                        (rows - MOST_ROWS // 2,),
                    )
            file.commit()
        file.close()
