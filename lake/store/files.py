"""Files of a store: listed with their times, overwritten at once, deleted only inside the lake; versions; its clock.

A bucket with versioning answers a deletion with a marker, and an overwrite with another version; the bytes stay until
somebody deletes those versions by name. Under an object lock nobody can until its day. This is S3's; of other stores it
is not known here.
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

_WRITTEN: Final = ("LastModified", "last_modified", "mtime", "updated")  # as S3, Azure, a local disk, Google have it
_TAGS: Final = ("ETag", "etag", "generation")
_RACY: Final = timedelta(seconds=3)
"""A file that was written so lately may be written again at what the disk takes for the same moment."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as listed; `modified` (UTC) is None where the store does not say.

    Where `version` is the same, so are the bytes; it is empty where nobody knows, such as of a local file that
    was written within the last seconds.
    """

    path: str
    size_bytes: int
    modified: datetime | None
    version: str = ""


def listed(fs: Any, root: str) -> list[ListedFile]:  # noqa: ANN401 - fsspec ships no types
    """Return all files below a folder, at any depth; none where there is no such folder."""
    try:
        entries: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    except FileNotFoundError:
        return []
    return [
        ListedFile(path, int(info["size"] or 0), modified_time(info), version(info)) for path, info in entries.items()
    ]


def version(info: dict[str, Any]) -> str:
    """Return what tells a file from any other that had its name, as an entry of a listing says it; else nothing."""
    tag = next((info[name] for name in _TAGS if info.get(name)), None)
    if tag is not None:
        return str(tag)
    at = modified_time(info)
    if "ino" not in info or at is None or datetime.now(UTC) - at < _RACY:
        return ""
    return f"{info['ino']} {info['mtime']} {info.get('created')} {info['size']}"


def modified_time(info: dict[str, Any]) -> datetime | None:
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


def put_hint(store: "Store", name: str, data: bytes) -> None:
    """Write, atomically, a file of the lake that can be made again; do nothing in a lake that cannot be written."""
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
        Of the object, with its bucket.
    id
        As the store names it.
    is_marker
        Whether it only says that the object was deleted; it holds no bytes.
    is_current
        Whether it is what a reader of the object meets.
    """

    path: str
    id: str
    is_marker: bool
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult:
    """What was done about versions: how many went, and which stay, each with the reason."""

    removed: int = 0
    stay: tuple[tuple[Version, str], ...] = ()


def keeps_versions(fs: Any, path: str) -> bool | None:  # noqa: ANN401 - fsspec ships no types
    """Whether the bucket of a path keeps versions, or may have some; None where that cannot be determined.

    Who may list versions, and not ask whether the bucket keeps any, is told that it may.
    """
    if isinstance(fs, LocalFileSystem):
        return False
    try:
        return bool(fs.call_s3("get_bucket_versioning", Bucket=_bucket(path)).get("Status"))
    except Exception:  # noqa: BLE001 - no such store, no such right
        return True if _are_listed(fs, path) else None


def _are_listed(fs: Any, path: str) -> bool:  # noqa: ANN401 - likewise
    try:
        fs.call_s3("list_object_versions", Bucket=_bucket(path), MaxKeys=1)
    except Exception:  # noqa: BLE001 - likewise: nobody knows
        return False
    return True


def versions(fs: Any, prefix: str) -> Iterator[Version]:  # noqa: ANN401 - likewise
    """Yield all versions of all objects whose paths begin with a prefix, markers among them.

    Raises what the store raises.
    """
    bucket = _bucket(prefix)
    at: dict[str, str] = {}
    while True:
        key = prefix.lstrip("/").partition("/")[2]
        page = fs.call_s3("list_object_versions", Bucket=bucket, Prefix=key, **at)
        for name, is_marker in (("Versions", False), ("DeleteMarkers", True)):
            for entry in page.get(name) or ():
                path = f"{bucket}/{entry['Key']}"
                yield Version(path=path, id=entry["VersionId"], is_marker=is_marker, is_current=bool(entry["IsLatest"]))
        if not page.get("IsTruncated"):
            return
        at = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}


def read_version(fs: Any, path: str, version: str) -> bytes:  # noqa: ANN401 - likewise
    """Return the bytes of a version. Raises `OSError`, and what the store raises."""
    raw: bytes = fs.cat_file(path, version_id=version)
    return raw


def remove_version(fs: Any, version: Version) -> str:  # noqa: ANN401 - likewise
    """Delete a version; return why it stays, empty if it went, or was gone."""
    bucket, _, key = version.path.partition("/")
    try:
        fs.call_s3("delete_object", Bucket=bucket, Key=key, VersionId=version.id)
    except FileNotFoundError:
        return ""
    except Exception as error:  # noqa: BLE001 - whatever the store answers, the version is there
        return why_kept(fs, version) or _denial_text(error)
    return ""


def why_kept(fs: Any, version: Version) -> str:  # noqa: ANN401 - likewise
    """Return what lock keeps a version, and until when; empty if none does, or nobody may ask."""
    bucket, _, key = version.path.partition("/")
    about = {"Bucket": bucket, "Key": key, "VersionId": version.id}
    lock = _call_s3(fs, "get_object_retention", **about).get("Retention", {})
    head = {} if lock else _call_s3(fs, "head_object", **about)  # not every store answers the former
    until, mode = lock.get("RetainUntilDate"), lock.get("Mode", "?")
    if until is None:
        until, mode = head.get("ObjectLockRetainUntilDate"), head.get("ObjectLockMode", "?")
    if until is not None:
        return f"locked by the bucket until {until:%Y-%m-%d %H:%M} UTC ({mode})"
    hold = _call_s3(fs, "get_object_legal_hold", **about).get("LegalHold", {})
    return "under a legal hold of the bucket, without an end" if hold.get("Status") == "ON" else ""


