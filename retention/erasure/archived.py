"""Erases a subject's rows from archives and kept files, and refuses an erasure of rows on legal hold.

    archived file with matches ─▶ a new file without the subject's rows, under the same contract version
        ─▶ a new manifest ─▶ row ``rewritten`` of the register ─▶ files that no manifest names are deleted

After a crash the next call continues, since a file is found again as long as it contains a value.
"""

import hashlib
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranklake.errors import RanklakeError
from ranklake.lake.migrations.rewriting import stored_rows
from ranklake.lake.plans.action_plan import ENDED
from ranklake.lake.store.files import overwrite
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import plan_of
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.place import ArchivedFile, Manifest, move_to, open_place, read_manifest, sorted_files
from ranklake.retention.archive.register import Archive, every_archive, write_rewritten
from ranklake.retention.archive.rehydration import current_rows
from ranklake.retention.archive.sweeping import sweep_archives
from ranklake.retention.erasure.search import ARCHIVES
from ranklake.retention.erasure.subject import DatedRows, marks_in, text_columns
from ranklake.retention.holds.hold import Hold
from ranklake.retention.holds.holds import count_held, holds_of
from ranklake.retention.plans.cancel import rows_of
from ranklake.retention.policies.order import Level
from ranklake.retention.policies.parts import Parts, RunFacts, run_facts
from ranklake.retention.proposals.erasures import NAMES, Item
from ranklake.retention.proposals.kept import KeptFile, kept_plans

if TYPE_CHECKING:
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.retention.erasure.search import FileMatches
    from ranklake.retention.erasure.subject import Subject


@dataclass(frozen=True, slots=True)
class ArchivedMatch:
    """An archived file with matches, its archive, and the archive's place and manifest."""

    archive: Archive
    place: "Store"
    manifest: Manifest
    file: ArchivedFile

    @property
    def row(self) -> dict[str, Any]:
        """The file as a row of `ranklake.lake.tables.live_files.files`."""
        named = {"path": self.file.path, "size_bytes": self.file.size_bytes}
        return {**named, "num_records": self.file.rows, "date": self.archive.partition_date}


def matching_archives(tables: "Tables", matches: "Collection[FileMatches]") -> Iterator[ArchivedMatch]:
    """Yield the registered archived files that have matches."""
    paths = {match.source.uri for match in matches if match.source.place == ARCHIVES and match.counts}
    for archive in existing_archives(tables) if paths else ():
        place = open_place(tables.store, archive.uri)
        manifest = read_manifest(place, archive.manifest_sha256)
        for file in manifest.files:
            if place.path("tables", manifest.table, file.path) in paths:
                yield ArchivedMatch(archive, place, manifest, file)


def existing_archives(tables: "Tables") -> list[Archive]:
    """Return the archives whose files exist, including those that a plan ended which can still be cancelled."""
    ended = {
        name
        for kept_plan in kept_plans(tables)
        for names_by_date in kept_plan.plan.body["facts"].get(ENDED, {}).values()
        for names in names_by_date.values()
        for name in names
    }
    return [
        archive for archive in every_archive(tables).values() if archive.removed is None or archive.archive in ended
    ]


def held_rows(lake: "Lake", subject: "Subject", match: ArchivedMatch, hold: "Hold", facts: RunFacts) -> int:
    """Return the number of the subject's rows in an archived file that a hold covers."""
    contract = lake.contract(match.archive.table)
    if not hold.covers(match.archive.partition_date) or not hold.rule.may_match(contract):
        return 0
    rows = current_rows(match.place, match.manifest, match.row, lake)
    subject_rows = rows.filter(marks_in(lake.catalog, subject, match.archive.table, rows))
    return count_held(lake, contract, subject_rows, hold, facts)


def erase_archived(lake: "Lake", subject: "Subject", matches: "Collection[FileMatches]", proposal: str) -> int:
    """Remove the subject's rows from archived files; return the number of rewritten or deleted files."""
    changed = 0
    by_archive: dict[str, list[ArchivedMatch]] = {}
    for match in matching_archives(lake.tables, matches):
        by_archive.setdefault(match.archive.archive, []).append(match)
    for group in by_archive.values():
        first, old_paths = group[0], {match.file.path for match in group}
        new = [file for match in group for file in _rewrite_without(lake, subject, match)]
        kept = [file for file in first.manifest.files if file.path not in old_paths]
        manifest = replace(first.manifest, files=sorted_files([*kept, *new]))
        first.place.put_if_absent(manifest.name, manifest.to_json())
        write_rewritten(lake.tables, first.archive, manifest, proposal)
        changed += len(group)
    if any(match.source.place == ARCHIVES and match.counts for match in matches):
        sweep_archives(lake.tables)
    return changed


