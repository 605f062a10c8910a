"""Places: the local spool on this host's disk, and the spool that segments are uploaded to."""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from ranklake.errors import RanklakeError

LOCAL_VARIABLE: Final = "RANKLAKE_LOCAL_SPOOL"
SPOOL_VARIABLE: Final = "RANKLAKE_SPOOL"


class LocalSpoolError(RanklakeError):
    """The local spool cannot be used."""


def existing_root(configured: str = "") -> Path | None:
    """Return the local spool of this node if there is one; makes nothing."""
    path = planned_root(configured)
    return path if path.is_dir() else None


def planned_root(configured: str = "") -> Path:
    """Return where the local spool of this node is, or would be made."""
    named = os.environ.get(LOCAL_VARIABLE) or configured
    return Path(named).expanduser().absolute() if named else Path(f"/var/tmp/ranklake-{os.getuid()}")  # noqa: S108


def local_root(given: str | os.PathLike[str] | None = None, configured: str = "") -> Path:
    """Return the local spool's folder, made if that is possible now.

    What is given comes first, then RANKLAKE_LOCAL_SPOOL, what is configured (``local`` in ``[spool]``), and then
    /var/tmp/ranklake-<uid>: a disk that outlives a reboot, unlike /tmp. There a folder of somebody else's, or a link,
    is refused: whoever made it could read or replace what training records.

    Raises
    ------
    LocalSpoolError
        The default folder cannot be made, or belongs to somebody else.
    """
    named = os.fspath(given) if given else os.environ.get(LOCAL_VARIABLE) or configured
    if named:
        path = Path(named).expanduser().absolute()
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path
    path = Path(f"/var/tmp/ranklake-{os.getuid()}")  # noqa: S108 - private, and its owner is checked
    hint = f"set {LOCAL_VARIABLE} to a folder of your own"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise LocalSpoolError("belongs to somebody else", where=str(path), hint=hint)
        if stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
            path.chmod(stat.S_IRWXU)
    except OSError as error:
        raise LocalSpoolError(f"cannot be used ({error.strerror})", where=str(path), hint=hint) from error
    return path


def spool_uri(given: str | os.PathLike[str] | None = None, configured: str = "") -> str:
    """Return the spool's URI: what is given, RANKLAKE_SPOOL, or what is configured; empty if there is none.

    A plain path is made absolute: whoever recovers a stream may run in another folder.
    """
    uri = os.fspath(given) if given else os.environ.get(SPOOL_VARIABLE) or configured
    if not uri or "://" in uri or "::" in uri:
        return uri.rstrip("/")
    return str(Path(uri).expanduser().absolute())
