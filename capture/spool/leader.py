"""Leader: the one agent of a local spool, elected by a lock.

Whoever holds the POSIX record lock on ``<local spool>/agent.json`` is the agent; the kernel gives the lock up when its
process dies, however it dies. Processes that record ask `leader` before they upload: while an agent lives, it does
that for them. As with owner.json, a process never opens an agent.json that it holds itself, since closing it would
drop the lock.
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
_ASKED_FOR_S: Final = 5.0
"""A process that asks for the leader holds the lock shared for microseconds, or until it gets a core again."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who the agent is.

    Attributes
    ----------
    pid, host
        Its process.
    since
        When it was elected: ISO 8601, UTC.
    spool
        URI that it uploads to; empty if it sends every stream where its process meant it to go.
    """

    pid: int
    host: str
    since: str
    spool: str

    def uploads_to(self, spool: str) -> bool:
        """Whether it uploads streams that are meant for a spool."""
        return not self.spool or self.spool == spool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class _LedSpools:
    """Local spools that this process leads, by the path of their lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mine: dict[str, Leader] = {}

    def after_fork(self) -> None:
        """Locks are not inherited, so a child leads nothing."""
        self.__init__()  # type: ignore[misc]


_LED: Final = _LedSpools()
os.register_at_fork(after_in_child=_LED.after_fork)


class Leadership:
    """The lock of a local spool, held."""

    def __init__(self, path: Path, fd: int, leader: Leader) -> None:
        self.leader = leader
        self._path, self._fd, self._pid = path, fd, os.getpid()

    @classmethod
    def take(cls, root: Path, spool: str) -> Self | None:
        """Become the agent of a local spool; None if another process is, or this one already.

        Raises
        ------
        OSError
            The local spool cannot be written.
        """
        path = _place(root)
        with _LED.lock:
            if str(path) in _LED.mine:
                return None
            fd = open_regular(path, os.O_RDWR | os.O_CREAT)
            try:
                _refuse_others(fd, path)
                if not _locked_within(fd, _ASKED_FOR_S):
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
        """Whether the lock is still the one that others ask for: somebody may have removed the local spool."""
        try:
            current, mine = self._path.stat(), os.fstat(self._fd)
        except OSError:
            return False
        return (current.st_dev, current.st_ino) == (mine.st_dev, mine.st_ino)

    def release(self) -> None:
        """Give the lock up; twice is harmless. In a forked child this closes the descriptor and nothing more."""
        with _LED.lock:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            os.close(fd)
            if os.getpid() == self._pid:
                _LED.mine.pop(str(self._path), None)


def leader(root: Path) -> Leader | None:
    """Return the agent of a local spool that lives now, or None."""
    path = _place(root)
    with _LED.lock:
        if str(path) in _LED.mine:
            return _LED.mine[str(path)]
        try:
            fd = open_regular(path)
        except OSError:
            return None
        try:
            if os.fstat(fd).st_uid not in {os.geteuid(), 0}:  # it serves no streams of ours, whatever it says
                return None
            if _try_lock(fd, shared=True):
                return None
            return Leader(**json.loads(os.read(fd, _MOST_BYTES)))
        except (OSError, ValueError, TypeError):  # being elected right now: the next question finds it
            return None
        finally:
            os.close(fd)


def _refuse_others(fd: int, path: Path) -> None:
    if os.fstat(fd).st_uid != os.geteuid():
        raise OSError(errno.EPERM, "another user's agent.json lies there", str(path))


def _place(root: Path) -> Path:
    return root.resolve() / LEADER_FILE


def _try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock a file if nobody holds it. Raises `OSError` where the file system has no locks."""
    try:
        fcntl.lockf(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _locked_within(fd: int, patience_s: float) -> bool:
    """Lock a file that nobody leads; those who only ask share it, and are waited for."""
    deadline = time.monotonic() + patience_s
    while not _try_lock(fd):
        if not _try_lock(fd, shared=True) or time.monotonic() > deadline:
            return False
        fcntl.lockf(fd, fcntl.LOCK_UN)
        time.sleep(0.001)
    return True
