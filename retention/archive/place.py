"""The place of archives: a folder or bucket prefix of one lake, with the layout of the lake's tables.

    <to>/ranklake-archive.json                         the owner: the lake's identity
    <to>/tables/<table>/date=<UTC date>/<name>.parquet data files; the SHA-256 of the bytes is part of the name
    <to>/manifests/<sha256>.json                       the files of one archive (`Manifest`)

The functions that read data files of a lake also read those of an archive.

A manifest lists the files of an archive, their contract version and the plan that made the archive. It also has types
and units of the columns, so that the files can be read without a lake. Its file is named by the digest of its bytes,
which the register of archives stores, too. So neither can be changed without the other.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.store.files import listed
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.posture import overlaps
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.store.store import MARKER as LAKE_MARKER
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import FILE_SCHEMA, sha256
from ranklake.retention.policies.model import has_classes, place_fault
from ranklake.retention.proposals.identities import owner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ranklake.lake.contracts.model import Contract


MARKER: Final = "ranklake-archive.json"
FORMAT: Final = 1


class ArchiveError(RanklakeError):
    """A place cannot hold archives, or an archive is damaged or missing. Nothing was removed."""


def open_place(store: Store, uri: str) -> Store:
    """Return a place of archives, with the lake's storage options. Raises `LakeUnreachableError`."""
    return Store.at(uri, store.storage)


def claim(lake: Lake, uri: str) -> Store:
    """Mark a place as owned by this lake, and return it. A second call changes nothing.

    Raises `ArchiveError` if another lake owns the place, if it is not empty, or if it overlaps the lake or its spool.
    """
    fault = place_fault(uri)
    if fault:
        raise ArchiveError(f"no place for archives: {fault}", where=uri if "credential" not in fault else "to")
    place = open_place(lake.store, uri)
    if overlaps(lake, place):
        message = "the place lies in the lake or a spool, or around it"
        raise ArchiveError(message, where=uri, hint="give archives a folder or prefix of their own")
    if not place.fs.exists(place.path(MARKER)):
        if place.fs.exists(place.path(LAKE_MARKER)):
            raise ArchiveError("a lake is there", where=uri, hint="name an empty place")
        if any(not file.path.endswith(".tmp") for file in listed(place.fs, place.root)):
            raise ArchiveError("the place is not empty, and holds no archives", where=uri, hint="name an empty place")
        place.put_if_absent(MARKER, json.dumps({"format": FORMAT, "lake": owner(lake.store)}).encode())
    refuse_other(lake.store, place)
    return place


def refuse_other(store: Store, place: Store) -> None:
    """Raise `ArchiveError` unless a place is marked as this lake's."""
    try:
        marker = json.loads(place.fs.cat_file(place.path(MARKER)))
        lake, format_ = marker["lake"], marker["format"]
    except FileNotFoundError:
        hint = f"restore {MARKER} there; only this lake's archives are looked into"
        raise ArchiveError("no archives are there", where=place.uri, hint=hint) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArchiveError("what says whose archives these are cannot be read", where=place.uri) from None
    if format_ != FORMAT:
        raise ArchiveError(f"archives of format {format_}, and {FORMAT} is known here", where=place.uri, hint="upgrade")
    if lake != owner(store):
        raise ArchiveError("another lake owns these archives", where=place.uri, hint="name another place")


