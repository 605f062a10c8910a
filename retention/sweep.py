"""Deletes segments from the spool whose rows approved retention plans removed from the lake.

The spool keeps segments for replay. Copies of segments that arrive again after an erasure removed their rows are
deleted, too. The other members of their packs become single files first.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.audit.trail import record
from ranklake.lake.ingest.index_summary import not_taken_in
from ranklake.lake.ingest.spool.packs import pack_of
from ranklake.lake.query.sql import session
from ranklake.lake.store.files import delete, remove_dead
from ranklake.lake.store.governance import is_all_retired
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table, last_table
from ranklake.retention.erasure.places import erased_again, identity, remove
from ranklake.retention.proposals.erasures import erased_raw
from ranklake.retention.proposals.kept import retired_dates

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import date

    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

ACTION: Final = "retention.sweep"
_RECORDED: Final = """
SELECT s."table", s.sha256, max(s.plan) AS plan, min(s.ts_min) AS ts_min, max(s.ts_max) AS ts_max,
  max(s.incarnation) AS incarnation, max(s.segment) AS segment, sum(s.rows_stored) AS rows_stored
FROM segments s JOIN spooled p ON s."table" = p."table" AND s.sha256 = p.sha256
WHERE s.unreadable IS NULL
GROUP BY s."table", s.sha256"""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Result of `sweep`.

    Attributes
    ----------
    files, size_bytes
        Deleted files and their size: segments, and packs with only removed segments.
    segments
        Number of segments in these files.
    raw
        Number of deleted raw files that had arrived in quarantine again after an erasure.
    in_packs
        Number of removed segments that stay because other segments of their pack are needed.
    """

    files: int = 0
    size_bytes: int = 0
    segments: int = 0
    in_packs: int = 0
    raw: int = 0


def sweep(lake: "Lake", spool: "Spool", by: str) -> SweepResult:
    """Delete the files of the spool that hold only removed rows. Writes an audit row first.

    After a crash the next sweep continues. Raises the errors of the stores.
    """
    erased, raw = _returned_segments(lake.tables, spool), _returned_raw(lake.tables)
    removed = _removed_segments(lake, spool) | erased
    if not removed and not raw:
        return SweepResult()
    by_file: dict[str, list[bool]] = {}
    sizes: dict[str, int] = {}
    packs_to_split: set[str] = set()
    for item in spool.listing():
        path = pack_of(item.path) or item.path
        by_file.setdefault(path, []).append((item.table, item.sha256) in removed)
        sizes[path] = sizes.get(path, 0) + item.size_bytes
        if (item.table, item.sha256) in erased:
            packs_to_split.add(path)
    paths = sorted(path for path, members in by_file.items() if all(members))
    packs_to_split -= set(paths)
    in_packs = sum(sum(members) for path, members in by_file.items() if not all(members) and path not in packs_to_split)
    result = SweepResult(
        len(paths), sum(sizes[path] for path in paths), sum(len(by_file[path]) for path in paths), in_packs, len(raw)
    )
    if paths or raw or packs_to_split:
        record(lake, by, ACTION, "spool", None, asdict(result))
        for path in paths:
            spool.delete(path)
        for path in sorted(packs_to_split):
            remove(spool, path, lambda name, _: identity(name) in erased)
        for path in raw:
            delete(lake.store, path)
        remove_dead(spool.fs, [*paths, *packs_to_split])
        remove_dead(lake.fs, raw)
    return result


def _returned_raw(tables: "Tables") -> list[str]:
    """Return the paths of raw bytes that are in quarantine again after an erasure deleted them."""
    paths = [tables.store.path("quarantine", sha256) for sha256 in sorted(erased_raw(tables))]
    return [path for path in paths if tables.store.fs.exists(path)]


def _returned_segments(tables: "Tables", spool: "Spool") -> set[tuple[str, str]]:
    """Return the ingested segments (table, digest) that are in the spool again after an erasure removed their rows."""
    copies = list(erased_again(tables, spool.listing()))
    lists = not_taken_in(tables.store, copies) if copies else ()
    waiting = {(item.table, item.sha256) for items in lists for item in items}
    return {(item.table, item.sha256) for item in copies} - waiting


def _removed_segments(lake: "Lake", spool: "Spool") -> set[tuple[str, str]]:
    """Return the segments (table, digest) whose rows approved retention plans all removed for good.

    For a date of which only some rows were removed, a segment counts if it has no row left on that date.
    """
    whole = retired_dates(lake.tables, final=True)
    partial = retired_dates(lake.tables, final=True, of_parts=True)
    tables = {*whole, *partial}
    items = [item for item in spool.listing() if item.name is not None and item.table in tables] if tables else []
    if not items or delta_table(lake.store, "segments") is None:
        return set()
    context = session(lake, ["segments"], heavy=True)
    names = sorted({(item.table, item.sha256) for item in items})
    spooled = {"table": [table for table, _ in names], "sha256": [sha256 for _, sha256 in names]}
    context.from_arrow(pa.table(spooled), name="spooled")
    left = {table: _slot_files(lake, table, days) for table, days in partial.items() if table in lake.contracts()}
    live: dict[str, set[date] | None] = {}
    removed: set[tuple[str, str]] = set()
    for row in context.sql(_RECORDED).to_arrow_table().to_pylist():
        table = row["table"]
        if table not in live:
            handle = last_table(lake.store, table)  # not by a listing, which may be incomplete
            live[table] = None if handle is None else set(files(handle)["date"].to_pylist())
        dates = live[table]
        is_left = not row["rows_stored"] or (row["incarnation"], row["segment"]) in left.get(table, ())
        partial_dates = {} if is_left else partial.get(table, {})
        if dates is not None and is_all_retired(row, whole.get(table, {}), dates, partial_dates):
            removed.add((table, row["sha256"]))
    return removed


def _slot_files(lake: "Lake", table: str, days: "Collection[date]") -> set[tuple[int, int]]:
    """Return the slot files (incarnation, segment) with rows in a table on the given dates."""
    contract = lake.contract(table)
    if not contract.envelope or delta_table(lake.store, table) is None:
        return set()
    rows = read(lake.tables, contract, ["incarnation", "segment"], partitions=sorted(days))
    slots = rows.group_by(["incarnation", "segment"]).aggregate([]).to_pylist()
    return {(row["incarnation"], row["segment"]) for row in slots}