def lock_of_bucket(fs: Any, path: str) -> str:  # noqa: ANN401 - likewise
    """Return by what lock a bucket keeps new objects; empty if it has none, or nobody may ask."""
    lock = _call_s3(fs, "get_object_lock_configuration", Bucket=_bucket(path)).get("ObjectLockConfiguration", {})
    if lock.get("ObjectLockEnabled") != "Enabled":
        return ""
    rule = lock.get("Rule", {}).get("DefaultRetention", {})
    length = next((f"{rule[name]} {name.lower()}" for name in ("Days", "Years") if rule.get(name)), "")
    return f"each object for {length} ({rule.get('Mode', '?')})" if length else "objects that say so"


def remove_dead(fs: Any, prefixes: Iterable[str], spare: Iterable[str] = ()) -> DeleteResult:  # noqa: ANN401 - likewise
    """Delete all versions below prefixes but current ones that can be read; nothing where the bucket keeps none.

    Markers go when all versions that they hide are gone. Can be called again.

    Parameters
    ----------
    spare
        Paths of objects whose versions stay.
    """
    wanted, stay, removed = set(spare), [], 0
    paths = sorted(set(prefixes))
    if not paths or not keeps_versions(fs, paths[0]):
        return DeleteResult()
    for prefix in paths:
        hidden: dict[str, int] = {}
        markers = []
        for version in versions(fs, prefix):
            if version.path in wanted or (version.is_current and not version.is_marker):
                continue
            if version.is_marker:
                markers.append(version)
                continue
            why = remove_version(fs, version)
            if why:
                stay.append((version, why))
                hidden[version.path] = hidden.get(version.path, 0) + 1
            else:
                removed += 1
        removed += sum(not remove_version(fs, one) for one in markers if one.path not in hidden)
    return DeleteResult(removed=removed, stay=tuple(stay))


def remove_lone_markers(fs: Any, path: str) -> None:  # noqa: ANN401 - likewise
    """Delete the markers of an object of which nothing but markers is left."""
    mine = [one for one in versions(fs, path) if one.path == path]
    if all(one.is_marker for one in mine):
        for marker in mine:
            remove_version(fs, marker)


def _call_s3(fs: Any, call: str, **about: str) -> dict[str, Any]:  # noqa: ANN401 - likewise
    try:
        response: dict[str, Any] = fs.call_s3(call, **about)
    except Exception:  # noqa: BLE001 - without a lock stores answer with errors
        return {}
    return response


def _denial_text(error: BaseException) -> str:
    code = error_code(error)
    return RIGHT_LACKS if code in _DENIED else f"the store does not delete it ({code})"


def _bucket(path: str) -> str:
    return path.lstrip("/").partition("/")[0]


MODE: Final = "COMPLIANCE"
_THERE: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_NO_LOCK: Final = frozenset({"InvalidRequest", "ObjectLockConfigurationNotFoundError", "NotImplemented"})


class ObjectLockError(RanklakeError):
    """A store that does not lock objects. Nothing was written."""


def put_locked(place: "Store", name: str, raw: bytes, until: datetime) -> bool:
    """Write an object that nobody can take away before `until`; False, and nothing written, where there is one.

    Raises `ObjectLockError` where the store or the bucket does not lock objects, or does not let this account do it.
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
    except FileExistsError:  # what s3fs makes of a precondition that fails
        return False
    except Exception as error:  # noqa: BLE001 - whatever a client makes of what the store answers
        code = error_code(error)
        if code in _THERE:
            return False
        message = f"the bucket keeps no object locked ({code})" if code in _NO_LOCK else f"the store refuses ({code})"
        hint = "make the witness's bucket with Object Lock, and give this account s3:PutObjectRetention"
        raise ObjectLockError(message, where=place.uri, hint=hint) from None
    return True


def locked_until(place: "Store", name: str) -> datetime | None:
    """Return until when an object is locked; None where it is not, or where the store does not say."""
    if not is_s3(place):
        return None
    bucket, _, key = place.path(name).removeprefix("s3://").partition("/")
    try:
        head = place.fs.call_s3("head_object", Bucket=bucket, Key=key)
    except Exception:  # noqa: BLE001 - no lock, no right to ask, a store that knows no such question
        return None
    until = head.get("ObjectLockRetainUntilDate")
    return until if isinstance(until, datetime) else None


def numbered_name(folder: str, number: int) -> str:
    """Return the name of a file of a folder whose files are numbered: each holds all, and the last one counts."""
    return f"{folder}/{number:010d}.json"


def file_numbers(store: "Store", folder: str, names: re.Pattern[str]) -> list[int]:
    """Return the numbers of a folder's files, ascending, of those whose whole name is one of `names`; none for none."""
    try:
        paths = store.fs.ls(store.path(folder), detail=False)
    except FileNotFoundError:
        return []
    own = (str(path).rpartition("/")[2] for path in paths)
    return sorted(int(name.partition(".")[0]) for name in own if names.fullmatch(name))
