"""Ingest: stores the rows of new segments in the tables, exactly once."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.ingest_plan import Composition, compose
from ranklake.lake.ingest.ingestion_index import damaged_when
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.spool.gate import UnreadError, first_by_reason, is_newer, may_be_read_yet
from ranklake.lake.ingest.spool.listing_cache import ListingCache
from ranklake.lake.ingest.spool.move_back import move_back
from ranklake.lake.ingest.spool.packs import (
    Reader,
    SpoolFile,
    complete_packs,
    identities,
    is_rewritten,
    misread,
    pack_of,
)
from ranklake.lake.ingest.spool.spool import CountMembers, Spool, mark_fed
from ranklake.lake.plans.driver import SPOOL, Unit, carry_out, drive
from ranklake.lake.store.writers import REFUSED
from ranklake.lake.tables.live_files import Damage, files
from ranklake.lake.tables.tables import latest
from ranklake.printable import printable_name

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

KEEP_DAYS: Final = 7
"""Default number of days for which the spool keeps segments after their plan is finished."""
HEALED: Final = "was read as damaged, and is sound"

FindDamage = Callable[[pa.Table], Mapping[str, datetime]]
"""Returns when each file was found damaged, by path, from rows of the table ``segments``."""


def purge(
    spool: Spool,
    count_members: CountMembers,
    find_rows: Callable[[list[SpoolFile]], pa.Table],
    today: date,
    keep_days: int,
    find_damage: FindDamage | None = None,
) -> int:
    """Delete files that were ingested more than `keep_days` before `today`; return the number of deleted files.

    A file is deleted only if a finished plan read it or a copy of it. A pack is deleted when all of its members may
    be deleted, and counts as one file.

    Parameters
    ----------
    count_members
        As `known` of `Spool.listing`.
    find_rows
        Returns the rows of the table ``segments`` about some files of the spool, with the columns table, sha256,
        uri_name, bytes, unreadable, plan and date.
    find_damage
        Returns when files were found damaged. A file that was written after that time was not read, and is kept.
    """
    cutoff = pa.scalar(today - timedelta(days=keep_days), pa.date32())
    files = spool.files()
    member_counts = count_members({spool.day_of(path) for path in files})
    all_read = complete_packs(member_counts)
    old_packs = complete_packs(member_counts.filter(pc.less(member_counts["date"], cutoff)))
    deletable = {path: [True] for path in files if path in old_packs}
    items = spool.open({path: file for path, file in files.items() if path not in all_read})
    rows = find_rows(items)
    old = rows.filter(pc.less(rows["date"], cutoff))
    damaged_since = {} if find_damage is None else find_damage(rows)
    digests, places = identities(old)
    damaged_digests = misread(old)
    for item in items:
        is_read = (item.table, item.sha256) in digests
        if not is_read and (item.path, item.size_bytes) in places and not is_rewritten(item, damaged_since):
            is_read = damaged_digests.get(item.path, item.sha256) == item.sha256 or not _is_sound(spool, item)
        deletable.setdefault(pack_of(item.path) or item.path, []).append(is_read)
    return sum(spool.delete(path) for path, are_read in deletable.items() if all(are_read))


def _is_sound(spool: Spool, item: SpoolFile) -> bool:
    """Whether a file that was read as damaged has the digest in its name after all.

    Such a file is dated now, so that the next ingest reads it again.
    """
    try:
        raw = Reader(spool.fs, [item.path]).read(item.path)
    except (OSError, UnreadError):
        return False
    if hashlib.sha256(raw).hexdigest() != item.sha256:
        return False
    spool.passed_over[printable_name(item.path)] = HEALED
    if pack_of(item.path) is None:
        with suppress(OSError, RanklakeError):  # a file dated after it was found damaged counts as new
            spool.renew(item.path, raw)
    return True


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Result of `ingest`.

    Attributes
    ----------
    plans
        Numbers of the plans that this call finished, including a plan that another driver left unfinished. Empty if
        there was nothing to do.
    segments, unreadable
        Number of segments in these plans, and of those that could not be read. Segments of newer writers count in
        `held` instead.
    rows_stored, rows_rejected, rows_duplicate
        Number of rows stored, rejected by the contract, and dropped as repeats.
    purged
        Number of old segments deleted from the spool.
    waiting
        Number of segments that wait in the spool for a missing key, by the key's id or by prefix.
    refused
        Number of segments without a valid signature or from a writer that may not write there, by reason. They count
        in `unreadable`, too.
    elapsed_s
        Wall seconds.
    damaged
        Data files that were not merged because their bytes changed after they were written.
    moved
        Number of files moved from the fallback spool into the first.
    held, held_first
        Number of files that are kept in the spool unread, and the first path of them, each by reason.
    """

    plans: list[int]
    segments: int
    unreadable: int
    rows_stored: int
    rows_rejected: int
    rows_duplicate: int
    purged: int
    elapsed_s: float
    waiting: dict[str, int] = field(default_factory=dict)
    damaged: list[Damage] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    held_first: dict[str, str] = field(default_factory=dict)
    moved: int = 0


