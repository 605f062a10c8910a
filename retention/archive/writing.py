"""Puts rows into an archive: copied, read again, written down; they leave the lake by a plan afterwards.

    files of a partition ──copy──▶ archive ──read again: same digest?──▶ manifest ──▶ storage class ──▶ ``archives``

Each step can be made again. Killed half-way, the next call finds the copies by their names, which hold their
digests; copies of rows of a partition have names of their own each time, so those that no manifest names are strays.
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
    """Rows that lie in an archive: its manifest, and what is written down of it."""

    manifest: Manifest
    archive: Archive


class ArchiveWriter:
    """Puts rows of one partition into an archive.

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
            copied = copy_file(self.tables.store, self.place, self.item.table, row["path"], row["num_records"])
            self._files.append(copied)

    def add(self, rows: pa.Table) -> None:
        """Write rows of the partition as a file of the archive."""
        made = write_partition(self.place, self.contract, rows, self.item.partition_date, self.number)
        refuse_damaged(Tables(self.place), self.item.table, [_as_row(made.path, made.size_bytes, made.rows, self.item)])
        digest = digest_of(made.path)
        assert digest is not None
        self._files.append(ArchivedFile(made.path, made.rows, made.size_bytes, digest))

    def done(self) -> WrittenArchive:
        """Write the manifest, move the copies into their class, and return what is written down of them."""
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
        made = Archive(
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
        return WrittenArchive(manifest, made)


def copy_file(store: "Store", place: "Store", table: str, path: str, rows: int) -> ArchivedFile:
    """Copy a data file into an archive unless a sound copy exists, and verify the copy.

    Raises `ArchiveError` where the copy is not what was read.
    """
    source, target = store.path("tables", table, path), place.path("tables", table, path)
    raw = bytes(store.fs.cat_file(source))
    made = ArchivedFile(path, rows, len(raw), hashlib.sha256(raw).hexdigest())
    _, fault = look_at(place, table, made)
    if fault:
        if place.is_local:
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - fsspec paths are strings
        overwrite(place.fs, target, raw, local=place.is_local)
        _, fault = look_at(place, table, made)
    if fault:
        raise ArchiveError(f"the copy does not verify: {fault}", where=target, hint="nothing was removed; run it again")
    return made


def copy_anew(lake: "Lake") -> None:
    """Copy what an unfinished plan archives once more where the copy is not sound and the file is still in the lake.

    Of rows of a partition nothing can be copied: their files are not those of the lake. Raises what `copy_file` does.
    """
    waiting = read_plan(lake.store, last_finished(lake.tables) + 1)
    if waiting is None or waiting.kind != RETENTION.name:
        return
    places = {
        (item.table, item.partition_date.isoformat()): item.archive_to
        for item in RETENTION_PLANS.find(lake, waiting.body["facts"]["retention_plan"]).items
        if item.archive_to is not None and item.part_sha256 is None
    }
    for table, rows in waiting.body["remove"].items():
        for row in rows:
            to = places.get((table, row["date"]))
            if to is not None and lake.fs.exists(lake.path("tables", table, row["path"])):
                refuse_damaged(lake.tables, table, [{**row, "date": date.fromisoformat(row["date"])}])
                copy_file(lake.store, claim(lake, to), table, row["path"], row["num_records"])


def _as_row(path: str, size_bytes: int, rows: int, item: "Item") -> dict[str, object]:
    return {"path": path, "size_bytes": size_bytes, "num_records": rows, "date": item.partition_date}


def archived_rows(written: "Iterable[WrittenArchive]") -> Iterator[dict[str, Any]]:
    """Yield the rows of archives that a plan makes."""
    yield from (one.archive.row(ARCHIVED) for one in written)


def ended_rows(
    tables: "Tables", ended: Mapping[str, Mapping[str, list[str]]], proposal: str, number: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of archives that end with a plan."""
    known = every_archive(tables) if ended else {}
    for days in ended.values():
        for name in (name for some in days.values() for name in some):
            yield {**known[name].row(REMOVED), "proposal": proposal, "plan": number}
