"""Leader: the one agent of a local spool, elected by a lock.

The process with the POSIX record lock on ``<local spool>/agent.json`` is the agent. The kernel releases the lock when
the process ends in any way. Recording processes call `leader` before they upload: while an agent is alive, it uploads
for them. A process never opens an agent.json that it has locked, because closing the file would release the lock.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from ranklake.capture.spool.files import open_regular

LEADER_FILE: Final = "agent.json"
_MOST_BYTES: Final = 1 << 16
_SHARED_LOCK_TIMEOUT_S: Final = 5.0
"""Longest wait for processes that call `leader`: they have a shared lock for microseconds, or longer on a busy CPU."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The agent of a local spool.

    Attributes
    ----------
    pid, host
        Process and host of the agent.
    since
        Time of its election: ISO 8601, UTC.
    spool
        URI that it uploads to; empty if it sends each stream to the stream's own destination.
    """

    pid: int
    host: str
    since: str
    spool: str

    def uploads_to(self, spool: str) -> bool:
        """Whether it uploads streams whose destination is `spool`."""
        return not self.spool or self.spool == spool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class _LedSpools:
    """Local spools that this process leads, by the path of their lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mine: dict[str, Leader] = {}

    def after_fork(self) -> None:
        """Reset in a forked child, because locks are not inherited."""
        self.__init__()  # type: ignore[misc]


_LED: Final = _LedSpools()
os.register_at_fork(after_in_child=_LED.after_fork)


class Leadership:
    """The lock of a local spool, acquired by this process."""

    def __init__(self, path: Path, fd: int, leader: Leader) -> None:
        self.leader = leader
        self._path, self._fd, self._pid = path, fd, os.getpid()

    @classmethod
    def take(cls, root: Path, spool: str) -> Self | None:
        """Become the agent of a local spool; None if another process is the agent, or this process already is.

        Raises
        ------
        OSError
            The local spool cannot be written.
        """
        path = _lock_path(root)
        with _LED.lock:
            if str(path) in _LED.mine:
                return None
            fd = open_regular(path, os.O_RDWR | os.O_CREAT)
            try:
                _require_own_file(fd, path)
                if not _locked_within(fd, _SHARED_LOCK_TIMEOUT_S):
                    os.close(fd)
                    return None
                leader = Leader(os.getpid(), socket.gethostname(), datetime.now(UTC).isoformat("T", "seconds"), spool)
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps(asdict(leader)).encode(), 0)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.close(fd)
                raise
            _LED.mine[str(path)] = leader
            return cls(path, fd, leader)

    def still_holds(self) -> bool:
        """Whether the locked file is still the one at its path; False if the local spool was deleted."""
        try:
            current, mine = self._path.stat(), os.fstat(self._fd)
        except OSError:
            return False
        return (current.st_dev, current.st_ino) == (mine.st_dev, mine.st_ino)

    def release(self) -> None:
        """Release the lock; a second call does nothing. In a forked child, only close the inherited descriptor."""
        with _LED.lock:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            os.close(fd)
            if os.getpid() == self._pid:
                _LED.mine.pop(str(self._path), None)


def leader(root: Path) -> Leader | None:
    """Return the live agent of a local spool; None if there is none."""
    path = _lock_path(root)
    with _LED.lock:
        if str(path) in _LED.mine:
            return _LED.mine[str(path)]
        try:
            fd = open_regular(path)
        except OSError:
            return None
        try:
            if os.fstat(fd).st_uid not in {os.geteuid(), 0}:  # another user's agent does not handle our streams
                return None
            if _try_lock(fd, shared=True):
                return None
            return Leader(**json.loads(os.read(fd, _MOST_BYTES)))
        except (OSError, ValueError, TypeError):  # an election is in progress: the next call sees its result
            return None
        finally:
            os.close(fd)


def _require_own_file(fd: int, path: Path) -> None:
    if os.fstat(fd).st_uid != os.geteuid():
        raise OSError(errno.EPERM, "the file belongs to another user", str(path))


def _lock_path(root: Path) -> Path:
    return root.resolve() / LEADER_FILE


def _try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock a file if no other process has the lock. Raises `OSError` if the file system has no locks."""
    try:
        fcntl.lockf(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _locked_within(fd: int, timeout_s: float) -> bool:
    """Lock a file within a time. Shared locks of processes that call `leader` are waited for; an agent's is not."""
    deadline = time.monotonic() + timeout_s
    while not _try_lock(fd):
        if not _try_lock(fd, shared=True) or time.monotonic() > deadline:
            return False
        fcntl.lockf(fd, fcntl.LOCK_UN)
        time.sleep(0.001)
    return True
