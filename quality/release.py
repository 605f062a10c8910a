"""Releases: held partitions and quarantined rows return to their tables after a fix, once a release is approved.

    plan: holds, rejects and refused segments that pass today ─▶ a proposal ─▶ approve ─▶ apply: still the same? ─▶ one
        numbered plan: rows from ``rejects`` into their tables, and the register's row, which ends the holds; then the
        segments get today's date in the spool, so that the next ingest reads them again

`ranklake.retention.proposals.lifecycle` has the steps that all proposals share. A rejected row is stored as JSON with
all its values (`ranklake.lake.ingest.refused`). It is not released if it cannot be read back exactly: it has columns
that the contract lacks, values of another type, a key that the table already has, a date that retention removed, or it
comes from a segment that a person disowned.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts import edge
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.edge import row_values
from ranklake.lake.contracts.errors import UnknownTableError
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.ingest.refused import RefusedSegment, passing, renew
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.action_plan import live_files
from ranklake.lake.plans.driver import finish
from ranklake.lake.plans.kinds import QUARANTINE, RELEASE
from ranklake.lake.plans.plan import row_files
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.order import RECORDED_KEY, keys_sha256
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read, read_some
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.proposals.kept import retired_dates
from ranklake.retention.proposals.proposals import VoidProposalError
from ranklake.retention.proposals.registers import with_time
from ranklake.retention.proposals.releases import REGISTER, RELEASES, TABLE, Item, Release, holds

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile
    from ranklake.retention.proposals.lifecycle import WritePlan

REJECTS: Final = "rejects"
_SOURCES: Final = ("check", "ingest")
"""Sources of rejects that a release may return; rows that a person disowned are not returned."""


@dataclass(frozen=True, slots=True)
class PassingRows:
    """Rejected rows of one table that pass now, of one date of ``rejects`` and one reason.

    Attributes
    ----------
    places
        Path and row number in ``rejects`` of each.
    rows
        The rows with the columns of their table.
    """

    table: str
    taken_out: date
    reason: str
    places: tuple[tuple[str, int], ...]
    rows: pa.Table

    @property
    def keys_sha256(self) -> str:
        """Digest of the rows' keys, independent of their order."""
        return keys_sha256(self.rows)


def passing_rows(lake: "Lake", tables: Sequence[str]) -> Iterator[PassingRows]:
    """Yield rejected rows of some tables that pass today's contracts."""
    contracts = lake.contracts()
    live = live_files(lake, REJECTS, sorted({*_dates(lake.tables)}))
    groups: dict[tuple[str, date, str], list[tuple[tuple[str, int], dict[str, Any]]]] = {}
    names = ["table", "source", "reason", "row", "date"]
    for path, rows in read_some(lake.tables, packaged(REJECTS), live, names):
        for place, row in enumerate(rows.to_pylist()):
            contract = contracts.get(row["table"])
            if row["table"] not in tables or contract is None or row["source"] not in _SOURCES:
                continue
            if (values := row_values(contract, row["row"])) is not None:
                groups.setdefault((row["table"], row["date"], row["reason"]), []).append(((path, place), values))
    retired = retired_dates(lake.tables)
    seen: dict[str, set[tuple[int, ...]]] = {}
    for (table, day, reason), members in sorted(groups.items(), key=lambda group: group[0]):
        rows = pa.Table.from_pylist([values for _, values in members], schema=arrow_schema(contracts[table]))
        good = _passing(lake.tables, contracts[table], rows, retired.get(table, {}), seen.setdefault(table, set()))
        if good:
            places = tuple(members[index][0] for index in good)
            yield PassingRows(table, day, reason, places, rows.take(pa.array(good)))


def _dates(tables: "Tables") -> list[date]:
    return pc.unique(read(tables, packaged(REJECTS), ["date"])["date"]).to_pylist()  # type: ignore[no-any-return]


