"""Vacuum: deletes files that no table needs any more, such as files of killed drivers and files that commits removed.

Nothing is deleted while a plan is unfinished, and no file is deleted that a retention plan keeps for a cancellation
(`ranklake.retention.proposals.kept`). Any other data file is deleted if a commit removed it before the grace period, or
if all of this is true:

- No Delta transaction log has the file as live, or as removed within the grace period. So time travel within the grace
  period finds all files. The folder is listed before the log is read, so a file that is committed meanwhile is safe.
- The plan number in the file's name is not above the last finished plan's. So the file is not from a plan that is being
  composed. Files of derived tables have commit numbers in their names, which may be above plan numbers, so this is not
  checked for them. In other tables, a file older than `GRACE` may have any number.
- The number in the name is not above the last one in the table's log. A stale listing of the log, such as from a cache
  of a network file system, may lack the newest commit. Files of that commit must not be deleted.
- The file is older than the grace period, by the store's time. So the file is not from a driver that still works
  without a plan: a rollup, or a merge before its plan is written.

`DeltaTable.vacuum` does not know about plans, so it is only used in a dry run, for the list of removed files.
"""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ranklake.errors import RanklakeError
from ranklake.lake.audit.chain import FOLDER as HEADS
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.spool.packs import is_unread
from ranklake.lake.plans.attempts import FOLDER as ATTEMPTS
from ranklake.lake.plans.kinds import INGEST
from ranklake.lake.plans.plan import LEDGER, last_finished, read_plan
from ranklake.lake.store.files import ListedFile, delete, listed
from ranklake.lake.store.governance import kept_paths
from ranklake.lake.store.overlays import FOLDER as OVERLAYS
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.tables.commit import number_of
from ranklake.lake.tables.live_files import files, live_paths, plan_of
from ranklake.lake.tables.read import read, read_some
from ranklake.lake.tables.tables import last_table, retry_listing

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

GRACE: Final = timedelta(days=7)
"""Default and longest grace period. The Delta logs keep records of removed files for as long."""

QUARANTINE: Final = "quarantine"
_SCRATCH: Final = re.compile(r".+(\.tmp|#\d+)")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class GraceError(RanklakeError):
    """A grace period that is negative, or longer than the Delta logs keep records of removed files."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file that may be deleted.

    Attributes
    ----------
    path
        Path in the lake's file system.
    size_bytes
        Size from the listing.
    reason
        "removed" by a commit; "orphan", in no commit; "scratch", an unfinished file; "quarantine", bytes without a row
        in the table ``segments``.
    """

    path: str
    size_bytes: int
    reason: str


def garbage(
    lake: "Lake", grace: timedelta = GRACE, now: datetime | None = None, tables: Collection[str] | None = None
) -> Iterator[Garbage]:
    """Yield the files that may be deleted; none while a plan is unfinished.

    Parameters
    ----------
    grace
        As for `ranklake.lake.ingest.maintenance.run.upkeep`.
    now
        End of the grace period; default the current time.
    tables
        Only look at data files of these tables. By default, all tables and the other folders of the lake.

    Raises
    ------
    GraceError
        The grace period is negative or longer than `GRACE`.
    LakeUnreachableError
        A Delta transaction log cannot be read.
    """
    if grace < timedelta(0):
        raise GraceError(f"a grace period of {grace.total_seconds():g} s is below zero", hint="at least 0")
    if grace > GRACE:
        raise GraceError(f"a grace period of {grace} is longer than the logs remember", hint=f"at most {GRACE}")
    finished = last_finished(lake.tables)
    if read_plan(lake.store, finished + 1) is not None:
        return
    present = datetime.now(UTC)
    before = (now or present) - grace
    kept = kept_paths(lake.tables)
    for table in lake.contracts() if tables is None else tables:
        for file in _data_files(lake, table, finished, present - before, before):
            if file.path.removeprefix(f"{lake.path('tables', table)}/") not in kept.get(table, ()):
                yield file
    if tables is not None:
        return
    yield from _scratch(lake, before)
    for entry in listed(lake.fs, lake.path(ATTEMPTS)):  # no plan is unfinished
        if _is_older(entry, before):
            yield Garbage(entry.path, entry.size_bytes, "scratch")
    yield from _quarantined_files(lake.tables, before)


