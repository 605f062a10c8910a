"""Locations: the folder of the local spool, whether it is on a network file system, and the spool's URI."""

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Final

from ranklake.errors import RanklakeError

LOCAL_VARIABLE: Final = "RANKLAKE_LOCAL_SPOOL"
SPOOL_VARIABLE: Final = "RANKLAKE_SPOOL"


class LocalSpoolError(RanklakeError):
    """The local spool cannot be used."""


def existing_root(configured: str = "") -> Path | None:
    """Return the local spool of this node if its folder exists; never creates it."""
    path = planned_root(configured)
    return path if path.is_dir() else None


def planned_root(configured: str = "") -> Path:
    """Return the path of this node's local spool, whether or not it exists."""
    named = os.environ.get(LOCAL_VARIABLE) or configured
    return Path(named).expanduser().absolute() if named else Path(f"/var/tmp/ranklake-{os.getuid()}")  # noqa: S108


def local_root(folder: str | os.PathLike[str] | None = None, configured: str = "") -> Path:
    """Return the local spool's folder, and create it if possible.

    The folder is `folder`, else RANKLAKE_LOCAL_SPOOL, else `configured` (``local`` in ``[spool]``), else
    /var/tmp/ranklake-<uid>, which is kept across reboots, unlike /tmp. This default folder must not be a link or
    another user's folder, because its owner could read or replace recorded rows.

    Raises
    ------
    LocalSpoolError
        The default folder cannot be created, or belongs to another user.
    """
    named = os.fspath(folder) if folder else os.environ.get(LOCAL_VARIABLE) or configured
    if named:
        path = Path(named).expanduser().absolute()
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path
    path = Path(f"/var/tmp/ranklake-{os.getuid()}")  # noqa: S108 - private, and its owner is checked
    hint = f"set {LOCAL_VARIABLE} to a folder of your own"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
            raise LocalSpoolError("belongs to another user", where=str(path), hint=hint)
        if stat.S_IMODE(facts.st_mode) != stat.S_IRWXU:
            path.chmod(stat.S_IRWXU)
    except OSError as error:
        raise LocalSpoolError(f"cannot be used ({error.strerror})", where=str(path), hint=hint) from error
    return path


def spool_uri(spool: str | os.PathLike[str] | None = None, configured: str = "") -> str:
    """Return the spool's URI: `spool`, else RANKLAKE_SPOOL, else `configured`; empty if none is set.

    A plain path is made absolute, because the process that recovers a stream may run in another folder.
    """
    uri = os.fspath(spool) if spool else os.environ.get(SPOOL_VARIABLE) or configured
    if not uri or "://" in uri or "::" in uri:
        return uri.rstrip("/")
    return str(Path(uri).expanduser().absolute())


MOUNTS: Final = Path("/proc/self/mountinfo")
NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "9p", "virtiofs", "davfs"),
        *("lustre", "gpfs", "beegfs", "glusterfs", "pvfs2", "orangefs", "panfs", "wekafs", "ocfs2", "gfs2"),
    }
)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system of an absolute path without links; empty if unknown.

    Parameters
    ----------
    mounts
        Content of /proc/self/mountinfo. Of several mounts at the same path, the last one counts.
    """
    matching_kind, deepest = "", -1
    for line in mounts.splitlines():
        before, _, behind = line.partition(" - ")
        fields, kind = before.split(" "), behind.split(" ")[0]
        if len(fields) <= 4:  # noqa: PLR2004 - the fifth field is the mount point
            continue
        mount_point = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4]))
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= deepest:
            matching_kind, deepest = kind, len(mount_point.parts)
    return matching_kind


def is_network(path: Path) -> bool:
    """Whether a folder is on a network file system, or on FUSE, which may be one; False if unknown."""
    try:
        kind = file_system(Path(os.path.realpath(path)), MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return False
    return kind in NETWORK or kind.startswith("fuse")