def _rewrite_without(lake: "Lake", subject: "Subject", match: ArchivedMatch) -> Iterator[ArchivedFile]:
    """Write an archived file without the subject's rows, under the same contract version; nothing if no row is left."""
    marks = marks_in(
        lake.catalog, subject, match.archive.table, current_rows(match.place, match.manifest, match.row, lake)
    )
    rows = stored_rows(Tables(match.place), match.archive.table, match.row).filter(pc.invert(marks))
    if not rows.num_rows:
        return
    for index, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):  # a dictionary keeps the values of removed rows
            rows = rows.set_column(index, field.name, rows[field.name].cast(field.type.value_type))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
    raw = sink.getvalue().to_pybytes()
    digest = hashlib.sha256(raw).hexdigest()
    number = plan_of(match.file.path) or 0
    path = f"date={match.archive.partition_date.isoformat()}/p{number:010d}-{uuid.uuid4().hex}-{digest}.parquet"
    target = match.place.path("tables", match.archive.table, path)
    overwrite(match.place.fs, target, raw, local=match.place.is_local)
    move_to(match.place, target, match.archive.storage_class, None)
    yield ArchivedFile(path, rows.num_rows, len(raw), digest)


def matching_kept_files(tables: "Tables", matches: "Collection[FileMatches]") -> Iterator[KeptFile]:
    """Yield the files in days of grace that have matches."""
    paths = {match.source.uri for match in matches if match.counts and match.source.version is None}
    for kept_plan in kept_plans(tables) if paths else ():
        yield from (file for file in kept_plan.files if tables.store.path("tables", file.table, file.path) in paths)


def held_in(lake: "Lake", subject: "Subject", file: KeptFile, hold: "Hold", facts: RunFacts) -> int:
    """Return the number of the subject's rows in a kept file that a hold covers."""
    contract = lake.contract(file.table)
    if not hold.covers(file.day) or not hold.rule.may_match(contract):
        return 0
    rows = rows_of(lake.tables, as_read(latest(lake.tables, file.table), contract), file)
    subject_rows = rows.filter(marks_in(lake.catalog, subject, file.table, rows))
    return count_held(lake, contract, subject_rows, hold, facts)


def rewrite_kept_files(
    lake: "Lake", subject: "Subject", files: "Collection[KeptFile]", number: int
) -> dict[str, list[dict[str, Any]]]:
    """Write kept files without the subject's rows; return the plan's facts about the old and new files, by table.

    Commits nothing. Raises `ranklake.lake.tables.live_files.DamagedFileError`.
    """
    replacements: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        target = as_read(latest(lake.tables, file.table), lake.contract(file.table))
        rows = rows_of(lake.tables, target, file)
        rest = rows.filter(pc.invert(marks_in(lake.catalog, subject, file.table, rows)))
        new = [
            {
                "path": new_file.path,
                "size_bytes": new_file.size_bytes,
                "num_records": new_file.rows,
                "version": target.stamp,
                "date": new_file.partition.isoformat(),
            }
            for new_file in (append_files(lake.store, target, rest, number) if rest.num_rows else ())
        ]
        replacements.setdefault(file.table, []).append({"path": file.path, "by": new})
    return replacements


class HeldError(RanklakeError):
    """The subject's data are under a legal hold. Nothing was changed."""


def refuse_held(
    lake: "Lake",
    subject: "Subject",
    rows: Iterable[DatedRows],
    raw: Iterable[Item],
    archived: Iterable[ArchivedMatch],
    kept: Iterable[KeptFile],
    today: date,
) -> None:
    """Raise `HeldError` if a hold covers rows of the subject, or may cover rows in raw bytes that would be deleted.

    Rows on hold are evidence, and so are their copies, logs and names. So one such row stops the whole erasure.
    """
    holds = holds_of(lake, today)
    if not holds:
        return
    facts = run_facts(lake.tables, [hold.rule for hold in holds])
    for hold in holds:
        count = sum(_rows_on_hold(lake, subject, dated, hold, facts) for dated in rows if dated.item.place != NAMES)
        count += sum(held_rows(lake, subject, match, hold, facts) for match in archived)
        count += sum(held_in(lake, subject, file, hold, facts) for file in kept)
        count += sum(_may_cover(lake.catalog, hold, item) for item in raw)
        if count:
            message = f"the legal hold {hold.name} is about {count:,} rows or files of this subject until {hold.until}"
            raise HeldError(message, hint="a hold goes before every erasure; see 'ranklake retain holds'")


def _rows_on_hold(lake: "Lake", subject: "Subject", dated: DatedRows, hold: Hold, facts: RunFacts) -> int:
    contract, day = lake.contract(dated.item.table or ""), dated.item.partition_date
    if day is None or not hold.covers(day) or not hold.rule.may_match(contract):
        return 0
    parts = Parts(lake, contract, (), (hold.rule,), facts)
    if not parts.columns:
        return dated.item.rows if parts.of_table().level is Level.HOLD else 0
    texts = text_columns(contract)
    count = 0
    for _, rows in read_some(lake.tables, contract, dated.files, list(dict.fromkeys([*texts, *parts.columns]))):
        subject_rows = rows.filter(subject.marks(rows.select(texts)))
        count += int(pc.sum(parts.mask(subject_rows, lambda values: parts.of(values).level is Level.HOLD)).as_py() or 0)
    return count


def _may_cover(catalog: "Catalog", hold: Hold, item: Item) -> bool:
    contract = catalog.contracts().get(item.table or "")
    return contract is None or hold.rule.may_match(contract)
