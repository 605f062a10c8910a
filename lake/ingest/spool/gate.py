"""The gate for foreign bytes: what may be opened, what is skipped, and why something stays unread.

A spool may be written by anybody who trains. So its names, kinds and sizes are judged before a plan names a file, and
again when it is opened; what is not read is reported by one of `UNREAD`, and looked at again by a later ingest. So
is what a newer writer made (`NEWER`).
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
"""Reasons of the table ``segments`` that say nothing of bytes: nobody read them, and they may be read yet."""

MISNAMED: Final = "name, footer and contents disagree"
"""Begins what is said of a segment under a name that is not its own: its bytes may come under their own."""
NEWER: Final = "newer than what is known here: "
"""How reasons begin of segments that a newer writer made; what is known follows. They wait in the spool, unread."""

UNPRINTABLE: Final = "its name is not printable text"
MEMBER_LIKE: Final = "its path reads like that of a segment in a pack"
_DENIALS: Final = frozenset({401, 403})


class UnreadError(RanklakeError):
    """A file that is there and cannot, or must not, be read; `what` is a reason that `may_be_read_yet`."""


def may_be_read_yet(why: str | None) -> bool:
    """Whether a reason of the table ``segments`` is one of `UNREAD`, or that of a segment that waits (`NEWER`)."""
    return why in UNREAD or is_newer(why)


def is_newer(why: str | None) -> bool:
    """Whether a reason of the table ``segments`` is that of a newer writer's segment, which waits."""
    return why is not None and why.startswith(NEWER)


def first_by_reason(held: Mapping[str, str]) -> dict[str, str]:
    """Return the first path for each reason why files are held, by reason."""
    return {why: path for path, why in sorted(held.items(), reverse=True)}


def fetch(fs: Any, path: str, begin: int | None = None, end: int | None = None, root: str = "") -> bytes:  # noqa: ANN401
    """Return bytes of a file of the spool.

    Parameters
    ----------
    root
        A folder that can be listed while the store is there: if it can, a failure is the file's own.

    Raises
    ------
    FileNotFoundError
        It is gone.
    UnreadError
        The store does not give it, though it gives others.
    LakeUnreachableError, OSError
        The store gives nothing.
    """
    given = {} if begin is None and end is None else {"start": begin, "end": end}
    for last in (False, True):
        try:
            return bytes(fs.cat_file(path, **given))
        except (FileNotFoundError, UnreadError):
            raise
        except (OSError, LakeUnreachableError) as error:
            if isinstance(error, PermissionError) or getattr(error, "status", None) in _DENIALS:
                raise UnreadError(DENIED, where=printable_name(path)) from None
            if last:
                if root and _answers(fs, root):
                    raise UnreadError(UNSTEADY, where=printable_name(path)) from None
                raise
    raise AssertionError("not reached")


def _answers(fs: Any, root: str) -> bool:  # noqa: ANN401 - fsspec ships no types
    try:
        fs.ls(root, detail=False)
    except (OSError, RanklakeError):
        return False
    return True


def forget(fs: Any, path: str) -> None:  # noqa: ANN401 - likewise
    """Have the next read of a file come from the store, not from what this machine remembers of it."""
    if callable(known := getattr(fs, "forget", None)):
        known(path)
