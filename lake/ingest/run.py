"""Ingest: new segments of the spool become rows of the tables, exactly once."""

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
from ranklake.lake.ingest.spool.spool import Known, Spool, mark_fed
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
"""Days for which segments stay in the spool after their plan is finished, unless somebody says otherwise."""
HEALED: Final = "was read as damaged, and is sound"

Judge = Callable[[pa.Table], Mapping[str, datetime]]


def purge(
    spool: Spool,
    known: Known,
    of: Callable[[list[SpoolFile]], pa.Table],
    today: date,
    keep_days: int,
    judge: Judge | None = None,
) -> int:
    """Delete files that were ingested more than `keep_days` before `today`; return how many went.

    Only what a finished plan read may go, and every further copy of it. A pack goes when all of its members may,
    and counts as one.

    Parameters
    ----------
    known
        As for `listing`.
    of
        Given what is in the spool, returns columns table, sha256, uri_name, bytes, unreadable, plan and date of the
        table ``segments``, of that at least.
    judge
        Given the latter, returns by path when a file was found damaged: one that was written since was not read,
        and stays.
    """
    cutoff = pa.scalar(today - timedelta(days=keep_days), pa.date32())
    files = spool.files()
    read_of = known({spool.day_of(path) for path in files})
    all_read = complete_packs(read_of)
    over = complete_packs(read_of.filter(pc.less(read_of["date"], cutoff)))
    may_go = {path: [True] for path in files if path in over}
    items = spool.open({path: one for path, one in files.items() if path not in all_read})
    rows = of(items)
    old = rows.filter(pc.less(rows["date"], cutoff))
    judged = {} if judge is None else judge(rows)
    digests, places = identities(old)
    misread_as = misread(old)
    for item in items:
        read = (item.table, item.sha256) in digests
        if not read and (item.path, item.size_bytes) in places and not is_rewritten(item, judged):
            read = misread_as.get(item.path, item.sha256) == item.sha256 or not _is_sound(spool, item)
        may_go.setdefault(pack_of(item.path) or item.path, []).append(read)
    return sum(spool.delete(path) for path, reads in may_go.items() if all(reads))


def _is_sound(spool: Spool, item: SpoolFile) -> bool:
    """Whether a file that was read as damaged has the digest in its name after all; then have it read again."""
    try:
        raw = Reader(spool.fs, [item.path]).read(item.path)
    except (OSError, UnreadError):
        return False
    if hashlib.sha256(raw).hexdigest() != item.sha256:
        return False
    spool.passed_over[printable_name(item.path)] = HEALED
    if pack_of(item.path) is None:
        with suppress(OSError, RanklakeError):  # what is newer than the judgement is new
            spool.renew(item.path, raw)
    return True


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Result of `ingest`.

    Attributes
    ----------
    plans
        Numbers of the plans this call finished, its own and one that another driver left half done; empty if there
        was nothing to do.
    segments, unreadable
        Segments in them, and how many of those could not be read; those of newer writers are among `held`.
    rows_stored, rows_rejected, rows_duplicate
        Rows by fate.
    purged
        Old segments removed from the spool.
    waiting
        Segments that stay in the spool because a key is not at hand, counted by the key's id or by prefix.
    refused
        Segments that nobody vouches for, or whose writer had no business there, counted by reason; among the
        unreadable.
    elapsed_s
        Wall seconds.
    damaged
        Data files that were to be merged and are not what was written.
    moved
        Files moved from the fallback spool into the first.
    held, held_first
        Files that stay in the spool unread, counted by why; and of each kind the first by path.
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
    """Bring everything new in the spool into the lake.

    Parameters
    ----------
    keep_days
        Segments stay in the spool that long after their plan is finished, for replay.
    merge
        Whether to merge small files of system tables and those that got rows, where enough have come together.
    """
    started = time.monotonic()
    lake = lake.configured(spool=spool.config.spool)
    outcomes: dict[int, list[dict[str, Any]]] = {}
    rounds = ListingCache.load(lake.store, spool.address)
    moved = move_back(spool, rounds)
    composition = Composition()
    left = True

    def compose_plan(number: int) -> "Plan | None":
        nonlocal composition
        unit = Unit("plan", detail="what is new in the spool", reads=(SPOOL,))
        composition = carry_out(unit, partial(compose, lake, spool, number, rounds))
        if composition.plan is not None:
            mark_fed(spool, lake.store.number)
        return composition.plan

    while left:
        driven = drive(lake, compose_plan, workers, progress)
        outcomes |= driven.outcomes
        # What vanished before it was read stays new; a listing that goes on naming it must not keep us here for ever.
        account = driven.outcomes.get(driven.plan.number) if driven.plan else []
        useful = account is None or any(not may_be_read_yet(row["unreadable"]) for row in account)
        left = useful and driven.plan is not None and driven.plan.body["left"] > 0
    rows = [row for account in outcomes.values() for row in account]
    damaged: list[Damage] = []
    reasons = [str(row["unreadable"] or "") for row in rows]
    refused = Counter(reason.removeprefix(REFUSED) for reason in reasons if reason.startswith(REFUSED))
    if merge:
        touched = {row["table"] for row in rows if row["rows_stored"]}
        system = {name for name, one in lake.contracts().items() if one.kind == "system"}  # each round adds to them
        damaged = merge_small(lake, workers, touched | system).damaged
    purged = _purge(lake.tables, spool, keep_days, rounds)
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


def _purge(tables: "Tables", spool: "Spool", keep_days: int, rounds: ListingCache) -> int:
    """Delete from the spool what was ingested long ago; look for it only if there is some that was not looked for."""
    handle = latest(tables, "segments")
    if handle is None:
        return 0
    now = datetime.now(UTC)
    today = now.date()
    live = files(handle)
    old = live.filter(pc.less(live["date"], pa.scalar(today - timedelta(days=keep_days), pa.date32())))
    rows = int(pc.sum(old["num_records"]).as_py() or 0)
    if not rows or not rounds.purge_is_due({"rows": rows, "days": len(set(old["date"].to_pylist()))}, now):
        return 0
    history = IngestionIndex(tables.store, handle)
    delete = partial(
        purge, spool, history.recent_member_count, history.of, today, keep_days, partial(damaged_when, tables)
    )
    purged = carry_out(Unit("purge", detail=f"segments older than {keep_days} days"), delete)
    rounds.save(tables.store)
    return purged
