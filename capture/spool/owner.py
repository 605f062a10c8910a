"""Owner: whether the process that writes a stream is still alive.

The owner has a POSIX record lock (`lockf`) on its ``owner.json`` until it ends. A `flock` would not do, because a
forked worker that outlives its parent would keep it. The kernel releases a record lock when the process closes *any*
descriptor of the file. So a process never opens an ``owner.json`` that it has locked; `HELD` lists them. On network
file systems without working locks, process start time and boot id identify a live owner.
"""

import fcntl
import json
import os
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from ranklake.capture.spool.files import open_regular, read_regular, sync_open_file

OWNER_FILE: Final = "owner.json"
_STATE, _START_TIME = 0, 19  # fields of /proc/<pid>/stat after the command's closing bracket


@dataclass(frozen=True, slots=True)
class Owner:
    """Content of ``owner.json``.

    Attributes
    ----------
    pid, start_ticks, boot_id
        Together identify a process uniquely. Without /proc, `start_ticks` is 0 and `boot_id` is empty. `start_ticks` is
        also 0 after the process has released the stream.
    role
        ``main``, or ``worker`` for a forked child.
    family
        Random number that a process and its forked children share.
    spool
        URI of the segments' destination; empty if none was configured.
    world_size
        Number of ranks of the run.
    anchor
        Monotonic and wall ns at the start: the anchor for wall times if meta.frames is damaged.
    encrypted
        Whether segments must be encrypted, by any process that seals them.
    signed
        Whether segments must be signed, by any process that seals them.
    """

    pid: int
    start_ticks: int
    boot_id: str
    role: str
    family: int
    spool: str
    world_size: int
    anchor: tuple[int, int]
    encrypted: bool = False
    signed: bool = False

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        """Parse the file's bytes. Raises `ValueError` if they are incomplete or damaged."""
        try:
            facts: dict[str, Any] = json.loads(raw)
            mono, wall = facts["anchor"]
            known = {name: facts[name] for name in cls.__dataclass_fields__ if name in facts}
            return cls(**{**known, "anchor": (int(mono), int(wall))})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError("owner.json is damaged") from error

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read a stream's ``owner.json``; None if it is damaged. Raises `OSError`.

        Do not call it for a stream of this process: closing the file would release its lock.
        """
        raw = read_regular(folder / OWNER_FILE)
        try:
            return cls.from_json(raw)
        except ValueError:
            return None

    def to_json(self) -> bytes:
        """Return the file's bytes."""
        return json.dumps(asdict(self)).encode()

    def runs(self) -> bool:
        """Whether exactly this process is running on this boot; False if unknown."""
        if not self.boot_id or self.boot_id != boot_id() or not self.start_ticks:
            return False
        return start_ticks(self.pid) == self.start_ticks


def boot_id() -> str:
    """Return the kernel's id of this boot; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if it has ended, is a zombie, or without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return 0 if fields[_STATE] in {b"Z", b"X"} else int(fields[_START_TIME])
    except (OSError, IndexError, ValueError):
        return 0


class _OpenIncarnations:
    """Incarnations whose owner.json this process has opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[int] = set()

    def take(self, incarnation: int) -> bool:
        """Reserve an incarnation for the calling thread; False if this process has it already."""
        with self._lock:
            if incarnation in self._held:
                return False
            self._held.add(incarnation)
            return True

    def has(self, incarnation: int) -> bool:
        """Whether this process has an incarnation's owner.json open."""
        with self._lock:
            return incarnation in self._held

    def drop(self, incarnation: int) -> None:
        with self._lock:
            self._held.discard(incarnation)

    def after_fork(self) -> None:
        """Reset in a forked child, because locks are not inherited."""
        self._lock = threading.Lock()
        self._held = set()


HELD: Final = _OpenIncarnations()
os.register_at_fork(after_in_child=HELD.after_fork)


class OwnerLock:
    """The lock of one stream, acquired. `incarnation` must have been reserved by ``HELD.take``."""

    def __init__(self, fd: int, incarnation: int) -> None:
        self._fd, self._incarnation, self._pid = fd, incarnation, os.getpid()

    @classmethod
    def create(cls, folder: Path, owner: Owner, incarnation: int) -> Self:
        """Write ``owner.json`` in a folder that is still hidden, and lock it. Raises `OSError`."""
        fd = os.open(folder / OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, owner.to_json())
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, incarnation)

    @classmethod
    def seize(cls, folder: Path, incarnation: int) -> tuple[Self, Owner | None] | None:
        """Lock a stream whose owner is dead; None if the owner is alive, or another process has the lock.

        Returns
        -------
        The lock, and the content of owner.json (None if damaged). Raises `OSError` if the file cannot be opened.
        """
        fd = open_regular(folder / OWNER_FILE, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink == 0:  # the previous owner finished and deleted the stream
                os.close(fd)
                return None
            raw = os.pread(fd, 1 << 16, 0)
        except OSError:
            os.close(fd)
            return None
        try:
            owner: Owner | None = Owner.from_json(raw)
        except ValueError:
            owner = None
        if owner is not None and owner.pid != os.getpid() and owner.runs():
            os.close(fd)
            return None
        return cls(fd, incarnation), owner

    def resign(self, owner: Owner) -> None:
        """Record that the owner has released the stream, so that it can be adopted while the process is alive.

        This is a single write of the same length, so a process killed here leaves a complete file. Raises `OSError`.
        """
        if os.getpid() == self._pid and self._fd >= 0:
            released = replace(owner, start_ticks=0).to_json()
            os.pwrite(self._fd, released.ljust(len(owner.to_json())), 0)

    def sync(self) -> None:
        """Sync ``owner.json`` to disk. Raises `OSError`."""
        sync_open_file(self._fd)

    def release(self) -> None:
        """Release the lock. In a forked child, only close the inherited descriptor."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        os.close(fd)
        if os.getpid() == self._pid:
            HELD.drop(self._incarnation)


def is_orphan(folder: Path, incarnation: int) -> bool:
    """Whether a stream's owner is dead and no other process has adopted the stream. Raises `OSError`."""
    if not HELD.take(incarnation):
        return False
    seized = None
    try:
        seized = OwnerLock.seize(folder, incarnation)
    finally:
        if seized is None:
            HELD.drop(incarnation)
        else:
            seized[0].release()
    return seized is not None
