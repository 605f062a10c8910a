"""NCCL's own file: what it writes to ``NCCL_DEBUG_FILE``, followed, as rows of ``logs``.

NCCL opens the file when its first communicator is made, empties it, and replaces ``%h`` with the host's name up to its
first dot and ``%p`` with the process number. Without ``%p`` ranks share it; each takes its own lines then.
"""

import contextlib
import os
import platform
import stat
from collections.abc import Callable, Mapping
from typing import Final

from ranklake.capture.logs.nccl_lines import nccl_line

VARIABLE: Final = "NCCL_DEBUG_FILE"
_MOST_BYTES: Final = 1 << 20
"""Read at a look; more comes at the next."""


def debug_file(pattern: str, host: str, pid: int) -> str:
    """Return where NCCL writes to, as its ``src/debug.cc`` makes it of the variable.

    >>> debug_file("/tmp/nccl.%h.%p", "node-1.cluster", 7)
    '/tmp/nccl.node-1.7'
    """
    name = host.partition(".")[0].replace("%", "-").replace("/", "-")
    parts = pattern.split("%%")
    return "%".join(part.replace("%h", name).replace("%p", str(pid)) for part in parts)


class NcclFile:
    """Follows the file of this process. What cannot be read is left out; nothing raises.

    Parameters
    ----------
    feed
        Takes the bytes of whole lines.
    """

    def __init__(self, feed: Callable[[bytes], None], environment: Mapping[str, str] | None = None) -> None:
        self._feed, self._environment = feed, os.environ if environment is None else environment
        self._pid, self._read_bytes, self._inode = os.getpid(), 0, -1
        # what stands there already is of a process before this one, until NCCL empties the file
        self._old = self._status()

    def look(self) -> None:
        """Read what was written since the last look."""
        with contextlib.suppress(OSError):
            self._look()

    def _look(self) -> None:
        status = self._status()
        if status is None or os.getpid() != self._pid:
            return
        if self._old is not None:
            if (status.st_ino, status.st_size, status.st_mtime_ns) == (
                self._old.st_ino, self._old.st_size, self._old.st_mtime_ns,
            ):  # fmt: skip
                return
            self._old = None
        if status.st_ino != self._inode or status.st_size < self._read_bytes:
            self._inode, self._read_bytes = status.st_ino, 0
        if status.st_size > self._read_bytes:
            with open(self._path, "rb", opener=_without_waiting) as file:
                file.seek(self._read_bytes)
                raw = file.read(_MOST_BYTES)
            whole = raw[: raw.rfind(b"\n") + 1] or (raw if len(raw) == _MOST_BYTES else b"")
            self._read_bytes += len(whole)
            own = b"".join(line for line in whole.splitlines(keepends=True) if self._is_own(line))
            if own:
                self._feed(own)

    @property
    def _path(self) -> str:
        return debug_file(self._environment.get(VARIABLE, ""), platform.node(), self._pid)

    def _status(self) -> os.stat_result | None:
        """Return the status of the file; None where there is none, or it is a device such as /dev/stderr."""
        if not self._environment.get(VARIABLE):
            return None
        try:
            status = os.stat(self._path)  # noqa: PTH116 - once a second
        except (OSError, ValueError):
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def _is_own(self, line: bytes) -> bool:
        parts = nccl_line(line.decode("utf-8", "replace"))
        return parts is None or parts.pid in (None, self._pid)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
