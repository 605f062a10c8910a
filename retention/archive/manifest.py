"""A manifest: of which files an archive consists, under which contract, and by which plan it was made.

It is a file that is named by the digest of its bytes, and the register of archives has that digest: so neither can be
changed without the other. It has all that is needed to read the files without a lake: columns with types and units.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.tables.live_files import FILE_SCHEMA, sha256
from ranklake.retention.archive.place import ArchiveError, Availability, look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store


FORMAT: Final = 1
FOLDER: Final = "manifests"


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A data file: its path relative to its table's folder, what it holds and takes, the digest of its bytes."""

    path: str
    rows: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one archive consists of.

    Attributes
    ----------
    lake
        Identity of the lake that archived it.
    table, partition_date
        The partition that was archived.
    contract_version, columns
        What the files were written under: id, name, type, unit and class of each column.
    retention_plan
        The plan by which the rows left the lake.
    files
        By path.
    added_version
        Version of the columns that an overlay adds to a table of ours.
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
        """Return its bytes: equal manifests have equal ones."""
        body = {**asdict(self), "format": FORMAT, "partition_date": self.partition_date.isoformat()}
        return json.dumps(body, sort_keys=True, indent=1).encode()

    @property
    def sha256(self) -> str:
        """Digest of its bytes."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @property
    def name(self) -> str:
        """Path below the root of the archive's place."""
        return name_of(self.sha256)


def columns_of(contract: "Contract") -> tuple[dict[str, Any], ...]:
    """Return what a manifest says of the columns of a contract."""
    return tuple(
        {"id": column.id, "name": column.name, "type": column.type, "unit": column.unit, "class": column.class_}
        for column in contract.columns
    )


def name_of(sha256: str) -> str:
    """Return the path of a digest's manifest below the root of the archive's place."""
    return f"{FOLDER}/{sha256}.json"


def sorted_files(files: "Sequence[ArchivedFile]") -> tuple[ArchivedFile, ...]:
    """Return files in the order of a manifest."""
    return tuple(sorted(files, key=lambda file: file.path))


def read_manifest(place: "Store", sha256: str) -> Manifest:
    """Return the manifest of a digest. Raises `ArchiveError` where it is not there, or not what was written."""
    where = place.path(name_of(sha256))
    try:
        raw = bytes(place.fs.cat_file(where))
    except FileNotFoundError:
        raise ArchiveError("the manifest is not there", where=where, hint="restore it from a backup") from None
    if hashlib.sha256(raw).hexdigest() != sha256:
        message = "the manifest's bytes differ from the digest in its name"
        raise ArchiveError(message, where=where, hint="restore it from a backup")
    facts = json.loads(raw)
    files = tuple(ArchivedFile(**one) for one in facts.pop("files"))
    facts.pop("format")
    columns = tuple(facts.pop("columns"))
    day = date.fromisoformat(facts.pop("partition_date"))
    return Manifest(**facts, partition_date=day, columns=columns, files=files)


def refuse_unsound(place: "Store", manifest: Manifest) -> None:
    """Raise `ArchiveError` where a file of an archive is not what was written; those in cold storage go by size."""
    for file in manifest.files:
        _, why = look_at(place, manifest.table, file)
        if why:
            raise ArchiveError(why, where=place.path("tables", manifest.table, file.path))


def look_at(place: "Store", table: str, file: ArchivedFile) -> tuple[bool, str]:
    """Return whether a file could be read, and what is wrong with it; empty if nothing is."""
    path = place.path("tables", table, file.path)
    try:
        availability = look(place, path)
        if availability.size_bytes != file.size_bytes:
            return True, f"{availability.size_bytes:,} bytes where the manifest says {file.size_bytes:,}"
        if availability.at_hand is not Availability.YES:
            return False, ""
        with place.open_file(path, file.size_bytes) as source:
            return True, "" if sha256(source) == file.sha256 else "its bytes differ from the digest in the manifest"
    except FileNotFoundError:
        return True, "it is not there"
