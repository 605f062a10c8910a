"""The gate for foreign files: which files of the spool may be opened, and the reasons why others are not read.

Every training job can write to the spool, so file names, types and sizes are checked when a plan is composed, and again
when a file is opened. A file that is not read gets one of the `UNREAD` reasons, and a later ingest tries it again. A
segment of a newer writer gets a reason that begins with `NEWER` and waits in the same way.
"""

from collections.abc import Mapping
from typing import Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.printable import printable_name

GONE: Final = "gone from the spool before it was read"
DENIED: Final = "the spool does not let it be read"
IRREGULAR: Final = "not a regular file"
TOO_LARGE: Final = "larger than [ingest] segment_bytes"
UNSTEADY: Final = "cannot be read twice alike"
UNREAD: Final = frozenset({GONE, DENIED, IRREGULAR, TOO_LARGE, UNSTEADY})
"""Reasons, in the table ``segments``, of files that could not be read. A later ingest tries them again."""

MISNAMED: Final = "name, footer and contents disagree"
"""Prefix of the reason for a segment with the name of another one. A copy under the right name is still new."""
NEWER: Final = "newer than what is known here: "
"""Prefix of the reason for a segment of a newer writer; the known contract or format follows. It waits in the spool."""

UNPRINTABLE: Final = "its name is not printable text"
MEMBER_LIKE: Final = "its path reads like that of a segment in a pack"
_DENIALS: Final = frozenset({401, 403})


class UnreadError(RanklakeError):
    """A file that exists but cannot, or must not, be read now; `may_be_read_yet` is true for its reason, `what`."""


def may_be_read_yet(reason: str | None) -> bool:
    """Whether a later ingest tries a file with this reason again: one of `UNREAD`, or a newer segment."""
    return reason in UNREAD or is_newer(reason)


def is_newer(reason: str | None) -> bool:
    """Whether a reason of the table ``segments`` is the one for a segment of a newer writer."""
    return reason is not None and reason.startswith(NEWER)


def first_by_reason(held: Mapping[str, str]) -> dict[str, str]:
    """Return the first path for each reason, from reasons by path."""
    return {reason: path for path, reason in sorted(held.items(), reverse=True)}


def fetch(fs: Any, path: str, begin: int | None = None, end: int | None = None, root: str = "") -> bytes:  # noqa: ANN401
    """Return the bytes of a file of the spool, or those from `begin` to `end`. A failed read is tried twice.

    Parameters
    ----------
    root
        A folder of the store. If it can be listed after a failed read, the store is reachable and only the file fails.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    UnreadError
        The store is reachable but does not return this file.
    LakeUnreachableError, OSError
        The store is unreachable.
    """
    byte_range = {} if begin is None and end is None else {"start": begin, "end": end}
    for last in (False, True):
        try:
            return bytes(fs.cat_file(path, **byte_range))
        except (FileNotFoundError, UnreadError):
            raise
        except (OSError, LakeUnreachableError) as error:
            if isinstance(error, PermissionError) or getattr(error, "status", None) in _DENIALS:
                raise UnreadError(DENIED, where=printable_name(path)) from None
            if last:
                if root and _can_list(fs, root):
                    raise UnreadError(UNSTEADY, where=printable_name(path)) from None
                raise
    raise AssertionError("not reached")


def _can_list(fs: Any, root: str) -> bool:  # noqa: ANN401 - fsspec ships no types
    try:
        fs.ls(root, detail=False)
    except (OSError, RanklakeError):
        return False
    return True


def drop_cached(fs: Any, path: str) -> None:  # noqa: ANN401 - likewise
    """Drop the cached pages of a file, where the file system can, so that the next read comes from the store."""
    if callable(drop := getattr(fs, "drop_cached", None)):
        drop(path)
