"""Hashing: fingerprints of files, computed in the background, and the rows of `artifacts` that they become."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ranklake.capture.assets.background import Background
from ranklake.capture.assets.file_entries import identity_of
from ranklake.capture.assets.merkle_digest import MerkleDigest, StoppedError, merkle_digest
from ranklake.capture.common.values import integer, json_text, redacted_name, redacted_text, text, to_json
from ranklake.capture.lanes.series import check_name
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.lifecycle.lifecycle import Lifecycle
from ranklake.redaction.redact import redact_names, redact_uri

Place = str | os.PathLike[str]
_LONGEST: Final = 1024
_LONGEST_MESSAGE: Final = 4096


def short_text(value: object) -> str | None:
    """Return a text as columns have it, redacted and cut; None for None."""
    return None if value is None else redacted_text(value, _LONGEST)


def shown_place(place: Place) -> str:
    """Return a place as others can find it: a URI without its user, or an absolute path."""
    shown = os.fspath(place)
    return text(redact_uri(text(shown if "://" in shown else os.path.abspath(shown))), 4096)  # noqa: PTH100 - links stay


def last_part(uri: str) -> str:
    """Return the last part of a path or a URI."""
    return uri.rstrip("/").rpartition("/")[2]


def given_digest(sha256: str) -> str | None:
    """Return a SHA-256 that a caller gave as rows have it: lower case, without the algorithm's name before it."""
    return redacted_text(sha256.strip().lower().removeprefix("sha256:"), 64)


Columns = dict[str, Any]

KINDS: Final = frozenset({"checkpoint", "model", "profile", "dump", "plot", "dataset", "log", "other"})
NOT_READ_BACK: Final = "it is in a store, and is not read back unasked"


def artifact_row(
    action: str,
    name: str,
    place: Place,
    *,
    kind: str,
    step: object = None,
    inputs: Sequence[str] = (),
    attributes: Mapping[str, object] | None = None,
) -> Columns:
    """Return what is known of an artifact at once; ``attributes`` is a mapping still, to which reasons are added."""
    return {
        "name": check_name(name),
        "kind": kind if kind in KINDS else "other",
        "action": action,
        "uri": shown_place(place),
        "step": None if step is None else integer(step),
        "inputs": json_text([redacted_name(item, 80) for item in inputs] or None),
        "attributes": redact_names(to_json(dict(attributes or {}))),
    }


def failure_columns(error: BaseException | None, spent_ns: int | None) -> Columns:
    """Return what an exception says, redacted, and how long it took until then."""
    columns: Columns = {"duration_ns": spent_ns, "blocking_ns": spent_ns}
    if error is not None:
        kind = type(error)
        columns |= {"exception_type": text(getattr(kind, "__qualname__", kind), 256)}
        columns |= {"exception_message": redacted_text(error, _LONGEST_MESSAGE)}
    return columns


def attributes_text(attributes: Mapping[str, object], why: Mapping[str, str]) -> str | None:
    """Return the JSON of attributes, with why columns have no value."""
    return json_text({**attributes, "unavailable": dict(why)} if why else dict(attributes) or None)


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


RUN_ENDED: Final = "the run ended before it was found out"


class Hashing:
    """Has files of one run hashed, one after the other.

    Parameters
    ----------
    root
        Local spool, which keeps the digests of files that do not change; None for a run that records nothing.
    """

    def __init__(self, sink: Sink, lifecycle: Lifecycle, root: Path | None) -> None:
        self._sink, self._lifecycle, self._root = sink, lifecycle, root
        self.background: Background | None = None

    def submit(self, job: Callable[[Callable[[], bool]], None], table: str, *, wait: bool) -> None:
        """Have a job done beside training, which writes a row of a table; see `Background`."""
        if not self._sink.enabled:
            self._sink.record(table, {})  # counted
            return
        if self.background is None:
            self.background = Background()
            self._lifecycle.drains.append(self.background.drain)
            self._lifecycle.closers.append(self.background.close)
        done = self.background.submit(job)
        if wait:
            done.wait()

    def merkle_digest(
        self,
        place: Place,
        options: dict[str, Any],
        stopped: Callable[[], bool],
        why: dict[str, str],
        column: str,
        *,
        is_cached: bool = True,
    ) -> MerkleDigest:
        """Return a fingerprint; an empty one, and why, if it could not be taken.

        Parameters
        ----------
        is_cached
            Whether the digest of a file that looks unchanged may stand for reading it.
        """
        from ranklake.capture.assets.known_files import KnownFiles  # sqlite: not before something is hashed

        known = None if self._root is None or not is_cached else KnownFiles(self._root)
        try:
            return merkle_digest(place, known=known, storage_options=options, stopped=stopped)
        except StoppedError:
            why[column] = RUN_ENDED
        except OSError as error:
            why[column] = error.strerror or type(error).__name__
        except Exception as error:  # noqa: BLE001 - file systems of all kinds
            why[column] = type(error).__name__
        finally:
            if known is not None:
                known.close()
        return MerkleDigest()

    def keep_checkpoint(self, place: str, sha256: str, state: str) -> None:
        """Keep the digest of a checkpoint that was written, for loads of it on this node."""
        known = self._known_checkpoints()
        if known is not None:
            known.put(place, sha256, state)

    def known_checkpoint(self, place: str) -> tuple[str, str] | None:
        """Return digest and state of what was last written to a place on this node; None if they are not known."""
        known = self._known_checkpoints()
        return None if known is None else known.get(place)

    def _known_checkpoints(self) -> "KnownCheckpoints | None":
        from ranklake.capture.assets.known_files import KnownCheckpoints  # sqlite, as above

        return None if self._root is None else KnownCheckpoints(self._root)
