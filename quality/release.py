"""Releases: held partitions and quarantined rows return to their tables after a fix, once a release is approved.

    plan: holds, rejects and refused segments that pass today ─▶ a proposal ─▶ approve ─▶ apply: still the same? ─▶ one
        numbered plan: rows from ``rejects`` into their tables, and the register's row, by which partitions are free;
        then segments are dated now in the spool, so that the next ingest judges them again

What proposals have in common is in `ranklake.retention.proposals.lifecycle`. A rejected row is stored whole as JSON
(`ranklake.lake.ingest.refused`). It stays in ``rejects`` if it cannot be read back exactly: columns that the contract
does not know, values that are not of their type, a key that the table holds already, a date that retention removed, a
segment that a person disowned.
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
"""Sources of rejects that a release may return; rows that a person disowned stay."""


@dataclass(frozen=True, slots=True)
class PassingRows:
    """Rows of one table that pass now, of one date of ``rejects`` and one reason.

    Attributes
    ----------
    places
        Where they are in ``rejects``: path of the file and row in it.
    rows
        As they go into their table.
    """

    table: str
    taken_out: date
    reason: str
    places: tuple[tuple[str, int], ...]
    rows: pa.Table

    @property
    def keys_sha256(self) -> str:
        """Digest of their keys, in any order."""
        return keys_sha256(self.rows)


def passing_rows(lake: "Lake", tables: Sequence[str]) -> Iterator[PassingRows]:
    """Yield rejected rows of some tables that pass today's contracts."""
    contracts = lake.contracts()
    live = live_files(lake, REJECTS, sorted({*_dates(lake.tables)}))
    groups: dict[tuple[str, date, str], list[tuple[tuple[str, int], dict[str, Any]]]] = {}
    names = ["table", "source", "reason", "row", "date"]
    for path, rows in read_some(lake.tables, packaged(REJECTS), live, names):
        for place, row in enumerate(rows.to_pylist()):
            known = contracts.get(row["table"])
            if row["table"] not in tables or known is None or row["source"] not in _SOURCES:
                continue
            if (values := row_values(known, row["row"])) is not None:
                groups.setdefault((row["table"], row["date"], row["reason"]), []).append(((path, place), values))
    taken = retired_dates(lake.tables)
    seen: dict[str, set[tuple[int, ...]]] = {}
    for (table, day, reason), members in sorted(groups.items(), key=lambda group: group[0]):
        rows = pa.Table.from_pylist([values for _, values in members], schema=arrow_schema(contracts[table]))
        good = _passing(lake.tables, contracts[table], rows, taken.get(table, {}), seen.setdefault(table, set()))
        if good:
            places = tuple(members[index][0] for index in good)
            yield PassingRows(table, day, reason, places, rows.take(pa.array(good)))


def _dates(tables: "Tables") -> list[date]:
    return pc.unique(read(tables, packaged(REJECTS), ["date"])["date"]).to_pylist()  # type: ignore[no-any-return]


def _passing(
    tables: "Tables", contract: "Contract", rows: pa.Table, taken: Mapping[date, int], seen: set[tuple[int, ...]]
) -> list[int]:
    """Return the indices of rows that pass, whose date is not retired and whose key is not stored yet."""
    verdicts = edge.reject_reasons(contract, rows).to_pylist()
    dates = rows["date"].to_pylist()
    good = [at for at, why in enumerate(verdicts) if why is None and dates[at] is not None and dates[at] not in taken]
    held = read(tables, contract, list(RECORDED_KEY), partitions=sorted({dates[at] for at in good})) if good else None
    there = set() if held is None else set(zip(*(held[name].to_pylist() for name in RECORDED_KEY), strict=True))
    keys = list(zip(*(rows[name].to_pylist() for name in RECORDED_KEY), strict=True))
    passing = []
    for at in good:
        if keys[at] not in there and keys[at] not in seen:
            seen.add(keys[at])
            passing.append(at)
    return passing


KINDS: Final = ("partition", "rows", "segment")


class NothingToReleaseError(RanklakeError):
    """Nothing is held back, and nothing in quarantine or refused passes."""

    def __init__(self, *, without_spool: bool = False) -> None:
        hint = "fix the check, the data or the rules of the spool first; 'ranklake quality held' shows what is held"
        message = "nothing to release: no such partition is held, and no such row in rejects passes"
        more = "; refused segments were not looked at, since no spool is configured"
        super().__init__(message + (more if without_spool else ", nor does a refused segment"), hint=hint)


