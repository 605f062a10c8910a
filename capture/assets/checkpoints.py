"""Checkpoints: files and folders that appear whole or not at all.

They are written under another name in the same folder, brought to the disk, and renamed. What a killed process leaves
is named ``.<name>.<random>.ranklake-tmp``, and no reader takes it for the checkpoint.
"""

import contextlib
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Final

from ranklake.capture.spool.files import sync_folder

SUFFIX: Final = ".ranklake-tmp"


class AtomicWrite:
    """A place to write to, which becomes the target at `commit`.

    Attributes
    ----------
    temporary
        Does not exist yet: make a file or a folder of it. The folder that it is in does.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        with contextlib.suppress(OSError):  # whoever writes there is told
            target.parent.mkdir(parents=True, exist_ok=True)
        self.temporary = target.with_name(f".{target.name[:128]}.{secrets.token_hex(4)}{SUFFIX}")
        self.began_ns = time.monotonic_ns()

    def commit(self) -> None:
        """Bring it to the disk and give it its name, in place of what has it now.

        A file replaces a file in one step. A folder cannot: the old one is first renamed, so that for a moment there is
        none; it is never half of one and half of the other.

        Raises
        ------
        OSError
            The target is as it was, and the temporary one is gone.
        """
        try:
            _sync(self.temporary)
            if self.target.is_dir() and not self.target.is_symlink():
                old = self.target.with_name(f".{self.target.name[:128]}.{secrets.token_hex(4)}.old{SUFFIX}")
                self.target.rename(old)
                try:
                    self.temporary.rename(self.target)
                except OSError:
                    old.rename(self.target)
                    raise
                shutil.rmtree(old, ignore_errors=True)
            else:
                self.temporary.replace(self.target)
        except BaseException:
            self.abandon()
            raise
        sync_folder(self.target.parent)

    def spent_ns(self) -> int:
        """Return how long it has taken so far."""
        return time.monotonic_ns() - self.began_ns

    def is_empty(self) -> bool:
        """Say whether nothing was written."""
        return not os.path.lexists(self.temporary)

    def abandon(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            if self.temporary.is_dir():
                shutil.rmtree(self.temporary, ignore_errors=True)
            else:
                self.temporary.unlink()


def _sync(place: Path) -> None:
    """Bring a file, or all files and folders below one, to the disk."""
    if not place.is_dir():
        _sync_one(place)
        return
    for folder, _, names in os.walk(place):
        for name in names:
            _sync_one(Path(folder, name))
        sync_folder(Path(folder))


def _sync_one(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
