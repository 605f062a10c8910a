"""Records: rows of any width (``runs``, ``events``), one frame each, in files that are cut for sealing."""

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from ranklake.capture.common.gaps import BAD_VALUE, SPOOL_FULL, SPOOL_REFUSED, SPOOL_VANISHED, TOO_LARGE, RefusedError
from ranklake.capture.spool.frames import FrameFile, FrameTooLargeError

_REASONS: Final = {
    errno.ENOSPC: SPOOL_FULL,
    errno.EDQUOT: SPOOL_FULL,
    errno.EFBIG: SPOOL_FULL,
    errno.ENOENT: SPOOL_VANISHED,
    errno.ENOTDIR: SPOOL_VANISHED,
    errno.ESTALE: SPOOL_VANISHED,
}


def refusal(error: OSError) -> RefusedError:
    """Return an error of the local spool as what gaps are counted under."""
    return RefusedError(_REASONS.get(error.errno or 0, SPOOL_REFUSED), str(error))


class RowMask(Protocol):
    """Masks a row before it is written; `columns` are those that it masks."""

    columns: frozenset[str]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row as it may be written. Raises `RefusedError`."""


@dataclass(frozen=True, slots=True)
class OpenRow:
    """A row that can be written again while its file is open."""

    file: FrameFile
    slot: int
    mono_ns: int


class RecordLane:
    """The open frame file of one table.

    Parameters
    ----------
    table
        Names the lane, too.
    next_path
        Gives the path of the next file, or raises `RefusedError`.
    refuse
        Called with (table, reason, rows, detail) for a row that found no place.
    mask
        Gives the form in which a row is written; raises `RefusedError`. None where rows are written as they are.

    Notes
    -----
    Rows are few, so a lock is taken for each; it is re-entrant for the sake of signal handlers.
    """

    def __init__(
        self,
        table: str,
        next_path: Callable[[str], Path],
        refuse: Callable[[str, str, int, str], None],
        mask: RowMask | None = None,
    ) -> None:
        self.table = table
        self._next_path, self._refuse, self._mask = next_path, refuse, mask
        self._lock = threading.RLock()
        self._file: FrameFile | None = None
        self._next_slot = 0

    def masks(self, column: str) -> bool:
        """Whether a column is masked before it is written."""
        return self._mask is not None and column in self._mask.columns

    def append(self, mono_ns: int, columns: dict[str, Any]) -> bool:
        """Write one row; False if it was counted as a gap."""
        return self.append_open(mono_ns, columns) is not None

    def append_open(self, mono_ns: int, columns: dict[str, Any]) -> OpenRow | None:
        """Write one row that may be written again; None if it was counted as a gap."""
        try:
            shown = columns if self._mask is None else self._mask(columns)
            with self._lock:
                return self._write(mono_ns, shown)
        except FrameTooLargeError as error:
            self._refuse(self.table, TOO_LARGE, 1, str(error))
        except (ValueError, TypeError) as error:
            self._refuse(self.table, BAD_VALUE, 1, str(error))
        except RefusedError as refused:
            self._refuse(self.table, refused.reason, 1, refused.detail)
        except OSError as error:
            self._refuse(self.table, refusal(error).reason, 1, str(error))
        return None

    def rewrite(self, row: OpenRow, columns: dict[str, Any]) -> bool:
        """Write a row again: of frames with one slot, the last whole one counts. False if it stays as it was."""
        try:
            shown = columns if self._mask is None else self._mask(columns)
            with self._lock:
                if self._file is not row.file:
                    return False
                row.file.append({"s": row.slot, "m": row.mono_ns, **shown})
        except (ValueError, TypeError, OSError, RefusedError):
            return False
        return True

    def _write(self, mono_ns: int, columns: dict[str, Any]) -> OpenRow:
        if self._file is None:
            self._file, self._next_slot = FrameFile(self._next_path(self.table)), 0
        slot = self._next_slot
        self._next_slot += 1  # before the write: a signal handler may append in the middle of it
        try:
            self._file.append({"s": slot, "m": mono_ns, **columns})
        except BaseException:
            if self._next_slot == slot + 1:  # readers take a missing number for a lost row
                self._next_slot = slot
            raise
        return OpenRow(self._file, slot, mono_ns)

    def cut(self) -> tuple[Path, int] | None:
        """End the open file and return its path and rows, or None if there is none."""
        with self._lock:
            file, self._file = self._file, None
            rows, self._next_slot = self._next_slot, 0
        if file is None:
            return None
        file.close()
        return file.path, rows

    def sync(self) -> None:
        """Bring the open file to the disk. Raises `OSError`."""
        with self._lock:
            if self._file is not None:
                self._file.sync()

    def abandon(self, folder: Path) -> int:
        """End the open file if it is in a folder that vanished, and return how many rows it has."""
        with self._lock:
            if self._file is None or self._file.path.parent != folder:
                return 0
            ended = self.cut()
        return ended[1] if ended else 0

    def after_fork(self) -> None:
        """In a forked child: the file is the parent's; the lock may be held by a thread that is not there."""
        self._lock = threading.RLock()
        self.cut()
