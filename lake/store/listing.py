"""Listings of folders, with the modification time that the store reports for each file."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_WRITTEN: Final = ("LastModified", "last_modified", "mtime", "updated")  # as S3, Azure, a local disk, Google have it
_TAGS: Final = ("ETag", "etag", "generation")
_RACY: Final = timedelta(seconds=3)
"""A file that was written so lately may be written again at what the disk takes for the same moment."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as listed; `modified` (UTC) is None where the store does not say.

    Where `version` is the same, so are the bytes; it is empty where that cannot be told, such as of a local file that
    was written within the last seconds.
    """

    path: str
    size_bytes: int
    modified: datetime | None
    version: str = ""


def listed(fs: Any, root: str) -> list[Listed]:  # noqa: ANN401 - fsspec ships no types
    """Return all files below a folder, at any depth; none where there is no such folder."""
    try:
        found: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    except FileNotFoundError:
        return []
    return [Listed(path, int(info["size"] or 0), written(info), version(info)) for path, info in found.items()]


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
            found = datetime.fromisoformat(value)
        except ValueError:
            return None
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None
