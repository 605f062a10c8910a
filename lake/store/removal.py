"""Deletes files of a lake: only inside it, and never through a link."""

import os
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

_MEND: Final = "nothing was deleted there; find out who put it there"


class OutsideError(RanklakeError):
    """A file to delete that is not in the lake, or that a link in it leads to."""


def delete(lake: "Lake", path: str) -> bool:
    """Delete a file of the lake; return whether it was this call that did.

    Parameters
    ----------
    path
        For the lake's file system, as `Lake.path` gives it.

    Raises `OutsideError` where the path leads out of the lake, by dots or by a link, and what the store raises.
    """
    inside = path.removeprefix(f"{lake.root}/")
    if inside == path or any(part in {"", ".", ".."} for part in inside.split("/")):
        raise OutsideError("not a file of the lake", where=path, hint=_MEND)
    if lake.is_local:
        root, folder = os.path.realpath(lake.root), os.path.realpath(os.path.dirname(path))  # noqa: PTH120 - fsspec's
        if os.path.islink(path) or os.path.commonpath([root, folder]) != root:  # noqa: PTH114 - likewise
            raise OutsideError("a link leads out of the lake", where=path, hint=_MEND)
    try:
        lake.fs.rm_file(path)
    except FileNotFoundError:
        return False
    return True
