"""Posture of a place: whether the store encrypts what lies there, by which key, and in which region. The store says it.

What a store does not say is unknown, with the reason: a local disk knows nothing of encryption beneath it, and not
every store that speaks S3's protocol answers what S3 does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.store.store import MARKER, Store

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake


EMPTY: Final = "empty"
NONE: Final = "none"
_NONE: Final = "ServerSideEncryptionConfigurationNotFoundError"
_FIRST_REGION: Final = "us-east-1"
"""What S3 calls no region at all."""


@dataclass(frozen=True, slots=True)
class Posture:
    """How a place is protected.

    Attributes
    ----------
    place, store
        Which; the protocol of its store.
    by_default, by_default_key
        What the bucket does with new objects, and by which key; None where nobody knows.
    of_object, of_object_key
        What one object there says of itself: the marker of a lake, else the first below the place; ``empty`` where
        there is none.
    region
        Where it is.
    unknown
        Why something is not known, in clauses; empty where all is.
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
    """Return how a place is protected. Raises nothing: what cannot be asked is unknown.

    Parameters
    ----------
    marker
        Object that every such place has; empty: the first that is listed there is asked instead.
    """
    if place.is_local:
        why = "a local disk: ask whoever runs the machine whether it is encrypted, and where it is"
        return Posture(name, "file", unknown=why)
    if not is_s3(place):
        return Posture(name, _protocols(place)[0], unknown="this store is not asked; its console tells")
    bucket, _, key = place.path(marker or "x").removeprefix("s3://").partition("/")
    doubts: list[str] = []

    def ask(call: str, **what: str | int) -> dict[str, Any] | None:
        try:
            response: dict[str, Any] = place.fs.call_s3(call, Bucket=bucket, **what)
        except Exception as error:  # noqa: BLE001 - whatever a store answers, it is not what was asked for
            code = error_code(error)
            if code == _NONE:
                return {}
            doubts.append(f"{call}: {code}")
            return None
        return response

    default = ask("get_bucket_encryption")
    rules = [] if not default else default["ServerSideEncryptionConfiguration"]["Rules"]
    rule = rules[0].get("ApplyServerSideEncryptionByDefault", {}) if rules else {}
    where = ask("get_bucket_location")
    if not marker:
        objects = ask("list_objects_v2", Prefix=key.removesuffix("x"), MaxKeys=1)
        key = next((one["Key"] for one in (objects or {}).get("Contents", ())), "")
    head = ask("head_object", Key=key) if key else None
    return Posture(
        name,
        "s3",
        None if default is None else rule.get("SSEAlgorithm", NONE),
        rule.get("KMSMasterKeyID"),
        (None if doubts or key else EMPTY) if head is None else head.get("ServerSideEncryption", NONE),
        (head or {}).get("SSEKMSKeyId"),
        None if where is None else where.get("LocationConstraint") or _FIRST_REGION,
        ", ".join(doubts),
    )


def is_s3(place: "Store") -> bool:
    """Whether a place is in a store that speaks S3's protocol."""
    return bool({"s3", "s3a"} & set(_protocols(place)))


def _protocols(place: "Store") -> tuple[str, ...]:
    protocol = place.fs.protocol
    return tuple(map(str, protocol)) if isinstance(protocol, tuple | list) else (str(protocol),)


def error_code(error: BaseException) -> str:
    """Return what the store called an error, which clients wrap; else the error's own name."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(response := getattr(at, "response", None), dict):
            return str(response.get("Error", {}).get("Code", type(at).__name__))
        at = at.__cause__ or at.__context__
    return type(error).__name__


def overlaps(lake: "Lake", place: "Store") -> bool:
    """Whether a place lies in the lake or a spool of it, or around one."""
    roots = [lake.store.root, *_spool_roots(lake)] if lake.store.is_local == place.is_local else []
    return any(_lies_in(place.root, root) or _lies_in(root, place.root) for root in roots)


def _spool_roots(lake: "Lake") -> Iterator[str]:
    for uri in lake.config.spools:
        spool = Store.at(uri, lake.store.storage)
        if spool.is_local == lake.store.is_local:
            yield spool.root


def _lies_in(inner: str, outer: str) -> bool:
    return f"{inner}/".startswith(f"{outer}/")
