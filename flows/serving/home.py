"""The home of ``ranklake up``: a folder of one user, and of one process at a time.

    <home>/up.json        who serves it; locked as long as that process lives, however it ends
    <home>/prefect.db     Prefect's database, unless it is elsewhere
    <home>/without.toml   a configuration that says nothing, for runs where there is none
    <home>/authority.pem  the one certificate that Prefect's clients read (`ranklake.flows.serving.environment`)
    <home>/…              what else Prefect keeps

The lock is the kernel's, so a file that a killed process left behind says nothing and hinders nobody.
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
    """A home folder, held by this process."""

    folder: Path
    _fd: int

    @classmethod
    def take(cls, folder: Path, url: str) -> Self:
        """Make the folder, for nobody else to read, and hold it.

        Raises `HomeTakenError` where a living process has it, `HomeError` where it cannot be written, is another's, or
        is open to others and holds something else: those would be shut out.
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
        """Return a configuration file that says nothing, so that runs without one read the environment."""
        place = self.folder / EMPTY_CONFIG  # a ranklake.toml in this folder is somebody's own
        place.write_text(
            "# ranklake up found no ranklake.toml where it was started: variables count.\n", encoding="utf-8"
        )
        return place

    def release(self) -> None:
        """Give the home up."""
        os.close(self._fd)


def served_at(folder: Path) -> str:
    """Return the address that a living process of this machine serves a home at; empty if there is none.

    Asked without the lock: taking it, however shortly, could refuse a process that starts just then.
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
    lives = isinstance(pid, int) and pid > 0 and host == socket.gethostname() and Path(f"/proc/{pid}").exists()
    return str(holder.get("url", "")) if lives else ""


def _read(fd: int) -> dict[str, object]:
    try:
        result = json.loads(os.pread(fd, _MOST_BYTES, 0))
    except (OSError, ValueError):  # being written right now
        return {}
    return result if isinstance(result, dict) else {}