def _passing(
    tables: "Tables", contract: "Contract", rows: pa.Table, retired: Mapping[date, int], seen: set[tuple[int, ...]]
) -> list[int]:
    """Return the indices of rows that pass, whose date is not retired and whose key is not in the table or `seen`."""
    verdicts = edge.reject_reasons(contract, rows).to_pylist()
    dates = rows["date"].to_pylist()
    good = [
        index
        for index, reason in enumerate(verdicts)
        if reason is None and dates[index] is not None and dates[index] not in retired
    ]
    stored = (
        read(tables, contract, list(RECORDED_KEY), partitions=sorted({dates[index] for index in good}))
        if good
        else None
    )
    stored_keys = (
        set() if stored is None else set(zip(*(stored[name].to_pylist() for name in RECORDED_KEY), strict=True))
    )
    keys = list(zip(*(rows[name].to_pylist() for name in RECORDED_KEY), strict=True))
    passing = []
    for index in good:
        if keys[index] not in stored_keys and keys[index] not in seen:
            seen.add(keys[index])
            passing.append(index)
    return passing


KINDS: Final = ("partition", "rows", "segment")


class NothingToReleaseError(RanklakeError):
    """No partition is held, and no rejected row or refused segment passes."""

    def __init__(self, *, without_spool: bool = False) -> None:
        hint = "fix the check, the data or the rules of the spool first; 'ranklake quality held' shows what is held"
        message = "nothing to release: no such partition is held, and no such row in rejects passes"
        more = "; refused segments were not looked at, since no spool is configured"
        super().__init__(message + (more if without_spool else ", nor does a refused segment"), hint=hint)


class NoSpoolError(RanklakeError):
    """A release contains refused segments, and no spool is configured."""

    def __init__(self, name: str) -> None:
        hint = "give --spool, or name it in ranklake.toml"
        super().__init__("it releases refused segments, and no spool is configured", where=name, hint=hint)


def plan_release(
    lake: "Lake",
    by: str,
    reason: str,
    tables: Sequence[str] = (),
    day: date | None = None,
    kinds: Sequence[str] = KINDS,
    *,
    spool: "Spool | None" = None,
    signing: Signing = NOT_SIGNING,
) -> Release:
    """Propose to release held partitions, rejected rows that pass today's contracts, and refused segments.

    `by` is its author, who may not approve it.

    Parameters
    ----------
    reason
        Description of the fix.
    tables
        Tables to release; by default all.
    day
        Only partitions of this date, and rows and segments that were rejected or refused on it.
    spool
        Spool of the refused segments; without it no segment is released.

    Raises `NothingToReleaseError`, `UnknownTableError`.
    """
    known = [name for name, contract in lake.contracts().items() if contract.kind in {"fact", "derived"}]
    for name in tables:
        if name not in known:
            raise UnknownTableError(name, hint=did_you_mean(name, known))
    finish(lake, QUARANTINE, InProcess())  # a plan that a crashed check left unfinished
    items = [item for item, _ in _candidates(lake, tables or known, kinds) if day in {None, item.partition_date}]
    items += [item for item in _segments(lake, spool, tables or known, kinds) if day in {None, item.partition_date}]
    if not items:
        raise NothingToReleaseError(without_spool=spool is None)
    release = REGISTER.add(lake.tables, items, by, reason)
    lifecycle.propose(lake, RELEASES, release.name, by, signing)
    return release


approve = lifecycle.approving(RELEASES)
"""Approve a release; see `ranklake.retention.proposals.lifecycle.approve`."""


def apply(
    lake: "Lake",
    name: str,
    by: str,
    *,
    spool: "Spool | None" = None,
    single_operator: bool = False,
    signing: Signing = NOT_SIGNING,
) -> tuple[Release, bool]:
    """Apply an approved release. Return it, and whether this call applied it.

    The plan is committed first; then segments are moved before the next ingest. If a call dies in between, another call
    finishes the segments, also for a release that is already applied.

    Raises the errors of `ranklake.retention.proposals.lifecycle.apply`, and `NoSpoolError`. Raises `VoidProposalError`
    if a partition is no longer held or was checked again, if other rows pass now than were proposed, or if a segment
    does not pass. Nothing was changed then.
    """
    if RELEASES.find(lake, name).of("segment") and spool is None:
        raise NoSpoolError(name)

    def check(release: Release) -> "WritePlan":
        tables = sorted({item.table for item in release.items})
        current: dict[Item, PassingRows | None] = dict(_candidates(lake, tables, KINDS))
        current |= dict.fromkeys(_segments(lake, spool, tables, KINDS))
        for item in release.items:
            if item not in current:
                reason = _VOID[item.item_kind]
                raise VoidProposalError(RELEASES, name, reason, f"{item.table} {item.partition_date} {item.about}")
        return partial(
            _write, lake, release, by, [group for item in release.items if (group := current[item]) is not None]
        )

    release, fresh = lifecycle.apply(lake, RELEASES, name, by, check, single_operator=single_operator, signing=signing)
    approved = set(release.of("segment"))
    if approved and spool is not None:
        candidates = _segments(lake, spool, sorted({item.table for item in approved}), KINDS)
        renew(lake.store, spool, [segment for item, segment in candidates.items() if item in approved])
    return release, fresh


