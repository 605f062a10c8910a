"""Reading: the columns of one row as they are read, and why the others are missing."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.values import json_text

NOT_THERE: Final = "not there"
NOT_PERMITTED: Final = "not permitted"
NOT_UNDERSTOOD: Final = "not understood"
OUT_OF_RANGE: Final = "out of range"
_REASONS: Final = {
    errno.ENOENT: NOT_THERE,
    errno.ENOTDIR: NOT_THERE,
    errno.ESRCH: NOT_THERE,
    errno.ENODEV: NOT_THERE,
    errno.EACCES: NOT_PERMITTED,
    errno.EPERM: NOT_PERMITTED,
    errno.EOPNOTSUPP: "not supported",
}
_MOST_BYTES: Final = 1 << 20


class UnavailableError(Exception):
    """A value is not available; its text says why, in a few words."""


class Tree:
    """Files below a root: ``/``, or a folder that a machine's /proc and /sys were copied to."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    def text(self, path: str) -> str:
        """Return a file's text, such as that of ``proc/stat``. Raises `OSError`."""
        fd = os.open(f"{self.root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = [os.read(fd, 1 << 16)]
            while parts[-1] and sum(map(len, parts)) < _MOST_BYTES:
                parts.append(os.read(fd, 1 << 16))
        finally:
            os.close(fd)
        return b"".join(parts).decode("utf-8", "replace")

    def number(self, path: str) -> int:
        """Return the whole number that a file holds. Raises `OSError`, `ValueError`."""
        return int(self.text(path))

    def names(self, path: str) -> list[str]:
        """Return what a folder holds, sorted. Raises `OSError`."""
        return sorted(os.listdir(f"{self.root}/{path}"))  # noqa: PTH208 - paths as objects cost more than the listing

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return Path(f"{self.root}/{path}").exists()


class Reading:
    """One row in the making.

    Attributes
    ----------
    columns
        What was found.
    unavailable
        Why a column that was looked for is missing.
    """

    def __init__(self, **columns: Any) -> None:  # noqa: ANN401 - columns of any type
        self.columns: dict[str, Any] = columns
        self.unavailable: dict[str, str] = {}

    def take(self, columns: Iterable[str], read: Callable[[], Mapping[str, Any]]) -> None:
        """Take columns from a source; where it fails, all of them are missing for the same reason."""
        try:
            self.columns.update(read())
        except Exception as error:  # noqa: BLE001 - whatever a host has in store, the other columns are read
            self.unavailable.update(dict.fromkeys(columns, reason(error)))

    def row(self) -> dict[str, Any]:
        """Return the row, with the column ``unavailable``; a number that no column can hold is none."""
        for column, value in self.columns.items():
            if type(value) is int and not -(1 << 63) <= value < 1 << 63:
                self.columns[column], self.unavailable[column] = None, OUT_OF_RANGE
        missing = {column: why for column, why in self.unavailable.items() if self.columns.get(column) is None}
        return {**self.columns, "unavailable": json_text(missing) if missing else None}


def reason(error: Exception) -> str:
    """Return in a few words why something could not be read; never what was read."""
    if isinstance(error, UnavailableError):
        return str(error)
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, error.strerror or type(error).__name__)
    if isinstance(error, ValueError | KeyError | IndexError):
        return NOT_UNDERSTOOD
    return type(error).__name__
