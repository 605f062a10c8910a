"""Security posture of a place, as the store reports it: encryption, its key, and the region.

Facts that a store does not report are unknown, with a reason. A local disk does not report its encryption, and
S3-compatible stores support only some of S3's requests.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.store.store import MARKER, Store

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake


EMPTY: Final = "empty"
NONE: Final = "none"
_NO_ENCRYPTION: Final = "ServerSideEncryptionConfigurationNotFoundError"
_FIRST_REGION: Final = "us-east-1"
"""The region for which S3 reports an empty location."""


@dataclass(frozen=True, slots=True)
class Posture:
    """Encryption and region of a place.

    Attributes
    ----------
    place, store
        Name of the place; protocol of its store.
    by_default, by_default_key
        Encryption of new objects in the bucket, and its key; None if unknown.
    of_object, of_object_key
        Encryption and key of one object: the lake's marker, else the first object of the place. ``empty`` if the place
        has no object.
    region
        Region of the bucket; None if unknown.
    unknown
        Reasons for unknown facts, in clauses; empty if all are known.
    """

    place: str
    store: str
    by_default: str | None = None
    by_default_key: str | None = None
    of_object: str | None = None
    of_object_key: str | None = None
    region: str | None = None
    unknown: str = ""


def posture(name: str, place: "Store", marker: str = MARKER) -> Posture:
    """Request encryption and region of a place from its store. Never raises; failed requests give unknown facts.

    Parameters
    ----------
    name
        Name of the place in the result.
    marker
        Name of an object that the place has. If empty, the first listed object is examined.
    """
    if place.is_local:
        reason = "a local disk: the administrator of the machine knows its encryption and location"
        return Posture(name, "file", unknown=reason)
    if not is_s3(place):
        return Posture(name, _protocols(place)[0], unknown="this kind of store cannot be queried; see its console")
    bucket, _, key = place.path(marker or "x").removeprefix("s3://").partition("/")
    failures: list[str] = []

    def ask(call: str, **parameters: str | int) -> dict[str, Any] | None:
        try:
            response: dict[str, Any] = place.fs.call_s3(call, Bucket=bucket, **parameters)
        except Exception as error:  # noqa: BLE001 - stores and clients raise many classes
            code = error_code(error)
            if code == _NO_ENCRYPTION:
                return {}
            failures.append(f"{call}: {code}")
            return None
        return response

    default = ask("get_bucket_encryption")
    rules = [] if not default else default["ServerSideEncryptionConfiguration"]["Rules"]
    rule = rules[0].get("ApplyServerSideEncryptionByDefault", {}) if rules else {}
    location = ask("get_bucket_location")
    if not marker:
        objects = ask("list_objects_v2", Prefix=key.removesuffix("x"), MaxKeys=1)
        key = next((entry["Key"] for entry in (objects or {}).get("Contents", ())), "")
    head = ask("head_object", Key=key) if key else None
    return Posture(
        name,
        "s3",
        None if default is None else rule.get("SSEAlgorithm", NONE),
        rule.get("KMSMasterKeyID"),
        (None if failures or key else EMPTY) if head is None else head.get("ServerSideEncryption", NONE),
        (head or {}).get("SSEKMSKeyId"),
        None if location is None else location.get("LocationConstraint") or _FIRST_REGION,
        ", ".join(failures),
    )


def is_s3(place: "Store") -> bool:
    """Whether the place is in an S3-compatible store."""
    return bool({"s3", "s3a"} & set(_protocols(place)))


def _protocols(place: "Store") -> tuple[str, ...]:
    protocol = place.fs.protocol
    return tuple(map(str, protocol)) if isinstance(protocol, tuple | list) else (str(protocol),)


def error_code(error: BaseException) -> str:
    """Return the store's error code from a client's error or its causes; else the name of the error's class."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(response := getattr(cause, "response", None), dict):
            return str(response.get("Error", {}).get("Code", type(cause).__name__))
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def overlaps(lake: "Lake", place: "Store") -> bool:
    """Whether a place is inside the lake or one of its spools, or contains one of them."""
    roots = [lake.store.root, *_spool_roots(lake)] if lake.store.is_local == place.is_local else []
    return any(_is_inside(place.root, root) or _is_inside(root, place.root) for root in roots)


def _spool_roots(lake: "Lake") -> Iterator[str]:
    for uri in lake.config.spools:
        spool = Store.at(uri, lake.store.storage)
        if spool.is_local == lake.store.is_local:
            yield spool.root


def _is_inside(inner: str, outer: str) -> bool:
    return f"{inner}/".startswith(f"{outer}/")
