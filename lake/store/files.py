"""Files of a store: listing, atomic overwriting, safe deletion, object versions, object locks, and the store's clock.

In a bucket with versioning, deleting an object adds a delete marker, and overwriting it adds a version. The bytes
remain until the old versions are deleted by id, which an object lock can forbid until a date. Versions and locks are
supported for S3 only.
"""

import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from fsspec.implementations.local import LocalFileSystem

from ranklake.errors import RanklakeError
from ranklake.lake.store.posture import error_code, is_s3

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

_MODIFIED: Final = ("LastModified", "last_modified", "mtime", "updated")  # of S3, Azure, a local disk, Google
_TAGS: Final = ("ETag", "etag", "generation")
_RACY: Final = timedelta(seconds=3)
"""Within this time after a write, another write may get the same modification time."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a listing.

    Attributes
    ----------
    modified
        Time of the last write in UTC; None if the store does not report it.
    version
        Identifier of the bytes: equal versions mean equal bytes. Empty if unknown, as for a local file that was
        written within the last seconds.
    """

    path: str
    size_bytes: int
    modified: datetime | None
    version: str = ""


def listed(fs: Any, root: str) -> list[ListedFile]:  # noqa: ANN401 - fsspec ships no types
    """Return all files below a folder, at any depth; none if the folder does not exist."""
    try:
        entries: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    except FileNotFoundError:
        return []
    return [
        ListedFile(path, int(info["size"] or 0), modified_time(info), version(info)) for path, info in entries.items()
    ]


def version(info: dict[str, Any]) -> str:
    """Return `ListedFile.version` for an entry of a listing; empty if unknown."""
    tag = next((info[name] for name in _TAGS if info.get(name)), None)
    if tag is not None:
        return str(tag)
    at = modified_time(info)
    if "ino" not in info or at is None or datetime.now(UTC) - at < _RACY:
        return ""
    return f"{info['ino']} {info['mtime']} {info.get('created')} {info['size']}"


def modified_time(info: dict[str, Any]) -> datetime | None:
    """Return the time of the last write (UTC) from an entry of a listing; None if the entry has none."""
    value = next((info[name] for name in _MODIFIED if info.get(name) is not None), None)
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
    """Write a file atomically, replacing an existing one.

    If the process is killed, a temporary file may remain on a local disk. Raises `OSError` and the store's errors.
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
        with suppress(OSError):  # usually it was renamed
            os.unlink(scratch)  # noqa: PTH108 - likewise


def put_hint(store: "Store", name: str, data: bytes) -> None:
    """Write a file of the lake that can be recomputed, atomically. Ignores errors, as in a read-only lake."""
    target = store.path(name)
    with suppress(OSError):
        if not store.is_local:
            store.fs.pipe_file(target, data)
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - fsspec paths are strings
        scratch = f"{target}.{uuid.uuid4().hex}.tmp"
        store.fs.pipe_file(scratch, data)
        os.replace(scratch, target)  # noqa: PTH105 - likewise


_HINT: Final = "nothing was deleted there; find out who put it there"


class OutsideError(RanklakeError):
    """A file to delete is outside the lake, or is reached through a symbolic link. Nothing was deleted."""


def delete(store: "Store", path: str) -> bool:
    """Delete a file of the lake. Returns whether this call deleted it; False if it did not exist.

    Parameters
    ----------
    path
        Path in the lake's file system, as `Store.path` returns it.

    Raises `OutsideError` if the path leads out of the lake through dots or a link, and the store's errors.
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
    """The machine's clock is so far ahead that retention would remove rows too early. Nothing was removed."""


def check_clock(store: "Store") -> None:
    """Raise `FastClockError` if this machine's clock is more than `TOLERATED` ahead of the store's.

    A local disk uses the machine's clock, so the check always passes there. Raises the store's errors.
    """
    path = store.path(CLOCK)
    overwrite(store.fs, path, b"", local=store.is_local)
    at, now = modified_time(store.fs.info(path)), datetime.now(UTC)
    if at is not None and now - at > TOLERATED:
        message = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, and that of the store {at:%Y-%m-%d %H:%M}"
        raise FastClockError(message, where=store.uri, hint="set the clock: rows would go before their time")


