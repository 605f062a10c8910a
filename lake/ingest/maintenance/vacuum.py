"""Vacuum: deletes files that nothing can still need: left by dead or losing drivers, or removed long ago.

A data file goes if all of this is true:

- it was listed before the logs were read, and no log names it: neither as live, nor as removed within the grace period
  (so whoever reads an older version, or asks as of a time in the grace period, finds all its files);
- no retention plan keeps it to be cancelled (`ranklake.retention.proposals.kept`);
- no plan is unfinished, and its plan (its name says which) is no later than the last finished one: so no worker of a
  plan under way wrote it, and no plan that is about to be written names it. In tables that count their own commits,
  names have those numbers, which run ahead of plans: there it is enough to be older than the longest grace period;
- its plan, or commit, is no later than the last that the table's log knows of: a log whose newest commit is not to be
  seen for now (a listing that lacks it, a network file system's cache) must not make garbage of what that one named;
- the store says that it is older than the grace period: so no driver that is still at work on something that has no
  plan (a rollup, or a merge that is ready for its plan) wrote it.

Whatever its number, a file goes that by the log a commit took out before the grace period.

`DeltaTable.vacuum` knows nothing of plans, so it is asked for its list of removed files alone, and removes nothing.
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
"""How long files outlive their last use; no longer than the logs remember what was removed."""

QUARANTINE: Final = "quarantine"
_SCRATCH: Final = re.compile(r".+(\.tmp|#\d+)")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class GraceError(RanklakeError):
    """A grace period that the logs cannot vouch for."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file that may go.

    Attributes
    ----------
    path
        For the lake's file system.
    size_bytes
        As listed.
    reason
        removed: taken out of its table by a commit; orphan: named by no commit; scratch: half written;
        quarantine: bytes that the table ``segments`` does not speak of.
    """

    path: str
    size_bytes: int
    reason: str


def garbage(
    lake: "Lake", grace: timedelta = GRACE, now: datetime | None = None, tables: Collection[str] | None = None
) -> Iterator[Garbage]:
    """Yield what may go; none while a plan is unfinished.

    Parameters
    ----------
    grace
        As for `ranklake.lake.ingest.maintenance.run.upkeep`.
    now
        Moment that it is reckoned from; default the present.
    tables
        Tables to look at, and at nothing else; by default all, and what lies beside them.

    Raises `GraceError` for a grace period below zero or longer than the logs remember, `LakeUnreachableError` where a
    log cannot be read.
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
    """Delete a file; return whether it was this call that did. Raises `ranklake.lake.store.files.OutsideError`."""
    return delete(store, file.path)


def _data_files(lake: "Lake", table: str, finished: int, age: timedelta, before: datetime) -> Iterator[Garbage]:
    root = lake.path("tables", table)
    there = listed(lake.fs, root)
    handle = last_table(lake.store, table)  # after the listing: what was committed meanwhile is live
    if handle is None:  # never written, or its log is lost and may be restored
        return
    wanted, removed = _protected_files(lake.store, handle, age)
    committed, long_before = number_of(handle), before + age - GRACE
    is_derived = lake.contract(table).kind == "derived"
    for entry in there:
        name = entry.path.removeprefix(f"{root}/")
        plan = plan_of(name)
        if plan is None or name in wanted or not _is_older(entry, before):
            continue
        is_late = plan > finished and not is_derived and not _is_older(entry, long_before)
        if name not in removed and (plan > committed or is_late):
            continue
        yield Garbage(entry.path, entry.size_bytes, "removed" if name in removed else "orphan")


def _protected_files(store: "Store", handle: DeltaTable, age: timedelta) -> tuple[set[str], set[str]]:
    """Return files that are live or were removed less than an age ago, and files that were removed before that."""
    hours = math.ceil(age / timedelta(hours=1))
    try:
        every = set(retry_listing(lambda: handle.vacuum(0, dry_run=True, enforce_retention_duration=False)))
        old = set(retry_listing(lambda: handle.vacuum(hours, dry_run=True, enforce_retention_duration=False)))
    except (DeltaError, OSError) as error:
        hint = "check your rights there; run it again"
        message = "the log cannot be read"
        raise unreachable(handle.table_uri, error, store.storage, what=message, hint=hint) from None
    live = live_paths(handle)
    return live | (every - old), old - live


def _scratch(lake: "Lake", before: datetime) -> Iterator[Garbage]:
    """Yield files that were being written by somebody who died: they have names that nobody reads."""
    folders = [lake.path("shares"), lake.path("plans"), lake.path(OVERLAYS), lake.path(QUARANTINE), lake.path(HEADS)]
    folders += [lake.path("tables", table, "_delta_log") for table in lake.contracts()]
    for folder in folders:
        for entry in listed(lake.fs, folder):
            if _SCRATCH.fullmatch(entry.path.rpartition("/")[2]) and _is_older(entry, before):
                yield Garbage(entry.path, entry.size_bytes, "scratch")


def _quarantined_files(tables: "Tables", before: datetime) -> Iterator[Garbage]:
    """Yield unreadable segments without a row in ``segments``: it is retired, or their plan never came so far."""
    there = [
        one
        for one in listed(tables.store.fs, tables.store.path(QUARANTINE))
        if _DIGEST.fullmatch(one.path.rpartition("/")[2])
    ]
    handle = last_table(tables.store, "segments") if there else None
    if handle is None:
        return
    plans = read(tables, contract(LEDGER), ["plan", "kind"])
    ingests = plans.filter(pc.equal(plans["kind"], INGEST.name))["plan"].to_pylist()
    if max(ingests, default=0) > number_of(handle):  # its newest commit is not to be seen for now
        return
    # By the same handle: another would list the log again, and might lack what this one was asked about.
    kept: set[str] = set()
    for _, known in read_some(tables, contract("segments"), files(handle), ["sha256", "unreadable"]):
        aside = known.filter(pc.and_(pc.is_valid(known["unreadable"]), pc.invert(is_unread(known["unreadable"]))))
        kept.update(aside["sha256"].to_pylist())
    for entry in there:
        if entry.path.rpartition("/")[2] not in kept and _is_older(entry, before):
            yield Garbage(entry.path, entry.size_bytes, QUARANTINE)


def _is_older(entry: ListedFile, before: datetime) -> bool:
    return entry.modified is not None and entry.modified < before
