r"""MerkleDigest: a 32-byte hash that identifies the files of a dataset or an artifact.

The Merkle root (method `METHOD`) is of the tree over all readable regular files below a place, in the order of a walk
that goes through each folder's entries by the bytes of their names:

    leaf   SHA-256(0x00 ‖ u64 length of the path ‖ path ‖ u64 size ‖ SHA-256 of the file), big-endian, the path relative
           to the place, in UTF-8, with slashes; a single file has the empty path
    node   SHA-256(0x01 ‖ left ‖ right)
    root   the left subtree has the largest power of two of leaves that is less than their number (RFC 6962, 2.1);
           of no file at all, SHA-256 of nothing

The listing's digest is the SHA-256 of the lines ``<SHA-256 of the file>  <path>\\n`` in the same order, as `sha256sum`
prints them.

Links are followed, but not into a folder that the walk is in. In memory are one folder's names at each depth, the files
being hashed, and a digest for each level of the tree, however many files there are.
"""

import errno
import hashlib
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ranklake.capture.assets.file_entries import CHANGED, Entry, FileDigest, KnownDigests, local_entries, remote_entries

METHOD: Final = "ranklake-merkle-sha256-v1"
THREADS: Final = min(8, os.cpu_count() or 1)
NAMED_AT_MOST: Final = 20


Progress = Callable[[int, int], None]


@dataclass
class MerkleDigest:
    """What a walk found.

    Attributes
    ----------
    root_sha256, listing_sha256
        Hexadecimal; see the module.
    file_sha256
        Of a place that is one file, its digest; else empty.
    unreadable
        Reasons of the first `NAMED_AT_MOST` files that are not in the fingerprint, by path.
    """

    root_sha256: str = ""
    listing_sha256: str = ""
    file_sha256: str = ""
    file_count: int = 0
    size_bytes: int = 0
    unreadable_count: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    duration_ns: int = 0

    @property
    def sha256(self) -> str:
        """What `artifacts.sha256` holds: a file's digest, or a folder's listing's."""
        return self.file_sha256 or self.listing_sha256


class StoppedError(Exception):
    """The fingerprint was given up because the run ended."""


def merkle_digest(
    place: str | os.PathLike[str],
    *,
    known: KnownDigests | None = None,
    storage_options: dict[str, Any] | None = None,
    progress: Progress | None = None,
    stopped: Callable[[], bool] = lambda: False,
    threads: int = THREADS,
) -> MerkleDigest:
    """Hash all files of a folder, one file, or what an fsspec URI names.

    Parameters
    ----------
    known
        Digests of local files from before; others are not remembered.
    progress
        Called with files and bytes so far.
    stopped
        Asked between files; then `StoppedError` is raised.

    Raises
    ------
    FileNotFoundError
        Nothing is there. Files that cannot be read do not raise: they are counted, and left out.
    """
    began = time.monotonic_ns()
    gathering = _PendingHashes(known, progress)
    text = os.fspath(place)
    entries = remote_entries(text, storage_options or {}) if "://" in text else local_entries(Path(text), known)
    with ThreadPoolExecutor(threads, thread_name_prefix="ranklake-hash") as pool:
        try:
            for entry in entries:
                if stopped():
                    raise StoppedError
                gathering.begin(entry, pool)
                gathering.take(leave=4 * threads)
            while gathering.pending:
                if stopped():
                    raise StoppedError
                gathering.take(leave=len(gathering.pending) - 1)
        finally:
            for _, future in gathering.pending:
                future.cancel()
    made = gathering.made
    made.root_sha256, made.listing_sha256 = gathering.tree.root().hex(), gathering.listing.hexdigest()
    made.duration_ns = time.monotonic_ns() - began
    return made


class _PendingHashes:
    """The files being hashed, in order, and what is made of those that are."""

    def __init__(self, known: KnownDigests | None, progress: Progress | None) -> None:
        self._known, self._progress = known, progress
        self.made, self.tree, self.listing = MerkleDigest(), MerkleTree(), hashlib.sha256()
        self.pending: deque[tuple[str, Future[FileDigest]]] = deque()

    def begin(self, entry: Entry, pool: ThreadPoolExecutor) -> None:
        if entry.hash is None:
            self._leave_out(entry.path, entry.reason)
        else:
            self.pending.append((entry.path, _submit(pool, entry.hash)))

    def take(self, leave: int) -> None:
        """Wait for the first of those that are pending, until so many are left."""
        while len(self.pending) > leave:
            path, future = self.pending.popleft()
            try:
                self._add(path, future.result())
            except OSError as error:
                changed = error.errno == errno.EAGAIN
                self._leave_out(path, CHANGED if changed else error.strerror or type(error).__name__)

    def _add(self, path: str, hashed: FileDigest) -> None:
        if self._known is not None and hashed.identity is not None:
            self._known.put(hashed.identity, hashed.digest)
        made, name = self.made, path.encode("utf-8", "surrogateescape")
        made.file_count += 1
        made.size_bytes += hashed.size_bytes
        self.tree.add(leaf(name, hashed.size_bytes, hashed.digest))
        self.listing.update(hashed.digest.hex().encode() + b"  " + name + b"\n")
        if not path:
            made.file_sha256 = hashed.digest.hex()
        if self._progress is not None:
            self._progress(made.file_count, made.size_bytes)

    def _leave_out(self, path: str, reason: str) -> None:
        self.made.unreadable_count += 1
        if len(self.made.unreadable) < NAMED_AT_MOST:
            self.made.unreadable[path] = reason


def _submit(pool: ThreadPoolExecutor, work: Callable[[], FileDigest]) -> "Future[FileDigest]":
    """Have a file hashed; by this thread where no other can be started, as when the interpreter ends."""
    try:
        return pool.submit(work)
    except RuntimeError:
        done: Future[FileDigest] = Future()
        try:
            done.set_result(work())
        except OSError as error:
            done.set_exception(error)
        return done


# ── local files ──


# ── fsspec ──


_LENGTH: Final = struct.Struct(">Q")


def leaf(path: bytes, size_bytes: int, digest: bytes) -> bytes:
    """Return the hash of a file's leaf."""
    return hashlib.sha256(b"\0" + _LENGTH.pack(len(path)) + path + _LENGTH.pack(size_bytes) + digest).digest()


class MerkleTree:
    """The root over leaves that come one by one; holds one digest for each level."""

    def __init__(self) -> None:
        self._peaks: list[tuple[int, bytes]] = []  # (leaves below, digest), of falling powers of two

    def add(self, digest: bytes) -> None:
        """Add the next leaf."""
        leaves = 1
        while self._peaks and self._peaks[-1][0] == leaves:
            digest = _node(self._peaks.pop()[1], digest)
            leaves *= 2
        self._peaks.append((leaves, digest))

    def root(self) -> bytes:
        """Return the root over the leaves so far."""
        if not self._peaks:
            return hashlib.sha256().digest()
        digest = self._peaks[-1][1]
        for _, left in reversed(self._peaks[:-1]):
            digest = _node(left, digest)
        return digest


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
