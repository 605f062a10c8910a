"""Folders of one process: each goes with it, and at the latest when the next one looks."""

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
    """Give a new folder below a place (default: the system's for temporary files), and remove it at the end.

    Its name says of which kind it is. What processes that were killed left there, of any kind, is removed first. Beside
    each folder lies a file that its process holds locked; the kernel lets go of it when the process ends, however it
    ends.
    """
    place = Path(tempfile.gettempdir()) if place is None else place
    place.mkdir(parents=True, exist_ok=True)
    sweep(place)
    held, lock = _create_locked(kind, place)
    folder = lock.with_suffix("")
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(held)


def _create_locked(kind: str, place: Path) -> tuple[int, Path]:
    """Return a new file of ours, held locked, and its path."""
    while True:
        lock = place / f"{PREFIX}{kind}-{uuid.uuid4().hex}.lock"
        held = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX)
        # Thread 1 makes the lock's file, thread 2 (sweeping) locks it first and removes it: thread 1 then finds another
        # file, or none, under the name, and takes the next name. The folder is made once the lock is held.
        if _is_same(held, lock):
            return held, lock
        os.close(held)


def sweep(place: Path | None = None) -> list[Path]:
    """Remove what dead processes left below a place (default as for `scratch`); return the folders."""
    place = Path(tempfile.gettempdir()) if place is None else place
    gone = []
    for lock in sorted(place.glob(f"{PREFIX}*-*.lock")):
        with suppress(OSError):  # another's, or one that another sweeper was faster with
            held = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder = lock.with_suffix("")
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)
                gone.append(folder)
            finally:
                os.close(held)
    return gone


def _is_same(held: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(held), path.stat())
    except FileNotFoundError:
        return False
