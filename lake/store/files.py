"""Files of a store: listed with their times, overwritten at once, deleted only inside the lake; its clock."""

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store


_WRITTEN: Final = ("LastModified", "last_modified", "mtime", "updated")  # as S3, Azure, a local disk, Google have it
_TAGS: Final = ("ETag", "etag", "generation")
_RACY: Final = timedelta(seconds=3)
"""A file that was written so lately may be written again at what the disk takes for the same moment."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as listed; `modified` (UTC) is None where the store does not say.

    Where `version` is the same, so are the bytes; it is empty where nobody knows, such as of a local file that
    was written within the last seconds.
    """

    path: str
    size_bytes: int
    modified: datetime | None
    version: str = ""


def listed(fs: Any, root: str) -> list[Listed]:  # noqa: ANN401 - fsspec ships no types
    """Return all files below a folder, at any depth; none where there is no such folder."""
    try:
        entries: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    except FileNotFoundError:
        return []
    return [Listed(path, int(info["size"] or 0), written(info), version(info)) for path, info in entries.items()]


def version(info: dict[str, Any]) -> str:
    """Return what tells a file from any other that had its name, as an entry of a listing says it; else nothing."""
    tag = next((info[name] for name in _TAGS if info.get(name)), None)
    if tag is not None:
        return str(tag)
    at = written(info)
    if "ino" not in info or at is None or datetime.now(UTC) - at < _RACY:
        return ""
    return f"{info['ino']} {info['mtime']} {info.get('created')} {info['size']}"


def written(info: dict[str, Any]) -> datetime | None:
    """Return when a file was written, as an entry of a listing says it; None where it does not."""
    value = next((info[name] for name in _WRITTEN if info.get(name) is not None), None)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, (int, float)):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


def overwrite(fs: Any, path: str, data: bytes, *, local: bool) -> None:  # noqa: ANN401 - fsspec ships no types
    """Write a file whole over what has its name, if anything.

    Killed half-way, it leaves a stray temporary file on a local disk. Raises `OSError` and what the store raises.
    """
    if not local:
        fs.pipe_file(path, data)
        return
    scratch = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(scratch, "xb") as file:  # noqa: PTH123 - fsspec paths are strings
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)  # noqa: PTH105 - likewise
    finally:
        with suppress(OSError):  # it has the file's name by now
            os.unlink(scratch)  # noqa: PTH108 - likewise


_HINT: Final = "nothing was deleted there; find out who put it there"


class OutsideError(RanklakeError):
    """A file to delete that is not in the lake, or that a link in it leads to."""


def delete(store: "Store", path: str) -> bool:
    """Delete a file of the lake; return whether it was this call that did.

    Parameters
    ----------
    path
        For the lake's file system, as `Lake.path` gives it.

    Raises `OutsideError` where the path leads out of the lake, by dots or by a link, and what the store raises.
    """
    inside = path.removeprefix(f"{store.root}/")
    if inside == path or any(part in {"", ".", ".."} for part in inside.split("/")):
        raise OutsideError("not a file of the lake", where=path, hint=_HINT)
    if store.is_local:
        root, folder = os.path.realpath(store.root), os.path.realpath(os.path.dirname(path))  # noqa: PTH120 - fsspec's
        if os.path.islink(path) or os.path.commonpath([root, folder]) != root:  # noqa: PTH114 - likewise
            raise OutsideError("a link leads out of the lake", where=path, hint=_HINT)
    try:
        store.fs.rm_file(path)
    except FileNotFoundError:
        return False
    return True


CLOCK: Final = "clock"
TOLERATED: Final = timedelta(days=1)


class FastClockError(RanklakeError):
    """A clock by which rows would go before their time. Nothing was removed."""


def refuse_fast(store: "Store") -> None:
    """Raise `FastClockError` where this machine's clock is more than a day ahead of the store's.

    A local disk has the machine's clock, so nothing is found there. Raises what the store raises.
    """
    path = store.path(CLOCK)
    overwrite(store.fs, path, b"", local=store.is_local)
    at, now = written(store.fs.info(path)), datetime.now(UTC)
    if at is not None and now - at > TOLERATED:
        message = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, and that of the store {at:%Y-%m-%d %H:%M}"
        raise FastClockError(message, where=store.uri, hint="set the clock: rows would go before their time")