def ingest(
    lake: "Lake",
    spool: "Spool",
    workers: "Workers",
    *,
    keep_days: int = KEEP_DAYS,
    merge: bool = True,
    progress: "Progress | None" = None,
) -> IngestResult:
    """Store all new segments of the spool in the lake.

    Parameters
    ----------
    keep_days
        Days for which the spool keeps segments after their plan is finished, for replay.
    merge
        Whether to merge small files of the system tables and of the tables that got rows, where there are enough.
    """
    started = time.monotonic()
    lake = lake.configured(spool=spool.config.spool)
    outcomes: dict[int, list[dict[str, Any]]] = {}
    cache = ListingCache.load(lake.store, spool.address)
    moved = move_back(spool, cache)
    composition = Composition()
    has_more = True

    def compose_plan(number: int) -> "Plan | None":
        nonlocal composition
        unit = Unit("plan", detail="what is new in the spool", reads=(SPOOL,))
        composition = carry_out(unit, partial(compose, lake, spool, number, cache))
        if composition.plan is not None:
            mark_fed(spool, lake.store.number)
        return composition.plan

    while has_more:
        driven = drive(lake, compose_plan, workers, progress)
        outcomes |= driven.outcomes
        # A file that is deleted before it is read stays new. A store whose listing still names it must not make this
        # loop endless.
        plan_rows = driven.outcomes.get(driven.plan.number) if driven.plan else []
        made_progress = plan_rows is None or any(not may_be_read_yet(row["unreadable"]) for row in plan_rows)
        has_more = made_progress and driven.plan is not None and driven.plan.body["left"] > 0
    rows = [row for plan_rows in outcomes.values() for row in plan_rows]
    damaged: list[Damage] = []
    reasons = [str(row["unreadable"] or "") for row in rows]
    refused = Counter(reason.removeprefix(REFUSED) for reason in reasons if reason.startswith(REFUSED))
    if merge:
        changed = {row["table"] for row in rows if row["rows_stored"]}
        # every ingest adds files to system tables
        system = {name for name, contract in lake.contracts().items() if contract.kind == "system"}
        damaged = merge_small(lake, workers, changed | system).damaged
    purged = _purge(lake.tables, spool, keep_days, cache)
    held = composition.held | spool.passed_over
    held |= {row["uri_name"]: row["unreadable"] for row in rows if is_newer(row["unreadable"])}
    return IngestResult(
        plans=sorted(outcomes),
        segments=len(rows),
        unreadable=sum(row["unreadable"] is not None and not is_newer(row["unreadable"]) for row in rows),
        rows_stored=sum(row["rows_stored"] for row in rows),
        rows_rejected=sum(row["rows_rejected"] for row in rows),
        rows_duplicate=sum(row["rows_duplicate"] for row in rows),
        purged=purged,
        elapsed_s=time.monotonic() - started,
        waiting=dict(sorted(composition.waiting.items())),
        damaged=damaged,
        refused=dict(sorted(refused.items())),
        held=dict(sorted(Counter(held.values()).items())),
        held_first=first_by_reason(held),
        moved=moved,
    )


def _purge(tables: "Tables", spool: "Spool", keep_days: int, cache: ListingCache) -> int:
    """Delete old segments from the spool; return the number of deleted files.

    The spool is listed for this only if the cache says that a purge is due.
    """
    handle = latest(tables, "segments")
    if handle is None:
        return 0
    now = datetime.now(UTC)
    today = now.date()
    live = files(handle)
    old = live.filter(pc.less(live["date"], pa.scalar(today - timedelta(days=keep_days), pa.date32())))
    rows = int(pc.sum(old["num_records"]).as_py() or 0)
    if not rows or not cache.purge_is_due({"rows": rows, "days": len(set(old["date"].to_pylist()))}, now):
        return 0
    index = IngestionIndex(tables.store, handle)
    delete = partial(
        purge, spool, index.recent_member_count, index.rows_about, today, keep_days, partial(damaged_when, tables)
    )
    purged = carry_out(Unit("purge", detail=f"segments older than {keep_days} days"), delete)
    cache.save(tables.store)
    return purged
