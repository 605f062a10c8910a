"""Known checkpoints: digests of those that ranks of this node have written, by place, to hold later loads against."""

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from ranklake.capture.assets.known_files import NAME

MOST_ROWS: Final = 100_000
_PATIENCE_S: Final = 2.0
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS checkpoints (place TEXT PRIMARY KEY, sha256 TEXT, state TEXT, seen_s INT) WITHOUT ROWID"
)


class KnownCheckpoints:
    """A table in the file of `ranklake.capture.assets.known_files`, which can be deleted at any time.

    Parameters
    ----------
    folder
        The local spool.

    Notes
    -----
    Whatever is wrong with the file, nothing is known. Each call opens it anew: there is one for each checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def put(self, place: str, sha256: str, state: str) -> None:
        """Remember the digest of a checkpoint, and the state of its files when it was taken."""
        with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(self._opened()) as file, file:
            file.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", (place, sha256, state, _now()))
            (rows,) = file.execute("SELECT count(*) FROM checkpoints").fetchone()
            if rows > MOST_ROWS:
                file.execute(
                    "DELETE FROM checkpoints WHERE place IN (SELECT place FROM checkpoints ORDER BY seen_s LIMIT ?)",
                    (rows - MOST_ROWS // 2,),
                )

    def get(self, place: str) -> tuple[str, str] | None:
        """Return digest and state of the checkpoint that was last written to a place, if they are known."""
        with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(self._opened()) as file:
            found = file.execute("SELECT sha256, state FROM checkpoints WHERE place = ?", (place,)).fetchone()
            return None if found is None else (str(found[0]), str(found[1]))
        return None

    def _opened(self) -> sqlite3.Connection:
        opened = sqlite3.connect(self._path, timeout=_PATIENCE_S, isolation_level="DEFERRED")
        os.chmod(self._path, 0o600)  # noqa: PTH101 - whose files there are is nobody else's business
        opened.execute(_TABLE)
        return opened


def _now() -> int:
    return int(time.time())
