"""Rehydrations: archived rows come back for some days, proposed by one person and approved by another."""

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
from ranklake.retention.archive.rehydrated import write_down as write_down_copies
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
    """A rehydration that cannot be proposed, or carried out. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Rehydration(Proposal):
    """A proposal to bring archives back until a day."""

    archives: tuple[str, ...]
    until: date
    reason: str | None = None

    @property
    def items_sha256(self) -> str:
        """Digest of which archives come back, and until when."""
        return digest_of([*self.archives, self.until.isoformat()])

    @property
    def intact(self) -> bool:
        """Whether its name is that of its archives and its day."""
        return self.name == name_of(self.archives, self.until)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the trail says of it."""
        return {"archives": list(self.archives), "until": self.until.isoformat()}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """What the trail says when rows are back."""
        return self.facts

    @property
    def risk(self) -> Risk:
        """What it puts at stake: rows that were out of sight are seen again for some days; nothing goes."""
        return Risk(irreversible=False)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        moments = {"proposed": self.proposed, "approved": self.approved}
        times = {name: None if when is None else when.isoformat() for name, when in moments.items()}
        return {"rehydration": self.name, "state": self.state, **self.facts, **times}


def name_of(names: Iterable[str], until: date) -> str:
    """Return the name of the rehydration of some archives until a day."""
    return f"rh-{digest_of([*names, until.isoformat()])[:16]}"


def register(lake: "Lake") -> dict[str, Rehydration]:
    """Return every rehydration by name, oldest first, from the trail."""
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
    return {name: replace(one, approved=_approval_time(lake, one)) for name, one in rehydrations.items()}


def _approval_time(lake: "Lake", rehydration: Rehydration) -> datetime | None:
    """Return when enough people had approved it; None if they have not."""
    trail = recorded_actions(lake.tables, _KIND)
    steps = trail.get(rehydration.name, {}).get(_KIND.applied, [])
    enough = [
        step.ts
        for step in steps
        if rehydration.intact and not approval_status(lake, _KIND, rehydration, trail, step.ts).lacking
    ]
    return enough[0] if enough else None


def select_archives(tables: "Tables", table: str, first: date, last: date) -> list[Archive]:
    """Return the archives of a table in a range of dates. Raises `RehydrationError` where there are none."""
    every = archives(tables)
    selected = [one for one in every if one.table == table and first <= one.partition_date <= last]
    if not selected:
        known = sorted({one.table for one in every})
        hint = did_you_mean(table, known) if table not in known else "see 'ranklake retain archives list'"
        raise RehydrationError(
            f"nothing of {table} is archived from {first} to {last}", hint=hint or "nothing is archived"
        )
    return selected


def write_down(
    lake: "Lake",
    chosen_archives: Iterable[Archive],
    until: date,
    by: str,
    reason: str | None = None,
    today: date | None = None,
) -> Rehydration:
    """Write into the trail which archives would come back until a day; equal ones are one proposal.

    Raises `RehydrationError`. Its authors are those who propose it.
    """
    day = today or datetime.now(UTC).date()
    if not day < until <= day + timedelta(days=MOST_DAYS):
        hint = f"name a day to come, at most {MOST_DAYS} days from now"
        raise RehydrationError(f"rows cannot come back until {until}", where="--until", hint=hint)
    names = tuple(sorted(one.archive for one in chosen_archives))
    made = Rehydration(name_of(names, until), names, until)
    audit.record(lake, by, _PLANNED, made.name, reason, dict(made.facts), once=True)
    return REHYDRATIONS.find(lake, made.name)


def propose(lake: "Lake", rehydration: Rehydration, by: str, signing: Signing = NOT_SIGNING) -> None:
    """Write into the trail who proposed a rehydration, and so may not approve it."""
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
"""Rehydrations as proposals: `ranklake.retention.proposals.lifecycle` has them approved."""
_KIND: Final = REHYDRATIONS
approve = lifecycle.approving(REHYDRATIONS)
"""Approves one; see `ranklake.retention.proposals.lifecycle.approve`."""


DONE: Final = "rehydration.done"
ENDED: Final = "rehydration.ended"
_LOOK_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class WaitingFiles:
    """Files that a store was asked for, and that are not available yet."""

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
    """Bring back what an approved rehydration names; what is back already under today's contracts stays.

    Parameters
    ----------
    wait_s
        How long to wait for files that have to be asked for; they come within hours, and the next call goes on.

    Raises
    ------
    UnknownProposalError, AlteredProposalError, NotApprovedError, NoEvidenceError, RehydrationError
        Nothing was changed.
    ArchiveError
        An archive is not what was written. Nothing can be asked for that was not there before.
    """
    rehydration = REHYDRATIONS.find(lake, name)
    day = today or datetime.now(UTC).date()
    selected = _archives(lake.tables, rehydration, day)
    if needs_approval(selected, policies):
        if rehydration.approved is None:
            raise NotApprovedError(REHYDRATIONS, name, lake.config.approvals)
        require(lake, REHYDRATIONS, rehydration)
    known = next((one for one in rehydrated_archives(lake.store) if one.name == name), None)
    versions = {one.table: as_read(latest(lake.tables, one.table), lake.contract(one.table)).stamp for one in selected}
    if known is not None and known.versions == versions:
        return known
    opened = [(one, *_open_archive(lake.store, one)) for one in selected]
    waiting = _request_cold_files(opened)
    ends = time.monotonic() + wait_s
    while waiting and time.monotonic() < ends:
        sleep(min(_LOOK_EVERY_S, wait_s))
        waiting = _request_cold_files(opened)
    if waiting:
        return WaitingFiles(waiting)
    remove(lake.store, name)
    masked = masking_on(lake, policies, day)
    made = [file for one, place, manifest in opened for file in _brought_back(lake, name, one, place, manifest, masked)]
    done = write_down_copies(lake.store, name, rehydration.until, versions, made)
    facts = {**rehydration.facts, "rows": done.rows, "versions": versions}
    audit.record(lake, by, DONE, name, None, facts, once=True, once_for=str(sorted(versions.items())))
    return done


