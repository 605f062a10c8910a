r"""Merkle digest: a 32-byte hash that identifies the files of a dataset or an artifact.

The Merkle root (method `METHOD`) is computed over all readable regular files below a path. Folders are walked depth
first, with entries in the order of the bytes of their names:

    leaf   SHA-256(0x00 ‖ u64 length of the path ‖ path ‖ u64 size ‖ SHA-256 of the file), big-endian; the path is
           relative, in UTF-8, with slashes; that of a single file is empty
    node   SHA-256(0x01 ‖ left ‖ right)
    root   the number of leaves in the left subtree is the largest power of two below their total (RFC 6962, 2.1);
           without files, SHA-256 of nothing

The listing's digest is the SHA-256 of the lines ``<SHA-256 of the file>  <path>\\n`` in the same order, as `sha256sum`
prints them.

Links are followed, except into a parent folder. Memory holds the names of one folder at each depth, the files being
hashed, and a digest for each level of the tree, whatever the number of files.
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
    """The result of hashing the files below a path.

    Attributes
    ----------
    root_sha256, listing_sha256
        Merkle root and digest of the listing, in hex.
    file_sha256
        Digest of the file if the path is a single file; else empty.
    unreadable
        Why files are not included, by path, for the first `NAMED_AT_MOST`.
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
        """Value of `artifacts.sha256`: the digest of a single file, or of a folder's listing."""
        return self.file_sha256 or self.listing_sha256


class StoppedError(Exception):
    """Hashing was stopped because the run ended."""


def merkle_digest(
    place: str | os.PathLike[str],
    *,
    known: KnownDigests | None = None,
    storage_options: dict[str, Any] | None = None,
    progress: Progress | None = None,
    stopped: Callable[[], bool] = lambda: False,
    threads: int = THREADS,
) -> MerkleDigest:
    """Hash a file, or all files below a folder or an fsspec URI.

    Parameters
    ----------
    known
        Cache of digests of local files.
    progress
        Called with the number of files and bytes so far.
    stopped
        Called between files; if it returns true, `StoppedError` is raised.

    Raises
    ------
    FileNotFoundError
        The path does not exist. Unreadable files do not raise: they are counted, and not included.
    """
    start_ns = time.monotonic_ns()
    hashes = _PendingHashes(known, progress)
    text = os.fspath(place)
    entries = remote_entries(text, storage_options or {}) if "://" in text else local_entries(Path(text), known)
    with ThreadPoolExecutor(threads, thread_name_prefix="ranklake-hash") as pool:
        try:
            for entry in entries:
                if stopped():
                    raise StoppedError
                hashes.submit(entry, pool)
                hashes.collect(most_pending=4 * threads)
            while hashes.pending:
                if stopped():
                    raise StoppedError
                hashes.collect(most_pending=len(hashes.pending) - 1)
        finally:
            for _, future in hashes.pending:
                future.cancel()
    result = hashes.result
    result.root_sha256, result.listing_sha256 = hashes.tree.root().hex(), hashes.listing.hexdigest()
    result.duration_ns = time.monotonic_ns() - start_ns
    return result


class _PendingHashes:
    """The files being hashed, in order, and the result over those already hashed."""

    def __init__(self, known: KnownDigests | None, progress: Progress | None) -> None:
        self._known, self._progress = known, progress
        self.result, self.tree, self.listing = MerkleDigest(), MerkleTree(), hashlib.sha256()
        self.pending: deque[tuple[str, Future[FileDigest]]] = deque()

    def submit(self, entry: Entry, pool: ThreadPoolExecutor) -> None:
        if entry.hash is None:
            self._leave_out(entry.path, entry.reason)
        else:
            self.pending.append((entry.path, _submit(pool, entry.hash)))

    def collect(self, most_pending: int) -> None:
        """Wait for the files in order, and add them, until at most so many are pending."""
        while len(self.pending) > most_pending:
            path, future = self.pending.popleft()
            try:
                self._add(path, future.result())
            except OSError as error:
                is_changed = error.errno == errno.EAGAIN
                self._leave_out(path, CHANGED if is_changed else error.strerror or type(error).__name__)

    def _add(self, path: str, file: FileDigest) -> None:
        if self._known is not None and file.identity is not None:
            self._known.put(file.identity, file.digest)
        result, name = self.result, path.encode("utf-8", "surrogateescape")
        result.file_count += 1
        result.size_bytes += file.size_bytes
        self.tree.add(leaf(name, file.size_bytes, file.digest))
        self.listing.update(file.digest.hex().encode() + b"  " + name + b"\n")
        if not path:
            result.file_sha256 = file.digest.hex()
        if self._progress is not None:
            self._progress(result.file_count, result.size_bytes)

    def _leave_out(self, path: str, reason: str) -> None:
        self.result.unreadable_count += 1
        if len(self.result.unreadable) < NAMED_AT_MOST:
            self.result.unreadable[path] = reason


def _submit(pool: ThreadPoolExecutor, work: Callable[[], FileDigest]) -> "Future[FileDigest]":
    """Hash a file in the pool, or in this thread if no thread can be started, as at interpreter exit."""
    try:
        return pool.submit(work)
    except RuntimeError:
        done: Future[FileDigest] = Future()
        try:
            done.set_result(work())
        except OSError as error:
            done.set_exception(error)
        return done


_LENGTH: Final = struct.Struct(">Q")


def leaf(path: bytes, size_bytes: int, digest: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(b"\0" + _LENGTH.pack(len(path)) + path + _LENGTH.pack(size_bytes) + digest).digest()


class MerkleTree:
    """A Merkle tree that is built leaf by leaf, with one digest in memory for each level."""

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
