"""Upkeep: finishes unfinished plans, scrubs if asked, compacts tables, cleans up Delta logs, and vacuums."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.contracts.arrow import CHECKPOINT_EVERY
from ranklake.lake.ingest.maintenance.compaction import CompactionResult, merge_small, mergeable_tables, merges_due
from ranklake.lake.ingest.maintenance.vacuum import GRACE, garbage, remove
from ranklake.lake.plans.driver import Unit, carry_out, drive
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.query.usage import tidy as tidy_queries
from ranklake.lake.store.governance import anchor_if_due
from ranklake.lake.store.keys import key_ids, key_references, note_keys
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.tables.live_files import Damage, damaged_files, files
from ranklake.lake.tables.table_schema import difference
from ranklake.lake.tables.tables import delta_table, ensure_table, latest, refuse_unfit, retry_listing
from ranklake.printable import counted

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.store import Store


def commits_since_checkpoint(store: "Store", table: str, handle: DeltaTable) -> int:
    """Return the number of commits after the last checkpoint; all of them if ``_last_checkpoint`` is damaged."""
    try:
        pointer = store.fs.cat_file(store.path("tables", table, "_delta_log", "_last_checkpoint"))
        last = int(json.loads(pointer)["version"])
    except FileNotFoundError:
        last = -1
    except (ValueError, KeyError, TypeError, RecursionError):
        last = -1
    return handle.version() - last


def tidy_log(store: "Store", table: str, handle: DeltaTable) -> bool:
    """Write a checkpoint if one is due, then delete old commits; return whether a checkpoint was written.

    delta-rs keeps every commit that the oldest readable version needs. A process that is killed meanwhile leaves an
    additional checkpoint or additional commits, which do no harm. Raises `LakeUnreachableError`.
    """
    is_due = commits_since_checkpoint(store, table, handle) >= CHECKPOINT_EVERY
    try:
        if is_due:
            retry_listing(handle.create_checkpoint)
        retry_listing(handle.cleanup_metadata)
    except (DeltaError, OSError) as error:
        hint = "check space and rights there; run it again"
        message = f"the log of {table} cannot be tidied"
        raise unreachable(store.uri, error, store.storage, what=message, hint=hint) from None
    return is_due


TASK_BYTES: Final = 2**30
_BYTE_CPU_S: Final = 1e-9
"""Rough CPU cost of hashing a byte."""


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """Result of `scrub`.

    Attributes
    ----------
    files, size_bytes
        Number of files that were read, and their bytes.
    damaged
        Files whose bytes changed after they were written.
    """

    files: int = 0
    size_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScrubTask:
    """A task for a worker: files of a table to read. `files` are rows of `live_files.files` as dicts."""

    lake_uri: str
    storage: dict[str, str]
    table: str
    files: list[dict[str, Any]]


def scrub(lake: Lake, workers: "Workers", progress: "Progress | None" = None) -> ScrubResult:
    """Read all live data files of all tables and verify that they are unchanged. Raises what the store raises."""
    tasks = list(_tasks(lake))
    count = sum(len(task.files) for task in tasks)
    size_bytes = sum(row["size_bytes"] for task in tasks for row in task.files)
    finished_tasks = 0

    def report() -> None:
        nonlocal finished_tasks
        finished_tasks += 1
        if progress is not None:
            progress(finished_tasks, len(tasks))

    fitting = workers.fitting(size_bytes * _BYTE_CPU_S)
    unit = Unit("scrub", detail=f"{counted(count, 'file')} of {counted(len({task.table for task in tasks}), 'table')}")
    results = carry_out(unit, lambda: fitting.run(scrub_files, tasks, report))
    return ScrubResult(count, size_bytes, [damage for result in results for damage in result])


def scrub_files(task: ScrubTask) -> list[Damage]:
    """Carry out one task; return the damaged files."""
    return damaged_files(Lake.open(task.lake_uri, task.storage).tables, task.table, task.files)


def _tasks(lake: Lake) -> Iterator[ScrubTask]:
    for table in lake.contracts():
        handle = delta_table(lake.store, table)
        if handle is None:
            continue
        batch: list[dict[str, Any]] = []
        size = 0
        for row in files(handle).select(["path", "size_bytes", "num_records", "date"]).to_pylist():
            if batch and size + row["size_bytes"] > TASK_BYTES:
                yield ScrubTask(lake.store.address, lake.store.storage, table, batch)
                batch, size = [], 0
            batch.append(row)
            size += row["size_bytes"]
        if batch:
            yield ScrubTask(lake.store.address, lake.store.storage, table, batch)


OLD_QUERIES: Final = "old query logs"


@dataclass(frozen=True, slots=True)
class UpkeepResult:
    """Result of `upkeep`, or of a dry run.

    Attributes
    ----------
    plans
        Numbers of the compaction plans.
    files_before, files_after, merged_bytes
        Number of small files that were merged, of files that replaced them, and bytes before the merge.
    followed
        Tables with a Delta log that was updated to a newer contract: new columns or a new contract version.
    checkpoints
        Tables that got a checkpoint of their Delta log.
    purged, purged_bytes
        Number of deleted files by reason (see `ranklake.lake.ingest.maintenance.vacuum.Garbage`), and their bytes.
    elapsed_s
        Wall seconds.
    damaged
        Data files whose bytes changed after they were written. Checked are the files to be merged; with a scrub, all.
    scrubbed
        Result of the scrub; None without one.
    anchored, anchor_fault
        Number of anchored rows of the audit log, None if no anchor was due; the error of anchoring, empty if none.
    """

    plans: list[int]
    files_before: int
    files_after: int
    merged_bytes: int
    followed: list[str]
    checkpoints: list[str]
    purged: dict[str, int]
    purged_bytes: int
    elapsed_s: float
    damaged: list[Damage]
    scrubbed: ScrubResult | None = None
    anchored: int | None = None
    anchor_fault: str = ""


def upkeep(
    lake: "Lake",
    workers: "Workers",
    *,
    grace: timedelta = GRACE,
    dry_run: bool = False,
    with_scrub: bool = False,
    progress: "Progress | None" = None,
) -> UpkeepResult:
    """Maintain a lake. Other drivers may run at the same time. After a failure or a kill, it can be run again.

    Parameters
    ----------
    grace
        Time for which a file is kept after a commit removed it, or after it was written if it is in no commit. No
        query or driver may take longer than that. At most `ranklake.lake.ingest.maintenance.vacuum.GRACE`.
    dry_run
        Change nothing; return what would be merged, checkpointed and purged.
    with_scrub
        Read every live data file first, to verify that its bytes are unchanged.

    Raises `ranklake.lake.ingest.maintenance.vacuum.GraceError`, and what the store raises.
    """
    began = time.monotonic()
    scrubbed = scrub(lake, workers, progress) if with_scrub else None
    merged = _dry_run(lake) if dry_run else _merge(lake, workers, progress)
    followed = carry_out(Unit("follow", detail="contracts that changed"), partial(_follow, lake, dry_run=dry_run))
    checkpoints = carry_out(Unit("tidy", detail="logs of tables"), partial(_tidy, lake, dry_run=dry_run))
    purged, purged_bytes = carry_out(
        Unit("vacuum", detail="files that nothing refers to"), partial(_vacuum, lake, grace, dry_run=dry_run)
    )
    days = lake.config.query.keep_days
    old_logs, old_log_bytes = carry_out(
        Unit("queries", detail="the query log"), partial(tidy_queries, lake.store, days, dry_run=dry_run)
    )
    purged += Counter({OLD_QUERIES: old_logs} if old_logs else {})
    anchored, anchor_fault = (None, "") if dry_run else _anchor(lake)
    return UpkeepResult(
        plans=merged.plans,
        files_before=merged.files_before,
        files_after=merged.files_after,
        merged_bytes=merged.size_bytes,
        followed=followed,
        checkpoints=checkpoints,
        purged=dict(sorted(purged.items())),
        purged_bytes=purged_bytes + old_log_bytes,
        elapsed_s=time.monotonic() - began,
        damaged=list(dict.fromkeys([*(scrubbed.damaged if scrubbed else []), *merged.damaged])),
        scrubbed=scrubbed,
        anchored=anchored,
        anchor_fault=anchor_fault,
    )


def _anchor(lake: "Lake") -> tuple[int | None, str]:
    """Record new keys, and anchor the audit log if that is due; return the number of anchored rows, and the error."""
    note_keys(lake.store, dict(key_ids(key_references(lake.config))), clock.now().date())
    try:
        anchor = anchor_if_due(lake)
    except (RanklakeError, OSError) as error:  # an unreachable witness must not stop upkeep
        return None, str(error)
    return (None if anchor is None else anchor.rows), ""


def _vacuum(lake: "Lake", grace: timedelta, *, dry_run: bool) -> tuple[Counter[str], int]:
    """Delete files that no table needs; return the number of deleted files by reason, and their bytes."""
    purged: Counter[str] = Counter()
    purged_bytes = 0
    for file in list(garbage(lake, grace)):
        if dry_run or remove(lake.store, file):
            purged[file.reason] += 1
            purged_bytes += file.size_bytes
    return purged, purged_bytes


def _merge(lake: "Lake", workers: "Workers", progress: "Progress | None") -> CompactionResult:
    drive(lake, lambda _: None, workers)  # nothing can be purged while a plan is unfinished
    return merge_small(lake, workers, thorough=True, progress=progress)


def _dry_run(lake: "Lake") -> CompactionResult:
    number = last_finished(lake.tables) + 1
    due = list(merges_due(lake, mergeable_tables(lake.catalog), number, thorough=True, today=datetime.now(UTC).date()))
    size = sum(row["size_bytes"] for task in due for row in task.files)
    return CompactionResult([], sum(len(task.files) for task in due), len(due), size)


def _follow(lake: "Lake", *, dry_run: bool) -> list[str]:
    """Update the Delta log of each table to its contract; return the tables that differed."""
    changed = []
    for name, contract in lake.contracts().items():
        handle = latest(lake.tables, name)
        if handle is not None and difference(refuse_unfit(handle, contract), contract) is not None:
            if not dry_run:
                ensure_table(lake.tables, contract)
            changed.append(name)
    return changed


def _tidy(lake: "Lake", *, dry_run: bool) -> list[str]:
    """Clean up the Delta log of each table; return the tables for which a checkpoint was due."""
    checkpointed = []
    for table in lake.contracts():
        handle = delta_table(lake.store, table)
        if handle is None:
            continue
        if dry_run:
            is_due = commits_since_checkpoint(lake.store, table, handle) >= CHECKPOINT_EVERY
        else:
            is_due = tidy_log(lake.store, table, handle)
        if is_due:
            checkpointed.append(table)
    return checkpointed
