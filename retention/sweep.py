"""The spool after a retention: segments that are kept for replay, and whose rows are all gone by now, go too.

So do copies that came again of segments of which an erasure took rows: what else is in their packs is put beside them.
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
    """What a sweep of the spool did.

    Attributes
    ----------
    files, size_bytes
        That went: segments, and packs of which all members might go.
    segments
        In them.
    raw
        Bytes that came into quarantine again after an erasure took them.
    in_packs
        Segments whose rows are gone, and that stay because others of their pack are wanted.
    """

    files: int = 0
    size_bytes: int = 0
    segments: int = 0
    in_packs: int = 0
    raw: int = 0


def sweep(lake: "Lake", spool: "Spool", by: str) -> SweepResult:
    """Delete from the spool what holds only rows that approved retention plans took; say so in the audit trail before.

    Killed half-way, the next sweep goes on. Raises what the stores raise.
    """
    again, raw = _erased_again(lake.tables, spool), _raw_again(lake.tables)
    over = _removed_segments(lake, spool) | again
    if not over and not raw:
        return SweepResult()
    by_file: dict[str, list[bool]] = {}
    sizes: dict[str, int] = {}
    opened: set[str] = set()
    for item in spool.listing():
        path = pack_of(item.path) or item.path
        by_file.setdefault(path, []).append((item.table, item.sha256) in over)
        sizes[path] = sizes.get(path, 0) + item.size_bytes
        if (item.table, item.sha256) in again:
            opened.add(path)
    going = sorted(path for path, members in by_file.items() if all(members))
    opened -= set(going)
    in_packs = sum(sum(members) for path, members in by_file.items() if not all(members) and path not in opened)
    done = SweepResult(
        len(going), sum(sizes[path] for path in going), sum(len(by_file[path]) for path in going), in_packs, len(raw)
    )
    if going or raw or opened:
        record(lake, by, ACTION, "spool", None, asdict(done))
        for path in going:
            spool.delete(path)
        for path in sorted(opened):
            remove(spool, path, lambda name, _: identity(name) in again)
        for path in raw:
            delete(lake.store, path)
        remove_dead(spool.fs, [*going, *opened])
        remove_dead(lake.fs, raw)
    return done


def _raw_again(tables: "Tables") -> list[str]:
    """Return the paths of raw bytes in quarantine that an erasure took, and that came again."""
    there = [tables.store.path("quarantine", sha256) for sha256 in sorted(erased_raw(tables))]
    return [path for path in there if tables.store.fs.exists(path)]


def _erased_again(tables: "Tables", spool: "Spool") -> set[tuple[str, str]]:
    """Return the segments (table, digest) that were taken in, and that came again after an erasure took their rows."""
    again = list(erased_again(tables, spool.listing()))
    waiting = (
        {(item.table, item.sha256) for some in not_taken_in(tables.store, again) for item in some} if again else set()
    )
    return {(item.table, item.sha256) for item in again} - waiting


def _removed_segments(lake: "Lake", spool: "Spool") -> set[tuple[str, str]]:
    """Return the segments (table, digest) of which approved retention plans took all rows, for good.

    Where they took some rows of a date, those segments are among them of which no row is left on it.
    """
    taken, thinned = retired_dates(lake.tables, final=True), retired_dates(lake.tables, final=True, of_parts=True)
    tables = {*taken, *thinned}
    items = [item for item in spool.listing() if item.name is not None and item.table in tables] if tables else []
    if not items or delta_table(lake.store, "segments") is None:
        return set()
    context = session(lake, ["segments"], heavy=True)
    names = sorted({(item.table, item.sha256) for item in items})
    spooled = {"table": [table for table, _ in names], "sha256": [sha256 for _, sha256 in names]}
    context.from_arrow(pa.table(spooled), name="spooled")
    left = {table: _slot_files(lake, table, days) for table, days in thinned.items() if table in lake.contracts()}
    live: dict[str, set[date] | None] = {}
    over: set[tuple[str, str]] = set()
    for row in context.sql(_RECORDED).to_arrow_table().to_pylist():
        table = row["table"]
        if table not in live:
            handle = last_table(lake.store, table)  # a table or a date that a listing lacks is not gone
            live[table] = None if handle is None else set(files(handle)["date"].to_pylist())
        dates = live[table]
        is_left = not row["rows_stored"] or (row["incarnation"], row["segment"]) in left.get(table, ())
        of_parts = {} if is_left else thinned.get(table, {})
        if dates is not None and is_all_retired(row, taken.get(table, {}), dates, of_parts):
            over.add((table, row["sha256"]))
    return over


def _slot_files(lake: "Lake", table: str, days: "Collection[date]") -> set[tuple[int, int]]:
    """Return the slot files (incarnation, segment) that have rows of a table on some dates."""
    known = lake.contract(table)
    if not known.envelope or delta_table(lake.store, table) is None:
        return set()
    rows = read(lake.tables, known, ["incarnation", "segment"], partitions=sorted(days))
    slots = rows.group_by(["incarnation", "segment"]).aggregate([]).to_pylist()
    return {(row["incarnation"], row["segment"]) for row in slots}
