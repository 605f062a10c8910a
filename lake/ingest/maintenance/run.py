"""Upkeep as a whole: finish open plans, scrub if asked, compact, clean up the logs, vacuum."""

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
    """Return how many commits a reader reads one by one. A damaged pointer to the checkpoint counts as none."""
    try:
        pointer = store.fs.cat_file(store.path("tables", table, "_delta_log", "_last_checkpoint"))
        last = int(json.loads(pointer)["version"])
    except FileNotFoundError:
        last = -1
    except (ValueError, KeyError, TypeError, RecursionError):
        last = -1
    return handle.version() - last


def tidy_log(store: "Store", table: str, handle: DeltaTable) -> bool:
    """Write a checkpoint if one is due, then remove commits past their retention; return whether one was written.

    delta-rs keeps every commit that the oldest kept version needs. Dying in between leaves a checkpoint more, or a
    commit more. Raises `LakeUnreachableError`.
    """
    due = commits_since_checkpoint(store, table, handle) >= CHECKPOINT_EVERY
    try:
        if due:
            retry_listing(handle.create_checkpoint)
        retry_listing(handle.cleanup_metadata)
    except (DeltaError, OSError) as error:
        hint = "check space and rights there; run it again"
        message = f"the log of {table} cannot be tidied"
        raise unreachable(store.uri, error, store.storage, what=message, hint=hint) from None
    return due


TASK_BYTES: Final = 2**30
_BYTE_CPU_S: Final = 1e-9
"""Rough cost of a byte's digest."""


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """Result of `scrub`.

    Attributes
    ----------
    files, size_bytes
        That were read.
    damaged
        Those that are not what was written.
    """

    files: int = 0
    size_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScrubTask:
    """Files of a table to read: a task for a worker; `files` are rows of `delta.live_files.files` as dicts."""

    lake_uri: str
    storage: dict[str, str]
    table: str
    files: list[dict[str, Any]]


def scrub(lake: Lake, workers: "Workers", progress: "Progress | None" = None) -> ScrubResult:
    """Read all live files of all tables. Raises what the store raises."""
    tasks = list(_tasks(lake))
    count = sum(len(task.files) for task in tasks)
    size_bytes = sum(row["size_bytes"] for task in tasks for row in task.files)
    done = 0

    def report() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(tasks))

    fitting = workers.fitting(size_bytes * _BYTE_CPU_S)
    unit = Unit("scrub", detail=f"{counted(count, 'file')} of {counted(len({task.table for task in tasks}), 'table')}")
    results = carry_out(unit, lambda: fitting.run(scrub_files, tasks, report))
    return ScrubResult(count, size_bytes, [damage for result in results for damage in result])


def scrub_files(task: ScrubTask) -> list[Damage]:
    """Carry out one task."""
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
    """What `upkeep` did, or would have done.

    Attributes
    ----------
    plans
        Numbers of the compaction plans.
    files_before, files_after, merged_bytes
        Small files that were merged, what they became, and their bytes.
    followed
        Tables whose log took over columns or a version of a newer contract.
    checkpoints
        Tables whose log got a checkpoint.
    purged, purged_bytes
        Files that went, counted by what they were (see `ranklake.lake.ingest.maintenance.vacuum.Garbage`), and their
        bytes.
    elapsed_s
        Wall seconds.
    damaged
        Data files that are not what was written, as far as they were looked at: those that were to be merged, and with
        a scrub all.
    scrubbed
        What the scrub found; None without one.
    anchored, anchor_fault
        Rows of the audit trail that were anchored, None where no anchor was due; why that failed, empty if it did not.
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
    """Keep a lake in shape. It can die anywhere and be run again, beside drivers of any kind.

    Parameters
    ----------
    grace
        How long a file stays after a commit took it out, or after it was written if no commit ever named it. Readers,
        and drivers at work, must not take longer. At most `ranklake.lake.ingest.maintenance.vacuum.GRACE`.
    dry_run
        Say what would be merged, checkpointed and purged now, and do nothing.
    with_scrub
        Read every live data file first, to see whether it still is what was written.

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
    over, over_bytes = carry_out(
        Unit("queries", detail="the query log"), partial(tidy_queries, lake.store, days, dry_run=dry_run)
    )
    purged += Counter({OLD_QUERIES: over} if over else {})
    anchored, anchor_fault = (None, "") if dry_run else _vouch(lake)
    return UpkeepResult(
        plans=merged.plans,
        files_before=merged.files_before,
        files_after=merged.files_after,
        merged_bytes=merged.size_bytes,
        followed=followed,
        checkpoints=checkpoints,
        purged=dict(sorted(purged.items())),
        purged_bytes=purged_bytes + over_bytes,
        elapsed_s=time.monotonic() - began,
        damaged=list(dict.fromkeys([*(scrubbed.damaged if scrubbed else []), *merged.damaged])),
        scrubbed=scrubbed,
        anchored=anchored,
        anchor_fault=anchor_fault,
    )


def _vouch(lake: "Lake") -> tuple[int | None, str]:
    """Note keys that are new, and anchor the trail where that is due; return of how many rows, and why not."""
    note_keys(lake.store, dict(key_ids(key_references(lake.config))), clock.now().date())
    try:
        made = anchor_if_due(lake)
    except (RanklakeError, OSError) as error:  # a witness that is away keeps no file from being tidied
        return None, str(error)
    return (None if made is None else made.rows), ""


def _vacuum(lake: "Lake", grace: timedelta, *, dry_run: bool) -> tuple[Counter[str], int]:
    """Return the files that went, counted by what they were, and their bytes."""
    purged: Counter[str] = Counter()
    purged_bytes = 0
    for file in list(garbage(lake, grace)):
        if dry_run or remove(lake.store, file):
            purged[file.reason] += 1
            purged_bytes += file.size_bytes
    return purged, purged_bytes


def _merge(lake: "Lake", workers: "Workers", progress: "Progress | None") -> CompactionResult:
    drive(lake, lambda _: None, workers)  # what a dead driver left half done would keep everything from being purged
    return merge_small(lake, workers, thorough=True, progress=progress)


def _dry_run(lake: "Lake") -> CompactionResult:
    number = last_finished(lake.tables) + 1
    due = list(merges_due(lake, mergeable_tables(lake.catalog), number, thorough=True, today=datetime.now(UTC).date()))
    size = sum(row["size_bytes"] for task in due for row in task.files)
    return CompactionResult([], sum(len(task.files) for task in due), len(due), size)


def _follow(lake: "Lake", *, dry_run: bool) -> list[str]:
    """Let each table follow its contract."""
    done = []
    for name, contract in lake.contracts().items():
        handle = latest(lake.tables, name)
        if handle is not None and difference(refuse_unfit(handle, contract), contract) is not None:
            if not dry_run:
                ensure_table(lake.tables, contract)
            done.append(name)
    return done


def _tidy(lake: "Lake", *, dry_run: bool) -> list[str]:
    done = []
    for table in lake.contracts():
        handle = delta_table(lake.store, table)
        if handle is None:
            continue
        if dry_run:
            due = commits_since_checkpoint(lake.store, table, handle) >= CHECKPOINT_EVERY
        else:
            due = tidy_log(lake.store, table, handle)
        if due:
            done.append(table)
    return done
