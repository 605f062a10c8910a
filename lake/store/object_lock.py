"""Objects that a bucket keeps until a day, whoever asks to delete them (S3 Object Lock, compliance mode)."""

from datetime import datetime
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.posture import error_code, is_s3

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

MODE: Final = "COMPLIANCE"
_THERE: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_NO_LOCK: Final = frozenset({"InvalidRequest", "ObjectLockConfigurationNotFoundError", "NotImplemented"})


class ObjectLockError(RanklakeError):
    """A store that does not lock objects. Nothing was written."""


def put_locked(place: "Lake", name: str, raw: bytes, until: datetime) -> bool:
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
        what = f"the bucket keeps no object locked ({code})" if code in _NO_LOCK else f"the store refuses ({code})"
        hint = "make the witness's bucket with Object Lock, and give this account s3:PutObjectRetention"
        raise ObjectLockError(what, where=place.uri, hint=hint) from None
    return True


def locked_until(place: "Lake", name: str) -> datetime | None:
    """Return until when an object is locked; None where it is not, or where the store does not say."""
    if not is_s3(place):
        return None
    bucket, _, key = place.path(name).removeprefix("s3://").partition("/")
    try:
        found = place.fs.call_s3("head_object", Bucket=bucket, Key=key)
    except Exception:  # noqa: BLE001 - no lock, no right to ask, a store that knows no such question
        return None
    until = found.get("ObjectLockRetainUntilDate")
    return until if isinstance(until, datetime) else None
