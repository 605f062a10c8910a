"""Rehydrations: bring archived rows back until a day, proposed by one person and approved by another."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.audit import trail as audit
from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations.rewriting import stored_rows, upgrade_rows
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import DataFile
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.read import read
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.place import (
    ArchiveError,
    Availability,
    Manifest,
    ask_for,
    look,
    open_place,
    read_manifest,
    refuse_other,
    refuse_unsound,
)
from ranklake.retention.archive.register import Archive, archives, every_archive
from ranklake.retention.archive.rehydrated import RehydratedArchive, place_of, rehydrated_archives, remove
from ranklake.retention.archive.rehydrated import write_record as write_copies_record
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.plans.due import by_day
from ranklake.retention.plans.masks import Masks
from ranklake.retention.policies.parts import Parts, run_facts
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.approvals import approval_status, require
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.proposals.proposals import (
    NotApprovedError,
    Proposal,
    ProposalKind,
    Risk,
    Step,
    digest_of,
    recorded_actions,
)

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.retention.policies.policies import Policies

MOST_DAYS: Final = 366
_PLANNED: Final = "rehydration.plan"


class RehydrationError(RanklakeError):
    """A rehydration cannot be proposed or carried out. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Rehydration(Proposal):
    """A proposal to bring archives back until a day."""

    archives: tuple[str, ...]
    until: date
    reason: str | None = None

    @property
    def items_sha256(self) -> str:
        """Digest of the names of the archives and of the day."""
        return digest_of([*self.archives, self.until.isoformat()])

    @property
    def intact(self) -> bool:
        """Whether its name matches its archives and its day."""
        return self.name == name_of(self.archives, self.until)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Details of its audit rows for approval and begin."""
        return {"archives": list(self.archives), "until": self.until.isoformat()}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Details of its audit row after the approval."""
        return self.facts

    @property
    def risk(self) -> Risk:
        """Rows become visible again for some days; nothing is lost."""
        return Risk(irreversible=False)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        moments = {"proposed": self.proposed, "approved": self.approved}
        times = {name: None if when is None else when.isoformat() for name, when in moments.items()}
        return {"rehydration": self.name, "state": self.state, **self.facts, **times}


def name_of(names: Iterable[str], until: date) -> str:
    """Return the name of a rehydration of these archives until a day."""
    return f"rh-{digest_of([*names, until.isoformat()])[:16]}"


def register(lake: "Lake") -> dict[str, Rehydration]:
    """Return all rehydrations by name, oldest first, from the audit log."""
    rows = read(lake.tables, contract(audit.TABLE), ["seq", "ts", "actor", "action", "subject", "reason", "details"])
    rehydrations: dict[str, Rehydration] = {}
    planned = (
        [Step.of(row) for row in rows.sort_by("seq").to_pylist() if row["action"] == _PLANNED] if rows.num_rows else []
    )
    for step in planned:
        try:
            names = tuple(map(str, step.details["archives"]))
            until = date.fromisoformat(str(step.details["until"]))
        except (KeyError, TypeError, ValueError):
            continue
        ends = datetime(until.year, until.month, until.day, tzinfo=UTC)
        rehydrations[step.subject] = Rehydration(
            step.subject, names, until, step.reason, proposed=step.ts, expires=ends
        )
    return {name: replace(item, approved=_approval_time(lake, item)) for name, item in rehydrations.items()}


def _approval_time(lake: "Lake", rehydration: Rehydration) -> datetime | None:
    """Return the time at which the rehydration had all approvals; None if it has not."""
    trail = recorded_actions(lake.tables, _KIND)
    steps = trail.get(rehydration.name, {}).get(_KIND.applied, [])
    times = [
        step.ts
        for step in steps
        if rehydration.intact and not approval_status(lake, _KIND, rehydration, trail, step.ts).lacking
    ]
    return times[0] if times else None


def select_archives(tables: "Tables", table: str, first: date, last: date) -> list[Archive]:
    """Return the archives of a table in a range of dates. Raises `RehydrationError` if there are none."""
    existing = archives(tables)
    selected = [item for item in existing if item.table == table and first <= item.partition_date <= last]
    if not selected:
        names = sorted({item.table for item in existing})
        hint = did_you_mean(table, names) if table not in names else "see 'ranklake retain archives list'"
        raise RehydrationError(
            f"nothing of {table} is archived from {first} to {last}", hint=hint or "nothing is archived"
        )
    return selected


