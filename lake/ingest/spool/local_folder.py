"""A local folder as a spool that untrusted users may write to. No link is followed, so no file outside is opened."""

import errno
import os
import stat
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from fsspec.implementations.local import LocalFileSystem

from ranklake.lake.ingest.spool.gate import DENIED, IRREGULAR, TOO_LARGE, UnreadError
from ranklake.lake.store.store import delta_options, file_system
from ranklake.printable import printable_name

_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = _OPEN | os.O_NONBLOCK | os.O_NOCTTY  # without O_NONBLOCK, opening a FIFO would wait for a writer


_IRREGULAR_ERRNOS: Final = frozenset(
    {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV, errno.ENAMETOOLONG, errno.EOPNOTSUPP}
)
"""Errors of opening links, sockets, devices without a driver, and names that are too long for a file."""


def spool_files(uri: str, storage: Mapping[str, str], segment_bytes: int) -> tuple[Any, str]:
    """Return the file system of a spool and its folder there. In a local spool, links are not followed.

    Raises `ranklake.lake.store.reachability.LakeUnreachableError`.
    """
    fs, root = file_system(uri, delta_options(uri, storage))
    return (SpoolFolder(root, segment_bytes) if isinstance(fs, LocalFileSystem) else fs), root.rstrip("/")


