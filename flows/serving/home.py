"""The home of ``ranklake up``: a folder of one user, used by one process at a time.

    <home>/up.json        the serving process; locked while it lives, however it ends
    <home>/prefect.db     Prefect's database, unless another one is configured
    <home>/without.toml   an empty configuration, for runs without a configuration file
    <home>/authority.pem  the one certificate that Prefect's clients read (`ranklake.flows.serving.environment`)
    <home>/…              further files of Prefect

The kernel holds the lock, so the file of a killed process does not block the next one.
"""

import fcntl
import json
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from ranklake.errors import RanklakeError

LOCK: Final = "up.json"
EMPTY_CONFIG: Final = "without.toml"
_OTHERS: Final = 0o077
_MOST_BYTES: Final = 1 << 16


class HomeError(RanklakeError):
    """The home folder cannot be used."""


class HomeTakenError(HomeError):
    """Another process serves this home."""

    def __init__(self, home: Path, holder: dict[str, object]) -> None:
        pid = holder.get("pid", "?")
        holder_text = (
            f"process {pid} on {holder.get('host', '?')} since {holder.get('since', '?')}, {holder.get('url', '')}"
        )
        hint = f"stop it (kill {pid}), or name another folder by --home and another --port"
        super().__init__(f"ranklake up runs here already ({holder_text})", where=str(home), hint=hint)
        self.pid = pid


@dataclass(frozen=True, slots=True)
class Home:
    """A home folder that this process has locked."""

    folder: Path
    _fd: int

    @classmethod
    def take(cls, folder: Path, url: str) -> Self:
        """Create the folder, readable by its owner only, and lock it.

        Raises `HomeTakenError` if a living process has locked it. Raises `HomeError` if the folder cannot be written,
        belongs to another user, or is open to others and has other files: making it private would lock their users out.
        """
        place = folder.absolute() / LOCK
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.stat().st_uid != os.geteuid():
                raise HomeError("is another user's folder", where=str(folder), hint="name a folder of yours by --home")
            if folder.stat().st_mode & _OTHERS and not place.exists() and any(folder.iterdir()):
                hint = "name a folder of its own by --home"
                raise HomeError("holds other files, which others may read", where=str(folder), hint=hint)
            folder.chmod(0o700)
            fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            hint = "name a folder that you can write by --home"
            raise HomeError(f"cannot be written ({error.strerror})", where=str(folder), hint=hint) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(fd)
            os.close(fd)
            raise HomeTakenError(folder, holder) from None
        now = datetime.now(UTC).isoformat("T", "seconds")
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": now, "url": url}
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(facts).encode(), 0)
        return cls(folder.absolute(), fd)

    def empty_config(self) -> Path:
        """Write an empty configuration file and return its path, so that runs without a file read the environment."""
        place = self.folder / EMPTY_CONFIG  # a ranklake.toml in this folder is somebody's own
        place.write_text(
            "# ranklake up found no ranklake.toml where it was started: variables count.\n", encoding="utf-8"
        )
        return place

    def release(self) -> None:
        """Release the lock."""
        os.close(self._fd)


def served_at(folder: Path) -> str:
    """Return the address at which a living process of this machine serves a home; empty if there is none.

    The lock is not tried: holding it for a moment could refuse a process that starts just then.
    """
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        holder = _read(fd)
    finally:
        os.close(fd)
    pid, host = holder.get("pid"), holder.get("host")
    is_alive = isinstance(pid, int) and pid > 0 and host == socket.gethostname() and Path(f"/proc/{pid}").exists()
    return str(holder.get("url", "")) if is_alive else ""


def _read(fd: int) -> dict[str, object]:
    try:
        result = json.loads(os.pread(fd, _MOST_BYTES, 0))
    except (OSError, ValueError):  # it is being written
        return {}
    return result if isinstance(result, dict) else {}
