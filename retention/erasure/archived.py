"""Rows of a subject in archives and how they go; legal holds over any row of a subject, under which nothing goes.

    archived file that holds a value ─▶ the same rows without the subject's, under the contract that it has
        ─▶ another manifest ─▶ row ``rewritten`` of the register ─▶ what no manifest names is deleted

Killed anywhere, the next call goes on: a file is found as long as a value is in it.
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
    """An archived file that holds a value: its archive, that one's place and manifest, and which file it is."""

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
    """Yield the archived files that hold a value, as the register knows them."""
    there = {one.source.uri for one in matches if one.source.place == ARCHIVES and one.counts}
    for archive in existing_archives(tables) if there else ():
        place = open_place(tables.store, archive.uri)
        manifest = read_manifest(place, archive.manifest_sha256)
        for file in manifest.files:
            if place.path("tables", manifest.table, file.path) in there:
                yield ArchivedMatch(archive, place, manifest, file)


def existing_archives(tables: "Tables") -> list[Archive]:
    """Return the archives whose files are there: those that ended by a plan that can be cancelled yet among them."""
    ended = {
        name
        for kept_plan in kept_plans(tables)
        for days in kept_plan.plan.body["facts"].get(ENDED, {}).values()
        for some in days.values()
        for name in some
    }
    return [
        archive for archive in every_archive(tables).values() if archive.removed is None or archive.archive in ended
    ]


def held_rows(lake: "Lake", subject: "Subject", hit: ArchivedMatch, hold: "Hold", facts: RunFacts) -> int:
    """Return how many rows of the subject in an archived file a hold is about."""
    contract = lake.contract(hit.archive.table)
    if not hold.covers(hit.archive.partition_date) or not hold.rule.may_match(contract):
        return 0
    rows = current_rows(hit.place, hit.manifest, hit.row, lake)
    mine = rows.filter(marks_in(lake.catalog, subject, hit.archive.table, rows))
    return count_held(lake, contract, mine, hold, facts)


def erase_archived(lake: "Lake", subject: "Subject", matches: "Collection[FileMatches]", proposal: str) -> int:
    """Take the subject's rows out of archived files; return how many files were rewritten or went."""
    changed = 0
    by_archive: dict[str, list[ArchivedMatch]] = {}
    for hit in matching_archives(lake.tables, matches):
        by_archive.setdefault(hit.archive.archive, []).append(hit)
    for group in by_archive.values():
        first, gone = group[0], {one.file.path for one in group}
        new = [file for one in group for file in _rewrite_without(lake, subject, one)]
        kept = [file for file in first.manifest.files if file.path not in gone]
        manifest = replace(first.manifest, files=sorted_files([*kept, *new]))
        first.place.put_if_absent(manifest.name, manifest.to_json())
        write_rewritten(lake.tables, first.archive, manifest, proposal)
        changed += len(group)
    if any(one.source.place == ARCHIVES and one.counts for one in matches):
        sweep_archives(lake.tables)
    return changed


def _rewrite_without(lake: "Lake", subject: "Subject", hit: ArchivedMatch) -> Iterator[ArchivedFile]:
    """Write an archived file without the subject's rows, under the contract that it has; nothing where all go."""
    marks = marks_in(lake.catalog, subject, hit.archive.table, current_rows(hit.place, hit.manifest, hit.row, lake))
    rows = stored_rows(Tables(hit.place), hit.archive.table, hit.row).filter(pc.invert(marks))
    if not rows.num_rows:
        return
    for at, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):  # its words stay where rows go
            rows = rows.set_column(at, field.name, rows[field.name].cast(field.type.value_type))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
    raw = sink.getvalue().to_pybytes()
    digest = hashlib.sha256(raw).hexdigest()
    number = plan_of(hit.file.path) or 0
    path = f"date={hit.archive.partition_date.isoformat()}/p{number:010d}-{uuid.uuid4().hex}-{digest}.parquet"
    target = hit.place.path("tables", hit.archive.table, path)
    overwrite(hit.place.fs, target, raw, local=hit.place.is_local)
    move_to(hit.place, target, hit.archive.storage_class, None)
    yield ArchivedFile(path, rows.num_rows, len(raw), digest)


def kept_hits(tables: "Tables", matches: "Collection[FileMatches]") -> Iterator[KeptFile]:
    """Yield the kept files in which a value was found."""
    there = {one.source.uri for one in matches if one.counts and one.source.version is None}
    for kept_plan in kept_plans(tables) if there else ():
        yield from (file for file in kept_plan.files if tables.store.path("tables", file.table, file.path) in there)


def held_in(lake: "Lake", subject: "Subject", file: KeptFile, hold: "Hold", facts: RunFacts) -> int:
    """Return how many rows of the subject in a kept file a hold is about."""
    contract = lake.contract(file.table)
    if not hold.covers(file.day) or not hold.rule.may_match(contract):
        return 0
    rows = rows_of(lake.tables, as_read(latest(lake.tables, file.table), contract), file)
    mine = rows.filter(marks_in(lake.catalog, subject, file.table, rows))
    return count_held(lake, contract, mine, hold, facts)


def rewrite_archives(
    lake: "Lake", subject: "Subject", files: "Collection[KeptFile]", number: int
) -> dict[str, list[dict[str, Any]]]:
    """Write kept files again without the subject's rows, and return what the plan says of them, by table.

    Commits nothing. Raises `ranklake.lake.tables.live_files.DamagedFileError`.
    """
    replaced_rows: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        target = as_read(latest(lake.tables, file.table), lake.contract(file.table))
        rows = rows_of(lake.tables, target, file)
        rest = rows.filter(pc.invert(marks_in(lake.catalog, subject, file.table, rows)))
        new = [
            {
                "path": append_file.path,
                "size_bytes": append_file.size_bytes,
                "num_records": append_file.rows,
                "version": target.stamp,
            }
            | {"date": append_file.partition.isoformat()}
            for append_file in (append_files(lake.store, target, rest, number) if rest.num_rows else ())
        ]
        replaced_rows.setdefault(file.table, []).append({"path": file.path, "by": new})
    return replaced_rows


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
    """Raise `HeldError` where a hold is about rows of the subject, or about any rows of a table whose raw bytes go.

    What a hold is about is evidence, and so are its copies, logs and names: so nothing of the subject goes at all.
    """
    holds = holds_of(lake, today)
    if not holds:
        return
    facts = run_facts(lake.tables, [one.rule for one in holds])
    for hold in holds:
        held = sum(_rows_on_hold(lake, subject, one, hold, facts) for one in rows if one.item.place != NAMES)
        held += sum(held_rows(lake, subject, one, hold, facts) for one in archived)
        held += sum(held_in(lake, subject, one, hold, facts) for one in kept)
        held += sum(_is_about(lake.catalog, hold, item) for item in raw)
        if held:
            message = f"the legal hold {hold.name} is about {held:,} rows or files of this subject until {hold.until}"
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
        mine = rows.filter(subject.marks(rows.select(texts)))
        count += int(pc.sum(parts.mask(mine, lambda values: parts.of(values).level is Level.HOLD)).as_py() or 0)
    return count


def _is_about(catalog: "Catalog", hold: Hold, item: Item) -> bool:
    known = catalog.contracts().get(item.table or "")
    return known is None or hold.rule.may_match(known)