class SpoolFolder(LocalFileSystem):  # type: ignore[misc] # fsspec ships no types
    """A folder of this machine as a spool. Only regular files below the folder are read, and never through a link.

    The folder itself may be a link, since the operator configured it. Below it, a path is opened name by name, relative
    to the opened parent folder. So no file outside is read or deleted, even if somebody replaces a folder by a link
    meanwhile.

    Parameters
    ----------
    top
        The folder.
    most_bytes
        The largest file that is read as a whole.
    """

    cachable = False

    def __init__(self, top: str, most_bytes: int, **options: Any) -> None:  # noqa: ANN401 - fsspec ships no types
        super().__init__(**options)
        self.top, self.most_bytes = top.rstrip("/"), most_bytes

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:  # noqa: ANN401
        """Return the bytes of a file, or those from `start` to `end`.

        Raises
        ------
        FileNotFoundError, UnreadError
        """
        handle, file_bytes = self._file(path)
        with os.fdopen(handle, "rb", buffering=0) as file:
            begin = 0 if start is None else start
            size = (file_bytes if end is None else min(end, file_bytes)) - begin
            if end is None and size > self.most_bytes:
                raise UnreadError(TOO_LARGE, where=printable_name(path))
            try:
                return _read(file, begin, size)
            except PermissionError:
                raise UnreadError(DENIED, where=printable_name(path)) from None

    def drop_cached(self, path: str) -> None:
        """Drop a file's pages from the page cache, where the system can, so that the next read is from the disk."""
        if not hasattr(os, "posix_fadvise"):
            return
        with suppress(OSError, UnreadError):
            handle, _ = self._file(path)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)

    def renew(self, path: str) -> None:
        """Set a file's time of modification to now. Raises `OSError` or `UnreadError`."""
        handle, _ = self._file(path)
        try:
            os.utime(handle)
        finally:
            os.close(handle)

    def put(self, path: str, raw: bytes) -> None:
        """Write a file atomically and create missing parent folders. Raises `OSError` or `UnreadError`."""
        folder, _, name = path.rpartition("/")
        handle = self._folder(folder, create=True)
        scratch = f"{uuid.uuid4().hex}.tmp"
        try:
            with os.fdopen(os.open(scratch, _NEW, dir_fd=handle, mode=0o666), "wb") as file:
                file.write(raw)
            os.rename(scratch, name, src_dir_fd=handle, dst_dir_fd=handle)
        finally:
            with suppress(OSError):
                os.unlink(scratch, dir_fd=handle)
            os.close(handle)

    def rm_file(self, path: str) -> None:
        """Delete a file, or a link, below the folder. Raises `OSError` or `UnreadError`."""
        folder, name = self._folder_of(path)
        try:
            os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)

    def ls(self, path: str, detail: bool = False, **_: Any) -> list[Any]:  # noqa: ANN401 - fsspec's
        """Return the entries of a folder; links are not followed. Raises `OSError` or `UnreadError`."""
        folder = self._folder(path)
        try:
            with os.scandir(folder) as entries:
                infos = [_info(path.rstrip("/"), entry) for entry in entries]
        finally:
            os.close(folder)
        existing = [info for info in infos if info is not None]
        return existing if detail else [info["name"] for info in existing]

    def find(self, path: str, **_: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - fsspec's
        """Return all entries below a folder, except for folders, by path.

        A folder that cannot be listed is returned as an entry of type "denied". Raises `FileNotFoundError` if the
        folder `path` does not exist.
        """
        entries_by_path: dict[str, dict[str, Any]] = {}
        unlisted = [path.rstrip("/")]
        while unlisted:
            folder = unlisted.pop()
            try:
                entries = self.ls(folder, detail=True)
            except FileNotFoundError:
                if folder == path.rstrip("/"):
                    raise
                continue
            except (OSError, UnreadError):
                entries_by_path[folder] = {"name": folder, "size": 0, "type": "denied", "mtime": None}
                continue
            for entry in entries:
                if entry["type"] == "directory":
                    unlisted.append(entry["name"])
                else:
                    entries_by_path[entry["name"]] = entry
        return entries_by_path

    def _file(self, path: str) -> tuple[int, int]:
        """Open a file for reading; return the descriptor and its size in bytes. Raises `OSError` or `UnreadError`."""
        folder, name = self._folder_of(path)
        try:
            handle = _open_in(name, _FILE, folder)
        finally:
            os.close(folder)
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            os.close(handle)
            raise UnreadError(IRREGULAR, where=printable_name(path))
        return handle, facts.st_size

    def _folder_of(self, path: str) -> tuple[int, str]:
        """Open a file's folder; return the descriptor and the file's name."""
        folder, _, name = path.rpartition("/")
        return self._folder(folder), name

    def _folder(self, path: str, *, create: bool = False) -> int:
        """Open the top folder or a folder below it, name by name; return the descriptor.

        With `create`, missing folders are created. Raises `OSError` or `UnreadError`.
        """
        inside = path.rstrip("/").removeprefix(self.top)
        if (inside and not inside.startswith("/")) or not path.startswith(self.top):
            raise UnreadError(DENIED, where=printable_name(path), hint="it lies outside the spool")
        handle = os.open(self.top or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in inside.split("/")[1:]:
            try:
                if name in {"", ".", ".."}:
                    raise UnreadError(DENIED, where=printable_name(path), hint="it lies outside the spool")
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=handle)
                below = _open_in(name, _OPEN | os.O_DIRECTORY, handle)
            finally:
                os.close(handle)
            handle = below
        return handle


def _open_in(name: str, flags: int, folder: int) -> int:
    """Open a name in a folder. Raises `FileNotFoundError`, `UnreadError`, or `OSError` if the disk fails."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except PermissionError:
        raise UnreadError(DENIED) from None
    except (IsADirectoryError, NotADirectoryError):
        raise UnreadError(IRREGULAR) from None
    except ValueError:  # the name, from a plan, has a NUL
        raise UnreadError(IRREGULAR) from None
    except OSError as error:
        if error.errno in _IRREGULAR_ERRNOS:
            raise UnreadError(IRREGULAR) from None
        raise


def _read(file: Any, begin: int, size: int) -> bytes:  # noqa: ANN401 - a raw file
    """Return up to `size` bytes of a file; fewer if the file was truncated meanwhile."""
    file.seek(begin)
    parts = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _info(folder: str, entry: "os.DirEntry[str]") -> dict[str, Any] | None:
    """Return a folder's entry in fsspec's form; None if it was deleted meanwhile."""
    try:
        facts = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError:
        return {"name": f"{folder}/{entry.name}", "size": 0, "type": "denied", "mtime": None}
    kind = "directory" if stat.S_ISDIR(facts.st_mode) else "file" if stat.S_ISREG(facts.st_mode) else "other"
    return {"name": f"{folder}/{entry.name}", "size": facts.st_size, "type": kind, "mtime": facts.st_mtime}