def write_down(
    lake: "Lake",
    selected: Iterable[Archive],
    until: date,
    by: str,
    reason: str | None = None,
    today: date | None = None,
) -> Rehydration:
    """Write a rehydration of these archives until a day into the audit log. Equal rehydrations are one proposal.

    Does not make `by` an author; see `propose`. Raises `RehydrationError`.
    """
    day = today or datetime.now(UTC).date()
    if not day < until <= day + timedelta(days=MOST_DAYS):
        hint = f"name a day to come, at most {MOST_DAYS} days from now"
        raise RehydrationError(f"rows cannot come back until {until}", where="--until", hint=hint)
    names = tuple(sorted(item.archive for item in selected))
    new = Rehydration(name_of(names, until), names, until)
    audit.record(lake, by, _PLANNED, new.name, reason, dict(new.facts), once=True)
    return REHYDRATIONS.find(lake, new.name)


def propose(lake: "Lake", rehydration: Rehydration, by: str, signing: Signing = NOT_SIGNING) -> None:
    """Record in the audit log who proposed a rehydration and therefore may not approve it."""
    lifecycle.propose(lake, REHYDRATIONS, rehydration.name, by, signing)


def _take_effect(lake: "Lake", rehydration: Rehydration, by: str) -> bool:
    return audit.record(lake, by, _KIND.applied, rehydration.name, None, dict(rehydration.facts), once=True) is not None


REHYDRATIONS: Final = ProposalKind(
    noun="rehydration",
    action="rehydration",
    command="ranklake retain rehydrate",
    register=register,
    add_approval=_take_effect,
)
"""Rehydrations as proposals, for `ranklake.retention.proposals.lifecycle`."""
_KIND: Final = REHYDRATIONS
approve = lifecycle.approving(REHYDRATIONS)
"""Approves a rehydration; see `ranklake.retention.proposals.lifecycle.approve`."""


DONE: Final = "rehydration.done"
ENDED: Final = "rehydration.ended"
_POLL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class WaitingFiles:
    """Number of files whose restore was requested and that cannot be read yet."""

    files: int


def rehydrate(
    lake: "Lake",
    name: str,
    by: str,
    policies: "Policies",
    *,
    today: date | None = None,
    wait_s: float = 0,
    sleep: Callable[[float], None] = time.sleep,
) -> RehydratedArchive | WaitingFiles:
    """Write the rows of an approved rehydration beside the tables. Keeps rows that are back under today's contracts.

    Parameters
    ----------
    wait_s
        How long to wait for files in cold storage. A restore takes hours; the next call continues.

    Raises
    ------
    UnknownProposalError, AlteredProposalError, NotApprovedError, NoEvidenceError, RehydrationError
        Nothing was changed.
    ArchiveError
        An archive is missing or damaged. No rows were brought back.
    """
    rehydration = REHYDRATIONS.find(lake, name)
    day = today or datetime.now(UTC).date()
    selected = _archives(lake.tables, rehydration, day)
    if needs_approval(selected, policies):
        if rehydration.approved is None:
            raise NotApprovedError(REHYDRATIONS, name, lake.config.approvals)
        require(lake, REHYDRATIONS, rehydration)
    existing = next((copy for copy in rehydrated_archives(lake.store) if copy.name == name), None)
    tables = dict.fromkeys(archive.table for archive in selected)
    versions = {table: as_read(latest(lake.tables, table), lake.contract(table)).stamp for table in tables}
    if existing is not None and existing.versions == versions:
        return existing
    opened = [(archive, *_open_archive(lake.store, archive)) for archive in selected]
    waiting = _request_cold_files(opened)
    deadline = time.monotonic() + wait_s
    while waiting and time.monotonic() < deadline:
        sleep(min(_POLL_S, wait_s))
        waiting = _request_cold_files(opened)
    if waiting:
        return WaitingFiles(waiting)
    remove(lake.store, name)
    mask = masking_on(lake, policies, day)
    files = [
        file
        for archive, place, manifest in opened
        for file in _copy_archive(lake, name, archive, place, manifest, mask)
    ]
    result = write_copies_record(lake.store, name, rehydration.until, versions, files)
    facts = {**rehydration.facts, "rows": result.rows, "versions": versions}
    audit.record(lake, by, DONE, name, None, facts, once=True, once_for=str(sorted(versions.items())))
    return result


