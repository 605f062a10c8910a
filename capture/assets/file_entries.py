"""File entries: the files below a local or remote path, in walk order, each with a function that hashes it."""

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
"""A file that was changed so short a time before it was read may change again without another mtime."""
CHANGED: Final = "it changed while it was read"
LOOP: Final = "a link to a folder that it is in"
SPECIAL: Final = "not a regular file"


class KnownDigests(Protocol):
    """Digests of files that have been read before."""

    def get(self, status: os.stat_result) -> bytes | None:
        """Return the digest of a file with this identity, size and time of change, if it is known."""

    def put(self, status: os.stat_result, digest: bytes) -> None:
        """Remember a digest."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file to be hashed, or the reason why one cannot be."""

    path: str
    hash: Callable[[], "FileDigest"] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The digest and size of a file as it was read; of a local one, its identity if that may be remembered."""

    digest: bytes
    size_bytes: int
    identity: os.stat_result | None = None


def local_entries(place: Path, known: KnownDigests | None) -> Iterator[Entry]:
    """Yield the files below a local place, or the place itself. Raises `OSError`."""
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
            status = os.stat(full)  # noqa: PTH116 - a million times
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
        if is_unchanged(before, after) and size == after.st_size:
            settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > RACY_NS
            return FileDigest(digest.digest(), size, after if settled else None)
    raise OSError(errno.EAGAIN, CHANGED)


def is_unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether two looks saw the same file in the same state."""
    return identity_of(before) == identity_of(after)


def identity_of(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return device, inode, times of change in ns, and size."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def remote_entries(uri: str, storage_options: dict[str, Any]) -> Iterator[Entry]:
    """Yield the files below a place in a store, or the place itself. Raises what the store's client does."""
    from fsspec.core import url_to_fs  # only where a URI asks for it

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
    """Whether an entry of a listing is the folder's own marker, as object stores have them."""
    return str(name).rstrip("/").lstrip("/") == folder.strip("/")


def _hash_remote(files: Any, path: str) -> FileDigest:  # noqa: ANN401 - a file system of fsspec
    digest, size = hashlib.sha256(), 0
    with files.open(path, "rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileDigest(digest.digest(), size)


def state_of(place: str | os.PathLike[str]) -> str:
    """Return what changes when any file at or below a place is written again, comes or goes; empty if none is there.

    Files are not read, only looked at. However the place is spelled, absolute or not, it is the same.
    """
    digest = hashlib.sha256()
    try:
        digest.update(repr(identity_of(os.stat(place))).encode())  # noqa: PTH116 - a place may be a text
    except (OSError, ValueError):
        return ""
    for folder, names, files in os.walk(place):
        names.sort()
        for name in sorted(files):
            path = os.path.join(folder, name)  # noqa: PTH118 - as os.walk has it
            with contextlib.suppress(OSError):
                digest.update(repr((os.path.relpath(path, place), identity_of(os.stat(path)))).encode())  # noqa: PTH116
    return digest.hexdigest()