UNKNOWN: Final = "whether the bucket keeps versions of deleted objects cannot be told here"
RIGHT_LACKS: Final = "the right to delete them is lacking: s3:DeleteObjectVersion"
_DENIED: Final = frozenset({"AccessDenied", "AllAccessDisabled", "Forbidden", "403", "PermissionError"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of an object.

    Attributes
    ----------
    path
        Path of the object, with its bucket.
    id
        Version id of the store.
    is_marker
        Whether it is a delete marker, which has no bytes.
    is_current
        Whether it is the newest version of the object.
    """

    path: str
    id: str
    is_marker: bool
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult:
    """Number of deleted versions, and the versions that could not be deleted (`stay`), each with the reason."""

    removed: int = 0
    stay: tuple[tuple[Version, str], ...] = ()


def keeps_versions(fs: Any, path: str) -> bool | None:  # noqa: ANN401 - fsspec ships no types
    """Whether the bucket of a path has, or may have, old versions of objects; None if unknown.

    True if this account may list versions but may not read the bucket's versioning.
    """
    if isinstance(fs, LocalFileSystem):
        return False
    try:
        return bool(fs.call_s3("get_bucket_versioning", Bucket=_bucket(path)).get("Status"))
    except Exception:  # noqa: BLE001 - no such store, no such right
        return True if _can_list_versions(fs, path) else None


def _can_list_versions(fs: Any, path: str) -> bool:  # noqa: ANN401 - likewise
    try:
        fs.call_s3("list_object_versions", Bucket=_bucket(path), MaxKeys=1)
    except Exception:  # noqa: BLE001 - likewise
        return False
    return True


def versions(fs: Any, prefix: str) -> Iterator[Version]:  # noqa: ANN401 - likewise
    """Yield all versions and delete markers of objects below a prefix. Raises the store's errors."""
    bucket = _bucket(prefix)
    position: dict[str, str] = {}
    while True:
        key = prefix.lstrip("/").partition("/")[2]
        page = fs.call_s3("list_object_versions", Bucket=bucket, Prefix=key, **position)
        for name, is_marker in (("Versions", False), ("DeleteMarkers", True)):
            for entry in page.get(name) or ():
                path = f"{bucket}/{entry['Key']}"
                yield Version(path=path, id=entry["VersionId"], is_marker=is_marker, is_current=bool(entry["IsLatest"]))
        if not page.get("IsTruncated"):
            return
        position = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}


def read_version(fs: Any, path: str, version: str) -> bytes:  # noqa: ANN401 - likewise
    """Return the bytes of a version. Raises `OSError` and the store's errors."""
    raw: bytes = fs.cat_file(path, version_id=version)
    return raw


def remove_version(fs: Any, version: Version) -> str:  # noqa: ANN401 - likewise
    """Delete a version. Returns why it could not be deleted; empty if it does not exist any more."""
    bucket, _, key = version.path.partition("/")
    try:
        fs.call_s3("delete_object", Bucket=bucket, Key=key, VersionId=version.id)
    except FileNotFoundError:
        return ""
    except Exception as error:  # noqa: BLE001 - after any other error the version still exists
        return lock_reason(fs, version) or _denial_text(error)
    return ""


def lock_reason(fs: Any, version: Version) -> str:  # noqa: ANN401 - likewise
    """Describe the lock or legal hold on a version; empty if there is none, or this account may not read it."""
    bucket, _, key = version.path.partition("/")
    target = {"Bucket": bucket, "Key": key, "VersionId": version.id}
    lock = _call_s3(fs, "get_object_retention", **target).get("Retention", {})
    head = {} if lock else _call_s3(fs, "head_object", **target)  # some stores support only this request
    until, mode = lock.get("RetainUntilDate"), lock.get("Mode", "?")
    if until is None:
        until, mode = head.get("ObjectLockRetainUntilDate"), head.get("ObjectLockMode", "?")
    if until is not None:
        return f"locked by the bucket until {until:%Y-%m-%d %H:%M} UTC ({mode})"
    hold = _call_s3(fs, "get_object_legal_hold", **target).get("LegalHold", {})
    return "under a legal hold of the bucket, without an end" if hold.get("Status") == "ON" else ""


def bucket_lock(fs: Any, path: str) -> str:  # noqa: ANN401 - likewise
    """Describe a bucket's lock on new objects; empty if it has none, or this account may not read it."""
    lock = _call_s3(fs, "get_object_lock_configuration", Bucket=_bucket(path)).get("ObjectLockConfiguration", {})
    if lock.get("ObjectLockEnabled") != "Enabled":
        return ""
    rule = lock.get("Rule", {}).get("DefaultRetention", {})
    length = next((f"{rule[name]} {name.lower()}" for name in ("Days", "Years") if rule.get(name)), "")
    return f"each object for {length} ({rule.get('Mode', '?')})" if length else "objects that say so"


def remove_dead(fs: Any, prefixes: Iterable[str], spare: Iterable[str] = ()) -> DeleteResult:  # noqa: ANN401 - likewise
    """Delete old versions and delete markers below prefixes. Keeps the current versions of existing objects.

    A delete marker is deleted once no older version of its object is left. Does nothing in a bucket without versions.
    Can be repeated.

    Parameters
    ----------
    spare
        Paths of objects whose versions are kept.
    """
    spared, stay, removed = set(spare), [], 0
    paths = sorted(set(prefixes))
    if not paths or not keeps_versions(fs, paths[0]):
        return DeleteResult()
    for prefix in paths:
        hidden: dict[str, int] = {}
        markers = []
        for version in versions(fs, prefix):
            if version.path in spared or (version.is_current and not version.is_marker):
                continue
            if version.is_marker:
                markers.append(version)
                continue
            reason = remove_version(fs, version)
            if reason:
                stay.append((version, reason))
                hidden[version.path] = hidden.get(version.path, 0) + 1
            else:
                removed += 1
        removed += sum(not remove_version(fs, marker) for marker in markers if marker.path not in hidden)
    return DeleteResult(removed=removed, stay=tuple(stay))


def remove_lone_markers(fs: Any, path: str) -> None:  # noqa: ANN401 - likewise
    """Delete the delete markers of an object that has no other version left."""
    own = [version for version in versions(fs, path) if version.path == path]
    if all(version.is_marker for version in own):
        for marker in own:
            remove_version(fs, marker)


def _call_s3(fs: Any, call: str, **parameters: str) -> dict[str, Any]:  # noqa: ANN401 - likewise
    """Return the response of a request; an empty dictionary if it fails."""
    try:
        response: dict[str, Any] = fs.call_s3(call, **parameters)
    except Exception:  # noqa: BLE001 - stores answer with errors if there is no lock
        return {}
    return response


def _denial_text(error: BaseException) -> str:
    code = error_code(error)
    return RIGHT_LACKS if code in _DENIED else f"the store does not delete it ({code})"


def _bucket(path: str) -> str:
    return path.lstrip("/").partition("/")[0]


MODE: Final = "COMPLIANCE"
_EXISTS: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_NO_LOCK: Final = frozenset({"InvalidRequest", "ObjectLockConfigurationNotFoundError", "NotImplemented"})


class ObjectLockError(RanklakeError):
    """The store does not lock objects. Nothing was written."""


def put_locked(place: "Store", name: str, raw: bytes, until: datetime) -> bool:
    """Write an object that nobody can delete before `until`. Returns False, and writes nothing, if the object exists.

    Raises `ObjectLockError` if the store or the bucket does not lock objects, or this account may not do so.
    """
    if not is_s3(place):
        hint = "name a bucket of S3 with Object Lock by witness, or leave anchor_lock_days out"
        raise ObjectLockError("only buckets that speak S3 lock objects", where=place.uri, hint=hint)
    bucket, _, key = place.path(name).removeprefix("s3://").partition("/")
    try:
        place.fs.call_s3(
            "put_object",
            Bucket=bucket,
            Key=key,
            Body=raw,
            IfNoneMatch="*",
            ObjectLockMode=MODE,
            ObjectLockRetainUntilDate=until,
        )
    except FileExistsError:  # s3fs raises it for a failed precondition
        return False
    except Exception as error:  # noqa: BLE001 - each client raises its own classes
        code = error_code(error)
        if code in _EXISTS:
            return False
        message = f"the bucket keeps no object locked ({code})" if code in _NO_LOCK else f"the store refuses ({code})"
        hint = "make the witness's bucket with Object Lock, and give this account s3:PutObjectRetention"
        raise ObjectLockError(message, where=place.uri, hint=hint) from None
    return True


def locked_until(place: "Store", name: str) -> datetime | None:
    """Return the time until which an object is locked; None if it is not locked, or the store does not report it."""
    if not is_s3(place):
        return None
    bucket, _, key = place.path(name).removeprefix("s3://").partition("/")
    try:
        head = place.fs.call_s3("head_object", Bucket=bucket, Key=key)
    except Exception:  # noqa: BLE001 - no such object, no right, or an unsupported request
        return None
    until = head.get("ObjectLockRetainUntilDate")
    return until if isinstance(until, datetime) else None


def numbered_name(folder: str, number: int) -> str:
    """Return the name of a numbered file. Each file of such a folder contains the whole state; the last is valid."""
    return f"{folder}/{number:010d}.json"


def file_numbers(store: "Store", folder: str, names: re.Pattern[str]) -> list[int]:
    """Return the numbers of the files in a folder whose names match `names`, ascending; empty if there is no folder."""
    try:
        paths = store.fs.ls(store.path(folder), detail=False)
    except FileNotFoundError:
        return []
    file_names = (str(path).rpartition("/")[2] for path in paths)
    return sorted(int(name.partition(".")[0]) for name in file_names if names.fullmatch(name))