class NoSpoolError(RanklakeError):
    """A release names refused segments, and no spool is configured."""

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
        What was fixed.
    tables
        By default all.
    day
        Only partitions of this date, rows that were taken out and segments that were refused on it.
    spool
        Where refused segments lie; without it none is released.

    Raises `NothingToReleaseError`, `UnknownTableError`.
    """
    known = [name for name, one in lake.contracts().items() if one.kind in {"fact", "derived"}]
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
"""Approves one; see `ranklake.retention.proposals.lifecycle.approve`."""


def apply(
    lake: "Lake",
    name: str,
    by: str,
    *,
    spool: "Spool | None" = None,
    single_operator: bool = False,
    signing: Signing = NOT_SIGNING,
) -> tuple[Release, bool]:
    """Free what an approved release names; return it, and whether this call did it.

    Segments are put before the next ingest once the plan is there; a call that died in between is finished by another,
    also by one for a release that was applied.

    Raises what `ranklake.retention.proposals.lifecycle.apply` does; `VoidProposalError` where a partition is not held
    (any more), or as another one, where other rows pass now than were proposed, or where a segment does not;
    `NoSpoolError`. Nothing was changed then.
    """
    if RELEASES.find(lake, name).of("segment") and spool is None:
        raise NoSpoolError(name)

    def check(release: Release) -> "WritePlan":
        tables = sorted({item.table for item in release.items})
        now: dict[Item, PassingRows | None] = dict(_candidates(lake, tables, KINDS))
        now |= dict.fromkeys(_segments(lake, spool, tables, KINDS))
        for item in release.items:
            if item not in now:
                reason = _VOID[item.item_kind]
                raise VoidProposalError(RELEASES, name, reason, f"{item.table} {item.partition_date} {item.about}")
        return partial(_write, lake, release, by, [group for item in release.items if (group := now[item]) is not None])

    done, fresh = lifecycle.apply(lake, RELEASES, name, by, check, single_operator=single_operator, signing=signing)
    agreed = set(done.of("segment"))
    if agreed and spool is not None:
        there = _segments(lake, spool, sorted({item.table for item in agreed}), KINDS)
        renew(lake.store, spool, [one for item, one in there.items() if item in agreed])
    return done, fresh


_VOID: Final = {
    "partition": "is not held, or was checked anew",
    "rows": "other rows pass today",
    "segment": "it was taken in, its bytes are gone, or something is against it again",
}
"""Why an item of a kind can no longer be released."""


def _segments(
    lake: "Lake", spool: "Spool | None", tables: Sequence[str], kinds: Sequence[str]
) -> dict[Item, RefusedSegment]:
    """Return the refused segments of some tables that would be taken in today, each as an item."""
    if spool is None or "segment" not in kinds:
        return {}
    return {
        Item("segment", one.table, one.day, f"{one.reason}: {one.name}", one.name.rows, one.sha256): one
        for one in passing(lake.configured(spool=spool.config.spool), spool, tables)
    }


def _candidates(
    lake: "Lake", tables: Sequence[str], kinds: Sequence[str]
) -> "Iterator[tuple[Item, PassingRows | None]]":
    """Yield the items of some tables that may be released."""
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
    """Write the files of the plan: rows in their tables, what stays of ``rejects``, and the register's row."""
    gone = {place for group in freed for place in group.places}
    new: list[DataFile] = []
    remove: dict[str, pa.Table] = {}
    for group in freed:
        known = lake.contract(group.table)
        rows = group.rows.sort_by([(name, "ascending") for name in known.sort])
        new += append_files(lake.store, known, rows, number)
        remove.setdefault(group.table, action_plan.live_files(lake, group.table, []).slice(0, 0))
    if gone:
        live = action_plan.live_files(lake, REJECTS, sorted({group.taken_out for group in freed}))
        hit = live.filter(pc.is_in(live["path"], value_set=pa.array(sorted({path for path, _ in gone}))))
        for index, path in enumerate(hit["path"].to_pylist()):
            places = {place for where, place in gone if where == path}
            new += _rewrite_without(lake.tables, hit.slice(index, 1), places, number)
        remove[REJECTS] = hit
    row = REGISTER.head_row(release, "application", by, number, single_operator=alone)
    new += row_files(lake.store, TABLE, with_time([row]), number)
    return action_plan.compose(number, RELEASE.name, add=new, remove=remove, facts={"release": release.name})


def _rewrite_without(tables: "Tables", file: pa.Table, places: Collection[int], number: int) -> "list[DataFile]":
    """Return the files that take a file's place when some of its rows are gone."""

    def select(rows: pa.Table) -> pa.Array:
        return pa.array([place in places for place in range(rows.num_rows)])

    taken = action_plan.take_rows_out(tables, contract(REJECTS), number, file, select)
    return [one for _, added, _ in taken for one in added]
