"""Upkeep as a whole: finish open plans, scrub if asked, compact, clean up the logs, vacuum."""

import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.contracts.delta import CHECKPOINT_EVERY
from ranklake.lake.ingest.maintenance.compaction import Merged, merge_small
from ranklake.lake.ingest.maintenance.log import commits_since_checkpoint, tidy_log
from ranklake.lake.ingest.maintenance.merges import mergeable_tables, merges_due
from ranklake.lake.ingest.maintenance.scrub import Scrubbed, scrub
from ranklake.lake.ingest.maintenance.vacuum import GRACE, garbage, remove
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.plans.units import Unit, carry_out
from ranklake.lake.query.usage_log import tidy as tidy_queries
from ranklake.lake.store.governance import anchor_if_due
from ranklake.lake.store.key_ids import key_ids, key_references
from ranklake.lake.store.key_uses import note_keys
from ranklake.lake.tables.integrity import Damage
from ranklake.lake.tables.table_schema import difference
from ranklake.lake.tables.tables import delta_table, ensure_table, latest, refuse_unfit

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.store import Lake

OLD_QUERIES: Final = "old query logs"


@dataclass(frozen=True, slots=True)
class Upkept:
    """What one call of `upkeep` did, or would have done.

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
    scrubbed: Scrubbed | None = None
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
) -> Upkept:
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
    merged = _foreseen(lake) if dry_run else _merge(lake, workers, progress)
    followed = carry_out(Unit("follow", detail="contracts that changed"), partial(_follow, lake, dry_run=dry_run))
    checkpoints = carry_out(Unit("tidy", detail="logs of tables"), partial(_tidy, lake, dry_run=dry_run))
    purged, purged_bytes = carry_out(
        Unit("vacuum", detail="files that nothing refers to"), partial(_vacuum, lake, grace, dry_run=dry_run)
    )
    days = lake.config.query.keep_days
    over, over_bytes = carry_out(
        Unit("queries", detail="the query log"), partial(tidy_queries, lake, days, dry_run=dry_run)
    )
    purged += Counter({OLD_QUERIES: over} if over else {})
    anchored, anchor_fault = (None, "") if dry_run else _vouch(lake)
    return Upkept(
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
    note_keys(lake, dict(key_ids(key_references(lake.config))), clock.now().date())
    try:
        made = anchor_if_due(lake)
    except (RanklakeError, OSError) as error:  # a witness that is away keeps no file from being tidied
        return None, str(error)
    return (None if made is None else made.rows), ""


def _vacuum(lake: "Lake", grace: timedelta, *, dry_run: bool) -> tuple[Counter[str], int]:
    """Return the files that went, counted by what they were, and their bytes."""
    purged: Counter[str] = Counter()
    purged_bytes = 0
    for some in list(garbage(lake, grace)):
        if dry_run or remove(lake, some):
            purged[some.what] += 1
            purged_bytes += some.size_bytes
    return purged, purged_bytes


def _merge(lake: "Lake", workers: "Workers", progress: "Progress | None") -> Merged:
    drive(lake, lambda _: None, workers)  # what a dead driver left half done would keep everything from being purged
    return merge_small(lake, workers, thorough=True, progress=progress)


def _foreseen(lake: "Lake") -> Merged:
    number = last_finished(lake) + 1
    due = list(merges_due(lake, mergeable_tables(lake), number, thorough=True, today=datetime.now(UTC).date()))
    size = sum(row["size_bytes"] for task in due for row in task.files)
    return Merged([], sum(len(task.files) for task in due), len(due), size)


def _follow(lake: "Lake", *, dry_run: bool) -> list[str]:
    """Let each table follow its contract."""
    done = []
    for name, one in lake.contracts().items():
        handle = latest(lake, name)
        if handle is not None and difference(refuse_unfit(handle, one), one) is not None:
            if not dry_run:
                ensure_table(lake, one)
            done.append(name)
    return done


def _tidy(lake: "Lake", *, dry_run: bool) -> list[str]:
    done = []
    for table in lake.contracts():
        handle = delta_table(lake, table)
        if handle is None:
            continue
        if dry_run:
            due = commits_since_checkpoint(lake, table, handle) >= CHECKPOINT_EVERY
        else:
            due = tidy_log(lake, table, handle)
        if due:
            done.append(table)
    return done
