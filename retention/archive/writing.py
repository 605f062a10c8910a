"""Writes rows into an archive: copies files, reads the copies again, and writes the manifest.

    files of a partition ──copy──▶ archive ──read again: same digest?──▶ manifest ──▶ storage class ──▶ ``archives``

A plan removes the rows from the lake afterwards. Each step can be repeated: after a crash the next call finds copied
files by their names, which contain their digests. A file of single rows gets a new name each time; a sweep deletes
those that no manifest names.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ranklake.lake.plans.kinds import RETENTION
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.store.files import overwrite
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import digest_of, refuse_damaged
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.place import (
    ArchivedFile,
    ArchiveError,
    Manifest,
    claim,
    columns_of,
    look_at,
    move_to,
    read_manifest,
    refuse_classes,
    sorted_files,
)
from ranklake.retention.archive.register import ARCHIVED, REMOVED, Archive, archive_name, every_archive
from ranklake.retention.proposals.identities import owner
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.retention.policies.model import Destination
    from ranklake.retention.proposals.retention_plans import Item


@dataclass(frozen=True, slots=True)
class WrittenArchive:
    """A written archive: its manifest, and its entry for the register."""

    manifest: Manifest
    archive: Archive


class ArchiveWriter:
    """Writes rows of one partition into an archive.

    Parameters
    ----------
    proposal, number
        The retention plan, and the lake's plan that applies it.
    """

    def __init__(self, lake: "Lake", item: "Item", to: "Destination", proposal: str, number: int) -> None:
        refuse_classes(to.to, to.storage_class, to.tag)
        self.tables, self.item, self.to = lake.tables, item, to
        self.proposal, self.number = proposal, number
        self.place = claim(lake, to.to)
        self.contract: Contract = as_read(latest(lake.tables, item.table), lake.contract(item.table))
        self._files: list[ArchivedFile] = []

    def copy(self, files: pa.Table) -> None:
        """Copy data files byte by byte: rows of `ranklake.lake.tables.live_files.files`. Raises `DamagedFileError`."""
        for row in files.select(["path", "size_bytes", "num_records", "date"]).to_pylist():
            refuse_damaged(self.tables, self.item.table, [row])
            copy = copy_file(self.tables.store, self.place, self.item.table, row["path"], row["num_records"])
            self._files.append(copy)

    def add(self, rows: pa.Table) -> None:
        """Write rows of the partition as a file of the archive, and verify it. Raises `DamagedFileError`."""
        file = write_partition(self.place, self.contract, rows, self.item.partition_date, self.number)
        row = {"path": file.path, "size_bytes": file.size_bytes, "num_records": file.rows}
        refuse_damaged(Tables(self.place), self.item.table, [{**row, "date": self.item.partition_date}])
        digest = digest_of(file.path)
        assert digest is not None
        self._files.append(ArchivedFile(file.path, file.rows, file.size_bytes, digest))

    def finish(self) -> WrittenArchive:
        """Write the manifest, move the copies into their storage class, and return the archive."""
        manifest = Manifest(
            owner(self.tables.store),
            self.item.table,
            self.item.partition_date,
            self.contract.version,
            columns_of(self.contract),
            self.proposal,
            sorted_files(self._files),
            self.contract.added_version,
        )
        self.place.put_if_absent(manifest.name, manifest.to_json())
        read_manifest(self.place, manifest.sha256)
        for file in manifest.files:
            move_to(
                self.place,
                self.place.path("tables", self.item.table, file.path),
                self.to.storage_class,
                self.to.tag,
            )
        archive = Archive(
            archive=archive_name(manifest.sha256),
            table=manifest.table,
            partition_date=manifest.partition_date,
            contract_version=manifest.contract_version,
            uri=self.to.to,
            storage_class=self.to.storage_class,
            rows=manifest.rows,
            bytes=manifest.size_bytes,
            files=len(manifest.files),
            manifest_sha256=manifest.sha256,
            needs_approval=not self.to.free,
            proposal=self.proposal,
            plan=self.number,
        )
        return WrittenArchive(manifest, archive)


def copy_file(store: "Store", place: "Store", table: str, path: str, rows: int) -> ArchivedFile:
    """Copy a data file into an archive unless an intact copy exists, and verify the copy.

    Raises `ArchiveError` if the copy differs from the file.
    """
    source, target = store.path("tables", table, path), place.path("tables", table, path)
    raw = bytes(store.fs.cat_file(source))
    copy = ArchivedFile(path, rows, len(raw), hashlib.sha256(raw).hexdigest())
    _, fault = look_at(place, table, copy)
    if fault:
        if place.is_local:
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - fsspec paths are strings
        overwrite(place.fs, target, raw, local=place.is_local)
        _, fault = look_at(place, table, copy)
    if fault:
        raise ArchiveError(f"the copy does not verify: {fault}", where=target, hint="nothing was removed; run it again")
    return copy


def repair_copies(lake: "Lake") -> None:
    """Copy the files of an unfinished plan again whose copies are damaged, as long as they are still in the lake.

    Files of single rows cannot be repaired, since they exist only in the archive. Raises the errors of `copy_file`.
    """
    unfinished = read_plan(lake.store, last_finished(lake.tables) + 1)
    if unfinished is None or unfinished.kind != RETENTION.name:
        return
    places = {
        (item.table, item.partition_date.isoformat()): item.archive_to
        for item in RETENTION_PLANS.find(lake, unfinished.body["facts"]["retention_plan"]).items
        if item.archive_to is not None and item.part_sha256 is None
    }
    for table, rows in unfinished.body["remove"].items():
        for row in rows:
            to = places.get((table, row["date"]))
            if to is not None and lake.fs.exists(lake.path("tables", table, row["path"])):
                refuse_damaged(lake.tables, table, [{**row, "date": date.fromisoformat(row["date"])}])
                copy_file(lake.store, claim(lake, to), table, row["path"], row["num_records"])


def archived_rows(written: "Iterable[WrittenArchive]") -> Iterator[dict[str, Any]]:
    """Yield the register's rows of written archives, without their times."""
    yield from (item.archive.row(ARCHIVED) for item in written)


def ended_rows(
    tables: "Tables", ended: Mapping[str, Mapping[str, list[str]]], proposal: str, number: int
) -> Iterator[dict[str, Any]]:
    """Yield the register's rows of archives that a plan ends, without their times. `ended` is by table and date."""
    by_name = every_archive(tables) if ended else {}
    for names_by_date in ended.values():
        for name in (name for names in names_by_date.values() for name in names):
            yield {**by_name[name].row(REMOVED), "proposal": proposal, "plan": number}
