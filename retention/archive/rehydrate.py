"""Brings archived rows back: files verified, rows taken through the migrations since, until a day.

    approved? ─▶ every file at hand, and what was written ─▶ migrations since ─▶ masks that came due since
        ─▶ files beside tables ─▶ record: from then on they can be asked for ─▶ audit row

Nothing of it is a row of a table: ledger, checks and rollups stay as they are. Killed half-way, the next call begins
again; what no record names nobody sees.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.audit import trail as audit
from ranklake.lake.migrations.rewriting import stored_rows
from ranklake.lake.migrations.upgrading import upgrade_rows
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import DataFile
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.manifest import Manifest, read_manifest, refuse_unsound
from ranklake.retention.archive.place import ArchiveError, Availability, ask_for, look, open_place, refuse_other
from ranklake.retention.archive.register import Archive, every_archive
from ranklake.retention.archive.rehydrated import RehydratedArchive, place_of, rehydrated_archives, remove, write_down
from ranklake.retention.archive.rehydration import REHYDRATIONS, Rehydration, RehydrationError
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.plans.due import by_day
from ranklake.retention.plans.masks import Masks
from ranklake.retention.policies.parts import Parts, run_facts
from ranklake.retention.proposals.approvals import require
from ranklake.retention.proposals.proposals import NotApprovedError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.retention.policies.policies import Policies


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
    done = write_down(lake.store, name, rehydration.until, versions, made)
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