_VOID: Final = {
    "partition": "is not held, or was checked anew",
    "rows": "other rows pass today",
    "segment": "it was taken in, its bytes are gone, or something is against it again",
}
"""Reasons why an item can no longer be released, by its kind."""


def _segments(
    lake: "Lake", spool: "Spool | None", tables: Sequence[str], kinds: Sequence[str]
) -> dict[Item, RefusedSegment]:
    """Return the refused segments of some tables that ingest would accept today, by their items."""
    if spool is None or "segment" not in kinds:
        return {}
    return {
        Item(
            "segment",
            refused.table,
            refused.day,
            f"{refused.reason}: {refused.name}",
            refused.name.rows,
            refused.sha256,
        ): refused
        for refused in passing(lake.configured(spool=spool.config.spool), spool, tables)
    }


def _candidates(
    lake: "Lake", tables: Sequence[str], kinds: Sequence[str]
) -> "Iterator[tuple[Item, PassingRows | None]]":
    """Yield the items of some tables that can be released, with the rows of each item of kind ``rows``."""
    for hold in holds(lake.tables) if "partition" in kinds else ():
        if hold.table in tables:
            about = ",".join(hold.checks)
            yield Item("partition", hold.table, hold.partition_date, about, hold.rows_failed, hold.files_sha256), None
    for group in passing_rows(lake, tables) if "rows" in kinds else ():
        count = group.rows.num_rows
        yield Item("rows", group.table, group.taken_out, group.reason, count, group.keys_sha256), group


def _write(
    lake: "Lake", release: Release, by: str, freed: Sequence[PassingRows], number: int, *, alone: bool
) -> "Plan":
    """Write the files of the plan: rows in their tables, the remaining rows of ``rejects``, and the register's row."""
    places = {place for group in freed for place in group.places}
    added: list[DataFile] = []
    remove: dict[str, pa.Table] = {}
    for group in freed:
        known = lake.contract(group.table)
        rows = group.rows.sort_by([(name, "ascending") for name in known.sort])
        added += append_files(lake.store, known, rows, number)
        remove.setdefault(group.table, action_plan.live_files(lake, group.table, []).slice(0, 0))
    if places:
        live = action_plan.live_files(lake, REJECTS, sorted({group.taken_out for group in freed}))
        affected = live.filter(pc.is_in(live["path"], value_set=pa.array(sorted({path for path, _ in places}))))
        for index, path in enumerate(affected["path"].to_pylist()):
            rows_to_remove = {row for file, row in places if file == path}
            added += _rewrite_without(lake.tables, affected.slice(index, 1), rows_to_remove, number)
        remove[REJECTS] = affected
    row = REGISTER.head_row(release, "application", by, number, single_operator=alone)
    added += row_files(lake.store, TABLE, with_time([row]), number)
    return action_plan.compose(number, RELEASE.name, add=added, remove=remove, facts={"release": release.name})


def _rewrite_without(tables: "Tables", file: pa.Table, removed_rows: Collection[int], number: int) -> "list[DataFile]":
    """Return the files that replace a file of ``rejects`` without some of its rows."""

    def select(rows: pa.Table) -> pa.Array:
        return pa.array([row in removed_rows for row in range(rows.num_rows)])

    rewrites = action_plan.remove_rows(tables, contract(REJECTS), number, file, select)
    return [new_file for _, added, _ in rewrites for new_file in added]
