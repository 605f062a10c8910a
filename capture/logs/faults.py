"""Faults: record the text of Python's fault handler when the process dies.

`faulthandler` writes to a descriptor from within the signal handler. So its file in the stream's folder has the text of
a SIGSEGV before the process is dead. The process that adopts the stream makes a row of ``logs`` from it. If the fault
handler is already enabled, it is not changed, and its text goes to standard error.
"""

import contextlib
import faulthandler
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ranklake.capture.spool import frames
from ranklake.capture.spool.files import read_regular, write_whole
from ranklake.redaction.redact import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ranklake.capture.spool.clock import Anchor

FAULTS_FILE: Final = "faults.txt"
_MOST_BYTES: Final = 1 << 16
_FATAL: Final = "Fatal Python error: "
_STREAM: Final = "faulthandler"


class Faults:
    """The fault handler's file in one stream. Creating it raises `OSError`.

    Notes
    -----
    The fault handler does not report its descriptor, and the user may have enabled it again. So it is never disabled
    here. It gets one descriptor for the life of the process. This refers to the stream's file, and to /dev/null after
    the close.
    """

    _handed_over: ClassVar[int] = -1

    def __init__(self, folder: Path) -> None:
        self.path = folder / FAULTS_FILE
        self._pid = os.getpid()
        self._open = True
        is_enabled_by_user = Faults._handed_over < 0 and faulthandler.is_enabled()
        if not is_enabled_by_user:
            self._redirect(self.path, os.O_CREAT | os.O_APPEND)
            if not faulthandler.is_enabled():
                faulthandler.enable(Faults._handed_over, all_threads=True)

    @staticmethod
    def _redirect(path: Path, flags: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        if Faults._handed_over < 0:
            Faults._handed_over = fd
        else:
            os.dup2(fd, Faults._handed_over, inheritable=False)
            os.close(fd)

    def close(self) -> dict[str, Any] | None:
        """Close the file and delete it; return a row with its text, or None if it is empty."""
        is_open, self._open = self._open, False
        if not is_open or os.getpid() != self._pid:
            return None
        if Faults._handed_over >= 0:
            with contextlib.suppress(OSError):
                self._redirect(Path(os.devnull), 0)
        columns = columns_of(self.path)
        with contextlib.suppress(OSError):
            self.path.unlink()
        return columns


def columns_of(path: Path) -> dict[str, Any] | None:
    """Return the columns of ``logs`` for a file of the fault handler; None if it is missing or empty."""
    try:
        raw = read_regular(path)[:_MOST_BYTES].decode("utf-8", "replace").strip()
    except OSError:
        return None
    if not raw:
        return None
    text = str(redact(raw))
    first = text.partition("\n")[0]
    return {
        "severity_text": "FATAL",
        "severity_number": 21,
        "stream": _STREAM,
        "logger": _STREAM,
        "message": first,
        "template": first if first.startswith(_FATAL) else None,
        "exception_stacktrace": text,
    }


def adopt(
    folder: Path,
    straight: "Sequence[Anchor]",
    next_path: "Callable[[str], Path]",
    mask: "Callable[[dict[str, Any]], dict[str, Any]] | None" = None,
) -> None:
    """Write a row with the faults of a dead process. If it is repeated after a kill, it gives the same row.

    Parameters
    ----------
    straight
        Anchors of the stream, in order.
    next_path
        Returns the path of a table's next file in the folder.
    mask
        Returns the masked row, as the process would have written it; None without masks.

    Raises `OSError`.
    """
    path = folder / FAULTS_FILE
    columns = columns_of(path)
    if columns is not None and mask is not None:
        columns = mask(columns)
    if columns is not None and not _is_adopted(folder, columns.get("exception_stacktrace")):
        mono, wall = straight[-1]
        row = {"s": 0, "m": max(1, mono + path.stat().st_mtime_ns - wall), **columns}
        write_whole(next_path("logs"), frames.pack({name: value for name, value in row.items() if value is not None}))
    path.unlink(missing_ok=True)


def _is_adopted(folder: Path, text: str | None) -> bool:
    """Whether a recovery that was killed before sealing has written the row already."""
    rows = [frame for path in folder.glob("logs-*.open") for frame in frames.read(path).frames]
    if text is None:  # masked away
        return any(frame.get("stream") == _STREAM for frame in rows)
    return any(frame.get("exception_stacktrace") == text for frame in rows)
