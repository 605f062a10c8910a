"""Mounts: whether a folder is on a network file system, where mapped files are not reliable."""

import os
import re
from pathlib import Path
from typing import Final

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
    found, deepest = "", -1
    for line in mounts.splitlines():
        before, _, behind = line.partition(" - ")
        fields, kind = before.split(" "), behind.split(" ")[0]
        if len(fields) <= 4:  # noqa: PLR2004 - the fifth is the place
            continue
        place = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4]))
        if path.is_relative_to(place) and len(place.parts) >= deepest:
            found, deepest = kind, len(place.parts)
    return found


def is_network(path: Path) -> bool:
    """Say whether a folder is on a network file system, or on one in user space, which may be one; no if unknown."""
    try:
        kind = file_system(Path(os.path.realpath(path)), MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return False
    return kind in NETWORK or kind.startswith("fuse")
