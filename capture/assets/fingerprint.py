r"""Fingerprint: what exactly the files of a dataset or an artifact hold, in 32 bytes.

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
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

METHOD: Final = "ranklake-merkle-sha256-v1"
THREADS: Final = min(8, os.cpu_count() or 1)
CHUNK_BYTES: Final = 1 << 20
NAMED_AT_MOST: Final = 20
RACY_NS: Final = 2_000_000_000
"""A file that was changed so short a time before it was read may change again without another mtime."""

CHANGED: Final = "it changed while it was read"
LOOP: Final = "a link to a folder that it is in"
SPECIAL: Final = "not a regular file"
_LENGTH: Final = struct.Struct(">Q")

Progress = Callable[[int, int], None]


class Known(Protocol):
    """Digests of files that have been read before."""

    def get(self, found: os.stat_result) -> bytes | None:
        """Return the digest of a file with this identity, size and time of change, if it is known."""

    def put(self, found: os.stat_result, digest: bytes) -> None:
        """Remember a digest."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file to be hashed, or the reason why one cannot be."""

    path: str
    hash: Callable[[], "Hashed"] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Hashed:
    """The digest and size of a file as it was read; of a local one, its identity if that may be remembered."""

    digest: bytes
    size_bytes: int
    identity: os.stat_result | None = None


@dataclass
class Fingerprint:
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


def fingerprint(
    place: str | os.PathLike[str],
    *,
    known: Known | None = None,
    storage_options: dict[str, Any] | None = None,
    progress: Progress | None = None,
    stopped: Callable[[], bool] = lambda: False,
    threads: int = THREADS,
) -> Fingerprint:
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
    gathering = _Gathering(known, progress)
    text = os.fspath(place)
    entries = _remote_entries(text, storage_options or {}) if "://" in text else _local_entries(Path(text), known)
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


class _Gathering:
    """The files being hashed, in order, and what is made of those that are."""

    def __init__(self, known: Known | None, progress: Progress | None) -> None:
        self._known, self._progress = known, progress
        self.made, self.tree, self.listing = Fingerprint(), MerkleTree(), hashlib.sha256()
        self.pending: deque[tuple[str, Future[Hashed]]] = deque()

    def begin(self, entry: Entry, pool: ThreadPoolExecutor) -> None:
        if entry.hash is None:
            self._leave_out(entry.path, entry.reason)
        else:
            self.pending.append((entry.path, _submitted(pool, entry.hash)))

    def take(self, leave: int) -> None:
        """Wait for the first of those that are pending, until so many are left."""
        while len(self.pending) > leave:
            path, future = self.pending.popleft()
            try:
                self._add(path, future.result())
            except OSError as error:
                changed = error.errno == errno.EAGAIN
                self._leave_out(path, CHANGED if changed else error.strerror or type(error).__name__)

    def _add(self, path: str, hashed: Hashed) -> None:
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


def _submitted(pool: ThreadPoolExecutor, work: Callable[[], Hashed]) -> "Future[Hashed]":
    """Have a file hashed; by this thread where no more can be had, as when the interpreter ends."""
    try:
        return pool.submit(work)
    except RuntimeError:
        done: Future[Hashed] = Future()
        try:
            done.set_result(work())
        except OSError as error:
            done.set_exception(error)
        return done


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


# ── local files ──


def _local_entries(place: Path, known: Known | None) -> Iterator[Entry]:
    found = place.stat()
    if stat.S_ISDIR(found.st_mode):
        yield from _folder(str(place), "", ((found.st_dev, found.st_ino),), known)
    else:
        yield _entry(str(place), "", found, known)


def _folder(folder: str, prefix: str, above: tuple[tuple[int, int], ...], known: Known | None) -> Iterator[Entry]:
    try:
        names = sorted((entry.name for entry in os.scandir(folder)), key=os.fsencode)
    except OSError as error:
        yield Entry(prefix.rstrip("/"), reason=error.strerror or type(error).__name__)
        return
    for name in names:
        full, path = f"{folder}/{name}", f"{prefix}{name}"
        try:
            found = os.stat(full)  # noqa: PTH116 - a million times
        except OSError as error:
            yield Entry(path, reason=LOOP if error.errno == errno.ELOOP else error.strerror or type(error).__name__)
            continue
        identity = (found.st_dev, found.st_ino)
        if not stat.S_ISDIR(found.st_mode):
            yield _entry(full, path, found, known)
        elif identity in above:
            yield Entry(path, reason=LOOP)
        else:
            yield from _folder(full, f"{path}/", (*above, identity), known)


def _entry(full: str, path: str, found: os.stat_result, known: Known | None) -> Entry:
    if not stat.S_ISREG(found.st_mode):
        return Entry(path, reason=SPECIAL)
    digest = None if known is None else known.get(found)
    if digest is not None:
        return Entry(path, lambda: Hashed(digest, found.st_size))
    return Entry(path, lambda: _hash_local(full))


def _hash_local(full: str) -> Hashed:
    """Hash a file; one that changes meanwhile is tried once more. Raises `OSError`, EAGAIN for one that changes on."""
    for _ in range(2):
        fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            before = os.fstat(fd)
            digest, size = hashlib.sha256(), 0
            while chunk := os.read(fd, CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
            after = os.fstat(fd)
        finally:
            os.close(fd)
        if same(before, after) and size == after.st_size:
            settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > RACY_NS
            return Hashed(digest.digest(), size, after if settled else None)
    raise OSError(errno.EAGAIN, CHANGED)


def same(one: os.stat_result, other: os.stat_result) -> bool:
    """Say whether two looks saw the same file in the same state."""
    return identity_of(one) == identity_of(other)


def identity_of(found: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return device, inode, times of change in ns, and size."""
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


# ── fsspec ──


def _remote_entries(uri: str, storage_options: dict[str, Any]) -> Iterator[Entry]:
    from fsspec.core import url_to_fs  # only where a URI asks for it

    files, root = url_to_fs(uri, **storage_options)
    if files.isfile(root):
        yield Entry("", lambda: _hash_remote(files, root))
        return
    if not files.exists(root):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)
    yield from _remote_folder(files, root.rstrip("/"), "")


def _remote_folder(files: Any, folder: str, prefix: str) -> Iterator[Entry]:  # noqa: ANN401 - a file system of fsspec
    found = {item["name"].rstrip("/").rpartition("/")[2]: item for item in files.ls(folder, detail=True)}
    for name in sorted(found, key=lambda name: name.encode("utf-8", "surrogateescape")):
        full, path = f"{folder}/{name}", f"{prefix}{name}"
        if not name or item_is_itself(found[name]["name"], folder):
            continue
        if found[name]["type"] == "directory":
            yield from _remote_folder(files, full, f"{path}/")
        else:
            yield Entry(path, lambda full=full: _hash_remote(files, full))  # type: ignore[misc]


def item_is_itself(name: str, folder: str) -> bool:
    """Say whether an entry of a listing is the folder's own marker, as object stores have them."""
    return str(name).rstrip("/").lstrip("/") == folder.strip("/")


def _hash_remote(files: Any, path: str) -> Hashed:  # noqa: ANN401 - a file system of fsspec
    digest, size = hashlib.sha256(), 0
    with files.open(path, "rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return Hashed(digest.digest(), size)
