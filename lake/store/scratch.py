"""Temporary folders that are removed when their process ends, or by the next process if it was killed."""

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "ranklake-"


@contextmanager
def scratch(kind: str, place: Path | None = None) -> Iterator[Path]:
    """Yield a new folder below a place (default: the system's temporary folder), and remove it afterwards.

    The folder's name contains `kind`. Folders of killed processes, of any kind, are removed first. Beside each folder
    is a lock file that its process keeps locked. The kernel releases the lock however the process ends.
    """
    place = Path(tempfile.gettempdir()) if place is None else place
    place.mkdir(parents=True, exist_ok=True)
    sweep(place)
    descriptor, lock = _create_locked(kind, place)
    folder = lock.with_suffix("")
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _create_locked(kind: str, place: Path) -> tuple[int, Path]:
    """Create a lock file and lock it. Returns its open descriptor and its path."""
    while True:
        lock = place / f"{PREFIX}{kind}-{uuid.uuid4().hex}.lock"
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Process 1 creates the lock file. Process 2, in `sweep`, locks it first and removes it. Process 1 then finds no
        # file, or another one, under the name, and tries the next name. The folder is created once the lock is held.
        if _is_same_file(descriptor, lock):
            return descriptor, lock
        os.close(descriptor)


def sweep(place: Path | None = None) -> list[Path]:
    """Remove the folders of dead processes below a place (default as for `scratch`). Returns their paths."""
    place = Path(tempfile.gettempdir()) if place is None else place
    removed = []
    for lock in sorted(place.glob(f"{PREFIX}*-*.lock")):
        with suppress(OSError):  # another user's, in use, or removed by another process
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder = lock.with_suffix("")
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)
                removed.append(folder)
            finally:
                os.close(descriptor)
    return removed


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
