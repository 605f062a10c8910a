"""File entries: lists the files below a local path or a URI in a fixed order, each with a function that hashes it."""

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

CHUNK_BYTES: Final = 1 << 20
RACY_NS: Final = 2_000_000_000
"""A file that changed less than this before it was read may change again without a new mtime."""
CHANGED: Final = "it changed while it was read"
LOOP: Final = "a link to a folder that it is in"
SPECIAL: Final = "not a regular file"


class KnownDigests(Protocol):
    """A cache of digests of files."""

    def get(self, status: os.stat_result) -> bytes | None:
        """Return the cached digest of a file with this identity, size and time of change; None if there is none."""

    def put(self, status: os.stat_result, digest: bytes) -> None:
        """Cache the digest of a file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file with its hash function, or the reason why it cannot be hashed. `path` is relative to the root."""

    path: str
    hash: Callable[[], "FileDigest"] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Digest and size of a file; `identity` is its status if the digest may be cached, else None."""

    digest: bytes
    size_bytes: int
    identity: os.stat_result | None = None


def local_entries(place: Path, known: KnownDigests | None) -> Iterator[Entry]:
    """Yield the files below a local folder, or a single file. Raises `OSError`."""
    status = place.stat()
    if stat.S_ISDIR(status.st_mode):
        yield from _folder(str(place), "", ((status.st_dev, status.st_ino),), known)
    else:
        yield _entry(str(place), "", status, known)


def _folder(
    folder: str, prefix: str, above: tuple[tuple[int, int], ...], known: KnownDigests | None
) -> Iterator[Entry]:
    try:
        names = sorted((entry.name for entry in os.scandir(folder)), key=os.fsencode)
    except OSError as error:
        yield Entry(prefix.rstrip("/"), reason=error.strerror or type(error).__name__)
        return
    for name in names:
        full, path = f"{folder}/{name}", f"{prefix}{name}"
        try:
            status = os.stat(full)  # noqa: PTH116 - fast: there may be a million files
        except OSError as error:
            yield Entry(path, reason=LOOP if error.errno == errno.ELOOP else error.strerror or type(error).__name__)
            continue
        identity = (status.st_dev, status.st_ino)
        if not stat.S_ISDIR(status.st_mode):
            yield _entry(full, path, status, known)
        elif identity in above:
            yield Entry(path, reason=LOOP)
        else:
            yield from _folder(full, f"{path}/", (*above, identity), known)


def _entry(full: str, path: str, status: os.stat_result, known: KnownDigests | None) -> Entry:
    if not stat.S_ISREG(status.st_mode):
        return Entry(path, reason=SPECIAL)
    digest = None if known is None else known.get(status)
    if digest is not None:
        return Entry(path, lambda: FileDigest(digest, status.st_size))
    return Entry(path, lambda: _hash_local(full))


def _hash_local(full: str) -> FileDigest:
    """Hash a file, and again if it changes meanwhile. Raises `OSError`; EAGAIN if it changed twice."""
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
        if is_unchanged(before, after) and size == after.st_size:
            is_cacheable = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > RACY_NS
            return FileDigest(digest.digest(), size, after if is_cacheable else None)
    raise OSError(errno.EAGAIN, CHANGED)


def is_unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether two statuses are of the same file in the same state."""
    return identity_of(before) == identity_of(after)


def identity_of(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return device, inode, mtime and ctime in ns, and size of a file."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def remote_entries(uri: str, storage_options: dict[str, Any]) -> Iterator[Entry]:
    """Yield the files below a URI, or a single file there. Raises any error of the store's client."""
    from fsspec.core import url_to_fs  # slow import, needed only for URIs

    files, root = url_to_fs(uri, **storage_options)
    if files.isfile(root):
        yield Entry("", lambda: _hash_remote(files, root))
        return
    if not files.exists(root):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)
    yield from _remote_folder(files, root.rstrip("/"), "")


def _remote_folder(files: Any, folder: str, prefix: str) -> Iterator[Entry]:  # noqa: ANN401 - a file system of fsspec
    items = {item["name"].rstrip("/").rpartition("/")[2]: item for item in files.ls(folder, detail=True)}
    for name in sorted(items, key=lambda name: name.encode("utf-8", "surrogateescape")):
        full, path = f"{folder}/{name}", f"{prefix}{name}"
        if not name or item_is_itself(items[name]["name"], folder):
            continue
        if items[name]["type"] == "directory":
            yield from _remote_folder(files, full, f"{path}/")
        else:
            yield Entry(path, lambda full=full: _hash_remote(files, full))  # type: ignore[misc]


def item_is_itself(name: str, folder: str) -> bool:
    """Whether a listing entry is the folder itself; object stores list such markers."""
    return str(name).rstrip("/").lstrip("/") == folder.strip("/")


def _hash_remote(files: Any, path: str) -> FileDigest:  # noqa: ANN401 - a file system of fsspec
    digest, size = hashlib.sha256(), 0
    with files.open(path, "rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileDigest(digest.digest(), size)


def state_of(place: str | os.PathLike[str]) -> str:
    """Return a digest of the statuses of all files at or below a path; empty if the path does not exist.

    It changes when a file is added, removed or written. Files are not read. It does not depend on whether the path is
    absolute.
    """
    digest = hashlib.sha256()
    try:
        digest.update(repr(identity_of(os.stat(place))).encode())  # noqa: PTH116 - a place may be a text
    except (OSError, ValueError):
        return ""
    for folder, names, files in os.walk(place):
        names.sort()
        for name in sorted(files):
            path = os.path.join(folder, name)  # noqa: PTH118 - a text, like os.walk's
            with contextlib.suppress(OSError):
                digest.update(repr((os.path.relpath(path, place), identity_of(os.stat(path)))).encode())  # noqa: PTH116
    return digest.hexdigest()