def end(lake: "Lake", name: str, by: str) -> int:
    """Delete rehydrated rows before their day; return the number of deleted files."""
    deleted = remove(lake.store, REHYDRATIONS.find(lake, name).name)
    if deleted:
        audit.record(lake, by, ENDED, name)
    return deleted


def _archives(tables: "Tables", rehydration: Rehydration, day: date) -> list[Archive]:
    if rehydration.until <= day:
        raise RehydrationError(f"it was for until {rehydration.until}", where=rehydration.name, hint="propose it anew")
    by_name = every_archive(tables)
    missing = [name for name in rehydration.archives if name not in by_name or by_name[name].removed is not None]
    if missing:
        raise RehydrationError(f"{missing[0]} is archived no more", where=rehydration.name, hint="propose what is left")
    return [by_name[name] for name in rehydration.archives]


def needs_approval(selected: list[Archive], policies: "Policies") -> bool:
    """Return whether the policy requires an approval today, or required one when the rows were archived."""
    destinations = [rule.destination for rule in policies.rules if rule.destination is not None]
    restricted = {destination.to for destination in destinations if not destination.free}
    return any(archive.needs_approval or archive.uri in restricted for archive in selected)


def _open_archive(store: "Store", archive: Archive) -> tuple["Store", Manifest]:
    place = open_place(store, archive.uri)
    refuse_other(store, place)
    return place, read_manifest(place, archive.manifest_sha256)


def _request_cold_files(opened: "list[tuple[Archive, Store, Manifest]]") -> int:
    """Request the restore of all files in cold storage; return the number of files that cannot be read yet."""
    waiting = 0
    for _, place, manifest in opened:
        for file in manifest.files:
            path = place.path("tables", manifest.table, file.path)
            try:
                availability = look(place, path).availability
            except FileNotFoundError:
                raise ArchiveError("it is not there", where=path, hint="restore it from a backup") from None
            if availability is Availability.COLD:
                ask_for(place, path)
            waiting += availability is not Availability.YES
    return waiting


def _copy_archive(
    lake: "Lake",
    name: str,
    archive: Archive,
    place: "Store",
    manifest: Manifest,
    mask: "Callable[[Contract, date, pa.Table], pa.Table]",
) -> Iterator[DataFile]:
    """Write an archive's rows beside the tables, under today's contract and with due masks."""
    refuse_unsound(place, manifest)
    target = as_read(latest(lake.tables, archive.table), lake.contract(archive.table))
    for file in manifest.table_files.to_pylist():
        rows = mask(target, archive.partition_date, current_rows(place, manifest, file, lake))
        if rows.num_rows:
            yield write_partition(place_of(lake.store, name), target, rows, archive.partition_date, 0)


def current_rows(place: "Store", manifest: Manifest, file: dict[str, object], lake: "Lake") -> pa.Table:
    """Return the rows of an archived file, migrated to the names, types and units of today's contract."""
    target = as_read(latest(lake.tables, manifest.table), lake.contract(manifest.table))
    rows = stored_rows(Tables(place), manifest.table, file)
    return upgrade_rows(rows, target, manifest.contract_version, manifest.added_version)


def masking_on(lake: "Lake", policies: "Policies", as_of: date) -> Callable[["Contract", date, pa.Table], pa.Table]:
    """Return a function that masks rows of a table and date by the rules and legal holds of a day.

    The function raises `PolicyError` if columns are hashed and the key is missing.
    """
    holds = holds_of(lake, as_of)
    runs = run_facts(lake.tables, [*policies.rules, *(hold.rule for hold in holds)])

    def mask(contract: "Contract", day: date, rows: pa.Table) -> pa.Table:
        masks = Masks(lake, contract, policies.rules, ())
        if not masks.columns:
            return rows
        for name in masks.columns.keys() & set(rows.column_names):
            index, field = rows.schema.get_field_index(name), rows.schema.field(name)
            if pa.types.is_dictionary(field.type):  # a dictionary keeps the unmasked values
                rows = rows.set_column(index, name, rows[name].cast(field.type.value_type))
        return masks.applied_to(rows, by_day(Parts(lake, contract, masks.rules, (), runs), holds)(day), day, as_of)

    return mask
