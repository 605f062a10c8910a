"""Objects of an archive in a store: under which class they lie, whether they are at hand, what asks for them.

Classes are those of S3. Objects of a cold class have to be asked for, and come back for some days, hours later. Only a
copy that was read again, and is sound, is moved to another class; so one that lies in a cold class was sound.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.retention.archive.place import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.store.store import Lake

COLD: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
CLASSES: Final = frozenset(
    {"STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "REDUCED_REDUNDANCY", *COLD}
)
"""Storage classes of Amazon's S3. Other stores have classes of their own, which a policy may name, too."""
RESTORED_DAYS: Final = 7
"""How long an object that was asked for stays at hand."""
_S3: Final = ("s3://", "s3a://")


class AtHand(Enum):
    """Whether an object can be read."""

    YES = "at hand"
    COLD = "in cold storage"
    COMING = "asked for, and not there yet"

    @property
    def closed(self) -> str:
        """Why it cannot be read; empty if it can."""
        return "" if self is AtHand.YES else f"{self.value}: bring its archive back first"


@dataclass(frozen=True, slots=True)
class Object:
    """An object: its size, its class (None where the store has none), and whether it can be read."""

    size_bytes: int
    storage_class: str | None
    at_hand: AtHand


def has_classes(uri: str) -> bool:
    """Say whether objects of a place can lie in storage classes."""
    return uri.startswith(_S3)


def look(place: "Lake", path: str) -> Object:
    """Return what an object is. Raises `FileNotFoundError`, and what the store raises."""
    if not has_classes(place.uri):
        return Object(int(place.fs.size(path) or 0), None, AtHand.YES)
    head = _call(place, "head_object", path)
    named = str(head.get("StorageClass") or "STANDARD")
    asked = str(head.get("Restore") or "")
    if named not in COLD or 'ongoing-request="false"' in asked:
        found = AtHand.YES
    else:
        found = AtHand.COMING if asked else AtHand.COLD
    return Object(int(head["ContentLength"]), named, found)


def move_to(place: "Lake", path: str, storage_class: str | None, tag: str | None) -> None:
    """Put an object that is at hand into a storage class, and give it a tag ``name=value``; again changes nothing.

    A tag is for rules of the bucket's own life cycle. Raises what the store raises.
    """
    if storage_class is not None and look(place, path).storage_class != storage_class:
        bucket, key = _split(place, path)
        source = {"CopySource": {"Bucket": bucket, "Key": key}, "MetadataDirective": "COPY"}
        _call(place, "copy_object", path, **source, StorageClass=storage_class)
    if tag is not None:
        name, _, value = tag.partition("=")
        _call(place, "put_object_tagging", path, Tagging={"TagSet": [{"Key": name, "Value": value}]})


def ask_for(place: "Lake", path: str, days: int = RESTORED_DAYS, tier: str = "Standard") -> None:
    """Ask the store for an object of a cold class; one that was asked for already stays so."""
    request = {"Days": days, "GlacierJobParameters": {"Tier": tier}}
    try:
        _call(place, "restore_object", path, RestoreRequest=request)
    except LakeUnreachableError:
        if look(place, path).at_hand is AtHand.COLD:
            raise


def refuse_classes(uri: str, storage_class: str | None, tag: str | None) -> None:
    """Raise `ArchiveError` where a place has no storage classes, or tags, and one is asked for."""
    if (storage_class or tag) and not has_classes(uri):
        raise ArchiveError("only S3 has storage classes and tags here", where=uri, hint="leave them out of the policy")


def _call(place: "Lake", method: str, path: str, **given: Any) -> "Mapping[str, Any]":  # noqa: ANN401 - the store's own
    bucket, key = _split(place, path)
    found: Mapping[str, Any] = place.fs.call_s3(method, Bucket=bucket, Key=key, **given)
    return found


def _split(place: "Lake", path: str) -> tuple[str, str]:
    bucket, key, _ = place.fs.split_path(path)
    return bucket, key
