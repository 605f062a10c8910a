"""Files: written whole or not at all, and synced to disk before they appear."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

TEMPORARY: Final = ".tmp"


def write_whole(path: Path, raw: bytes) -> None:
    """Write a file that is whole and on the disk when it appears under its name. Raises `OSError`, leaving none."""
    temporary = path.with_name(f".{path.name[:64]}{TEMPORARY}")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process; whatever it is, it is not written through
        with temporary.open("xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_open_file(fd: int) -> None:
    """Bring an open file's bytes to the disk itself; one that another thread closed meanwhile is left alone.

    Its owner sets the descriptor to -1 before closing it, and its bytes go by its path from then on (`sync_file`).
    Raises `OSError`.
    """
    if fd < 0:
        return
    try:
        os.fdatasync(fd)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise


def sync_file(path: Path) -> None:
    """Bring a file that nobody writes to any more to the disk; one that is gone needs it no more. Raises `OSError`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)
