"""Places: the local spool on this host's disk, whether that is on a network, and the spool that segments go to."""

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
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
            raise LocalSpoolError("belongs to somebody else", where=str(path), hint=hint)
        if stat.S_IMODE(facts.st_mode) != stat.S_IRWXU:
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


MOUNTS: Final = Path("/proc/self/mountinfo")
NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "9p", "virtiofs", "davfs"),
        *("lustre", "gpfs", "beegfs", "glusterfs", "pvfs2", "orangefs", "panfs", "wekafs", "ocfs2", "gfs2"),
    }
)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system that an absolute path without links is on; empty if it is not known.

    Parameters
    ----------
    mounts
        As /proc/self/mountinfo has it: of several mounts at one place the last one counts.
    """
    kind_found, deepest = "", -1
    for line in mounts.splitlines():
        before, _, behind = line.partition(" - ")
        fields, kind = before.split(" "), behind.split(" ")[0]
        if len(fields) <= 4:  # noqa: PLR2004 - the fifth is the place
            continue
        place = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4]))
        if path.is_relative_to(place) and len(place.parts) >= deepest:
            kind_found, deepest = kind, len(place.parts)
    return kind_found


def is_network(path: Path) -> bool:
    """Whether a folder is on a network file system, or on one in user space, which may be one; no if unknown."""
    try:
        kind = file_system(Path(os.path.realpath(path)), MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return False
    return kind in NETWORK or kind.startswith("fuse")
