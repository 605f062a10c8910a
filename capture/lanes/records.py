"""Records: rows of variable size (``runs``, ``events``), one frame each, in files that are closed for sealing."""

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
    """Return a refusal with the reason under which gaps from this error of the local spool are counted."""
    return RefusedError(_REASONS.get(error.errno or 0, SPOOL_REFUSED), str(error))


class RowMask(Protocol):
    """Masks a row before it is written; `columns` are the masked columns."""

    columns: frozenset[str]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the masked row. Raises `RefusedError`."""


@dataclass(frozen=True, slots=True)
class OpenRow:
    """A row that can be rewritten while its file is open."""

    file: FrameFile
    slot: int
    mono_ns: int


class RecordLane:
    """The open frame file of one table.

    Parameters
    ----------
    table
        Name of the table and of the lane.
    next_path
        Returns the path of the next file, or raises `RefusedError`.
    refuse
        Called with (table, reason, rows, detail) for a row that could not be written.
    mask
        Returns the masked row, or raises `RefusedError`. None if rows are written unchanged.

    Notes
    -----
    Rows are rare, so each takes a lock; it is re-entrant because signal handlers may record.
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
        """Write one row that can be rewritten later; None if it was counted as a gap."""
        try:
            masked = columns if self._mask is None else self._mask(columns)
            with self._lock:
                return self._write(mono_ns, masked)
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
        """Replace a row by appending a frame with the same slot, of which the last one counts. False on failure."""
        try:
            masked = columns if self._mask is None else self._mask(columns)
            with self._lock:
                if self._file is not row.file:
                    return False
                row.file.append({"s": row.slot, "m": row.mono_ns, **masked})
        except (ValueError, TypeError, OSError, RefusedError):
            return False
        return True

    def _write(self, mono_ns: int, columns: dict[str, Any]) -> OpenRow:
        if self._file is None:
            self._file, self._next_slot = FrameFile(self._next_path(self.table)), 0
        slot = self._next_slot
        self._next_slot += 1  # before the write, because a signal handler may append meanwhile
        try:
            self._file.append({"s": slot, "m": mono_ns, **columns})
        except BaseException:
            if self._next_slot == slot + 1:  # readers count a missing number as a lost row
                self._next_slot = slot
            raise
        return OpenRow(self._file, slot, mono_ns)

    def cut(self) -> tuple[Path, int] | None:
        """Close the open file and return its path and number of rows; None without an open file."""
        with self._lock:
            file, self._file = self._file, None
            rows, self._next_slot = self._next_slot, 0
        if file is None:
            return None
        file.close()
        return file.path, rows

    def sync(self) -> None:
        """Sync the open file to disk. Raises `OSError`."""
        with self._lock:
            if self._file is not None:
                self._file.sync()

    def abandon(self, folder: Path) -> int:
        """Close the open file if it is in a deleted folder, and return its number of rows."""
        with self._lock:
            if self._file is None or self._file.path.parent != folder:
                return 0
            closed_file = self.cut()
        return closed_file[1] if closed_file else 0

    def after_fork(self) -> None:
        """Reset in a forked child: the file belongs to the parent, and a thread of the parent may hold the lock."""
        self._lock = threading.RLock()
        self.cut()