def remove(store: "Store", file: Garbage) -> bool:
    """Delete a file; return whether this call deleted it. Raises `ranklake.lake.store.files.OutsideError`."""
    return delete(store, file.path)


def _data_files(lake: "Lake", table: str, finished: int, age: timedelta, before: datetime) -> Iterator[Garbage]:
    root = lake.path("tables", table)
    entries = listed(lake.fs, root)
    handle = last_table(lake.store, table)  # read after the listing, so files that were committed meanwhile are live
    if handle is None:  # never written, or its log is lost and may be restored
        return
    needed, removed = _needed_and_removed(lake.store, handle, age)
    committed, long_before = number_of(handle), before + age - GRACE
    is_derived = lake.contract(table).kind == "derived"
    for entry in entries:
        name = entry.path.removeprefix(f"{root}/")
        plan = plan_of(name)
        if plan is None or name in needed or not _is_older(entry, before):
            continue
        is_late = plan > finished and not is_derived and not _is_older(entry, long_before)
        if name not in removed and (plan > committed or is_late):
            continue
        yield Garbage(entry.path, entry.size_bytes, "removed" if name in removed else "orphan")


def _needed_and_removed(store: "Store", handle: DeltaTable, age: timedelta) -> tuple[set[str], set[str]]:
    """Return the files that are live or were removed within `age`, and the files that were removed earlier."""
    hours = math.ceil(age / timedelta(hours=1))
    try:
        all_removed = set(retry_listing(lambda: handle.vacuum(0, dry_run=True, enforce_retention_duration=False)))
        old = set(retry_listing(lambda: handle.vacuum(hours, dry_run=True, enforce_retention_duration=False)))
    except (DeltaError, OSError) as error:
        hint = "check your rights there; run it again"
        message = "the log cannot be read"
        raise unreachable(handle.table_uri, error, store.storage, what=message, hint=hint) from None
    live = live_paths(handle)
    return live | (all_removed - old), old - live


def _scratch(lake: "Lake", before: datetime) -> Iterator[Garbage]:
    """Yield temporary files of writers that were killed."""
    folders = [lake.path("shares"), lake.path("plans"), lake.path(OVERLAYS), lake.path(QUARANTINE), lake.path(HEADS)]
    folders += [lake.path("tables", table, "_delta_log") for table in lake.contracts()]
    for folder in folders:
        for entry in listed(lake.fs, folder):
            if _SCRATCH.fullmatch(entry.path.rpartition("/")[2]) and _is_older(entry, before):
                yield Garbage(entry.path, entry.size_bytes, "scratch")


def _quarantined_files(tables: "Tables", before: datetime) -> Iterator[Garbage]:
    """Yield quarantined bytes without a row in ``segments``: the row was removed, or its plan did not commit."""
    entries = [
        entry
        for entry in listed(tables.store.fs, tables.store.path(QUARANTINE))
        if _DIGEST.fullmatch(entry.path.rpartition("/")[2])
    ]
    handle = last_table(tables.store, "segments") if entries else None
    if handle is None:
        return
    plans = read(tables, contract(LEDGER), ["plan", "kind"])
    ingests = plans.filter(pc.equal(plans["kind"], INGEST.name))["plan"].to_pylist()
    if max(ingests, default=0) > number_of(handle):  # a stale listing of the log lacks the newest commit
        return
    # Read by the same handle: a new one would list the log again, and that listing may be stale.
    needed: set[str] = set()
    for _, rows in read_some(tables, contract("segments"), files(handle), ["sha256", "unreadable"]):
        damaged = rows.filter(pc.and_(pc.is_valid(rows["unreadable"]), pc.invert(is_unread(rows["unreadable"]))))
        needed.update(damaged["sha256"].to_pylist())
    for entry in entries:
        if entry.path.rpartition("/")[2] not in needed and _is_older(entry, before):
            yield Garbage(entry.path, entry.size_bytes, QUARANTINE)


def _is_older(entry: ListedFile, before: datetime) -> bool:
    return entry.modified is not None and entry.modified < before