COLD: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
CLASSES: Final = frozenset(
    {"STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "REDUCED_REDUNDANCY", *COLD}
)
"""Storage classes of Amazon S3. A policy may also name a class of another store."""
RESTORED_DAYS: Final = 7
"""Days for which a restored object of a cold class can be read."""


class Availability(Enum):
    """Whether an object can be read."""

    YES = "at hand"
    COLD = "in cold storage"
    COMING = "asked for, and not there yet"

    @property
    def closed(self) -> str:
        """Why it cannot be read; empty if it can."""
        return "" if self is Availability.YES else f"{self.value}: bring its archive back first"


@dataclass(frozen=True, slots=True)
class Object:
    """An object's size, its storage class (None for a store without classes), and whether it can be read now."""

    size_bytes: int
    storage_class: str | None
    availability: Availability


def look(place: "Store", path: str) -> Object:
    """Return size, storage class and availability of an object. Raises `FileNotFoundError` and the store's errors."""
    if not has_classes(place.uri):
        return Object(int(place.fs.size(path) or 0), None, Availability.YES)
    head = _call(place, "head_object", path)
    storage_class = str(head.get("StorageClass") or "STANDARD")
    restore = str(head.get("Restore") or "")
    if storage_class not in COLD or 'ongoing-request="false"' in restore:
        availability = Availability.YES
    else:
        availability = Availability.COMING if restore else Availability.COLD
    return Object(int(head["ContentLength"]), storage_class, availability)


def move_to(place: "Store", path: str, storage_class: str | None, tag: str | None) -> None:
    """Move a readable object into a storage class, and set its tag ``name=value``. A second call changes nothing.

    Tags are for lifecycle rules of the bucket. Raises the errors of the store.
    """
    if storage_class is not None and look(place, path).storage_class != storage_class:
        bucket, key = _split(place, path)
        source = {"CopySource": {"Bucket": bucket, "Key": key}, "MetadataDirective": "COPY"}
        _call(place, "copy_object", path, **source, StorageClass=storage_class)
    if tag is not None:
        name, _, value = tag.partition("=")
        _call(place, "put_object_tagging", path, Tagging={"TagSet": [{"Key": name, "Value": value}]})


def ask_for(place: "Store", path: str, days: int = RESTORED_DAYS, tier: str = "Standard") -> None:
    """Request the restore of an object in a cold class. Does nothing if the restore was requested before."""
    request = {"Days": days, "GlacierJobParameters": {"Tier": tier}}
    try:
        _call(place, "restore_object", path, RestoreRequest=request)
    except LakeUnreachableError:
        if look(place, path).availability is Availability.COLD:
            raise


def refuse_classes(uri: str, storage_class: str | None, tag: str | None) -> None:
    """Raise `ArchiveError` if a storage class or tag is given for a place that has none."""
    if (storage_class or tag) and not has_classes(uri):
        raise ArchiveError("only S3 has storage classes and tags here", where=uri, hint="leave them out of the policy")


def _call(place: "Store", method: str, path: str, **options: Any) -> "Mapping[str, Any]":  # noqa: ANN401 - the store's own
    bucket, key = _split(place, path)
    response: Mapping[str, Any] = place.fs.call_s3(method, Bucket=bucket, Key=key, **options)
    return response


def _split(place: "Store", path: str) -> tuple[str, str]:
    bucket, key, _ = place.fs.split_path(path)
    return bucket, key


MANIFEST_FORMAT: Final = 1
FOLDER: Final = "manifests"


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A data file of an archive: its path relative to the table's folder, rows, size, and SHA-256 of its bytes."""

    path: str
    rows: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of one archive.

    Attributes
    ----------
    lake
        Identity of the lake that made the archive.
    table, partition_date
        The archived partition.
    contract_version, columns
        Contract version of the files; id, name, type, unit and class of each column.
    retention_plan
        The retention plan that archived the rows.
    files
        The files, sorted by path.
    added_version
        Version of the columns that an overlay adds to the table.
    """

    lake: str
    table: str
    partition_date: date
    contract_version: int
    columns: tuple[dict[str, Any], ...]
    retention_plan: str
    files: tuple[ArchivedFile, ...]
    added_version: int = 1

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def table_files(self) -> pa.Table:
        """The files as rows of `ranklake.lake.tables.live_files.files`."""
        rows = [
            {"path": file.path, "size_bytes": file.size_bytes, "num_records": file.rows, "date": self.partition_date}
            for file in self.files
        ]
        return pa.Table.from_pylist(rows, schema=FILE_SCHEMA)

    def to_json(self) -> bytes:
        """Return the manifest as JSON bytes, the same for equal manifests."""
        body = {**asdict(self), "format": MANIFEST_FORMAT, "partition_date": self.partition_date.isoformat()}
        return json.dumps(body, sort_keys=True, indent=1).encode()

    @property
    def sha256(self) -> str:
        """SHA-256 of its bytes as hex."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @property
    def name(self) -> str:
        """Path below the root of the archive's place."""
        return name_of(self.sha256)


def columns_of(contract: "Contract") -> tuple[dict[str, Any], ...]:
    """Return the columns of a contract, as in a manifest."""
    return tuple(
        {"id": column.id, "name": column.name, "type": column.type, "unit": column.unit, "class": column.class_}
        for column in contract.columns
    )


def name_of(sha256: str) -> str:
    """Return the path of the manifest with this digest, below the root of the archive's place."""
    return f"{FOLDER}/{sha256}.json"


def sorted_files(files: "Sequence[ArchivedFile]") -> tuple[ArchivedFile, ...]:
    """Return files sorted by path, as in a manifest."""
    return tuple(sorted(files, key=lambda file: file.path))


def read_manifest(place: "Store", sha256: str) -> Manifest:
    """Return the manifest with this digest. Raises `ArchiveError` if it is missing or damaged."""
    where = place.path(name_of(sha256))
    try:
        raw = bytes(place.fs.cat_file(where))
    except FileNotFoundError:
        raise ArchiveError("the manifest is not there", where=where, hint="restore it from a backup") from None
    if hashlib.sha256(raw).hexdigest() != sha256:
        message = "the manifest's bytes differ from the digest in its name"
        raise ArchiveError(message, where=where, hint="restore it from a backup")
    facts = json.loads(raw)
    files = tuple(ArchivedFile(**file) for file in facts.pop("files"))
    facts.pop("format")
    columns = tuple(facts.pop("columns"))
    day = date.fromisoformat(facts.pop("partition_date"))
    return Manifest(**facts, partition_date=day, columns=columns, files=files)


def refuse_unsound(place: "Store", manifest: Manifest) -> None:
    """Raise `ArchiveError` if a file of an archive is missing or damaged. Checks only the size in cold storage."""
    for file in manifest.files:
        _, fault = look_at(place, manifest.table, file)
        if fault:
            raise ArchiveError(fault, where=place.path("tables", manifest.table, file.path))


def look_at(place: "Store", table: str, file: ArchivedFile) -> tuple[bool, str]:
    """Return whether a file could be read, and its fault; empty if it has none."""
    path = place.path("tables", table, file.path)
    try:
        stored = look(place, path)
        if stored.size_bytes != file.size_bytes:
            return True, f"{stored.size_bytes:,} bytes where the manifest says {file.size_bytes:,}"
        if stored.availability is not Availability.YES:
            return False, ""
        with place.open_file(path, file.size_bytes) as source:
            return True, "" if sha256(source) == file.sha256 else "its bytes differ from the digest in the manifest"
    except FileNotFoundError:
        return True, "it is not there"