def end(lake: "Lake", name: str, by: str) -> int:
    """Take rows that are back away before their day; return how many files went."""
    gone = remove(lake.store, REHYDRATIONS.find(lake, name).name)
    if gone:
        audit.record(lake, by, ENDED, name)
    return gone


def _archives(tables: "Tables", rehydration: Rehydration, day: date) -> list[Archive]:
    if rehydration.until <= day:
        raise RehydrationError(f"it was for until {rehydration.until}", where=rehydration.name, hint="propose it anew")
    every = every_archive(tables)
    gone = [archive for archive in rehydration.archives if archive not in every or every[archive].removed is not None]
    if gone:
        raise RehydrationError(f"{gone[0]} is archived no more", where=rehydration.name, hint="propose what is left")
    return [every[one] for one in rehydration.archives]


def needs_approval(selected: list[Archive], policies: "Policies") -> bool:
    """Return whether the policy asked for an approval when the rows were archived, or asks for it today."""
    asking = {
        rule.destination.to for rule in policies.rules if rule.destination is not None and not rule.destination.free
    }
    return any(one.needs_approval or one.uri in asking for one in selected)


def _open_archive(store: "Store", archive: Archive) -> tuple["Store", Manifest]:
    place = open_place(store, archive.uri)
    refuse_other(store, place)
    return place, read_manifest(place, archive.manifest_sha256)


def _request_cold_files(opened: "list[tuple[Archive, Store, Manifest]]") -> int:
    """Ask for all files that are not available; return how many those are."""
    waiting = 0
    for _, place, manifest in opened:
        for file in manifest.files:
            path = place.path("tables", manifest.table, file.path)
            try:
                at_hand = look(place, path).at_hand
            except FileNotFoundError:
                raise ArchiveError("it is not there", where=path, hint="restore it from a backup") from None
            if at_hand is Availability.COLD:
                ask_for(place, path)
            waiting += at_hand is not Availability.YES
    return waiting


def _brought_back(
    lake: "Lake",
    name: str,
    archive: Archive,
    place: "Store",
    manifest: Manifest,
    masked: "Callable[[Contract, date, pa.Table], pa.Table]",
) -> Iterator[DataFile]:
    """Write an archive's rows beside the tables, as the table's contract has them now, and masked as is due now."""
    refuse_unsound(place, manifest)
    target = as_read(latest(lake.tables, archive.table), lake.contract(archive.table))
    for file in manifest.table_files.to_pylist():
        rows = masked(target, archive.partition_date, current_rows(place, manifest, file, lake))
        if rows.num_rows:
            yield write_partition(place_of(lake.store, name), target, rows, archive.partition_date, 0)


def current_rows(place: "Store", manifest: Manifest, file: dict[str, object], lake: "Lake") -> pa.Table:
    """Return the rows of an archived file under the names, types and units that its table has now."""
    target = as_read(latest(lake.tables, manifest.table), lake.contract(manifest.table))
    rows = stored_rows(Tables(place), manifest.table, file)
    return upgrade_rows(rows, target, manifest.contract_version, manifest.added_version)


def masking_on(lake: "Lake", policies: "Policies", as_of: date) -> Callable[["Contract", date, pa.Table], pa.Table]:
    """Return a function that masks rows of a table and date as rules and legal holds say on a day.

    What it returns raises `PolicyError` where columns are hashed and there is no key.
    """
    holds = holds_of(lake, as_of)
    runs = run_facts(lake.tables, [*policies.rules, *(hold.rule for hold in holds)])

    def masked(contract: "Contract", day: date, rows: pa.Table) -> pa.Table:
        masks = Masks(lake, contract, policies.rules, ())
        if not masks.columns:
            return rows
        for name in masks.columns.keys() & set(rows.column_names):
            at, field = rows.schema.get_field_index(name), rows.schema.field(name)
            if pa.types.is_dictionary(field.type):  # its words would stay where values go
                rows = rows.set_column(at, name, rows[name].cast(field.type.value_type))
        return masks.applied_to(rows, by_day(Parts(lake, contract, masks.rules, (), runs), holds)(day), day, as_of)

    return masked
