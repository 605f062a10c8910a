"""Applies an erasure: one numbered plan removes rows, then all other traces are removed and everything is searched.

    approved? same subject? same rows? ─▶ audit row (begun) ─▶ one numbered plan: rows out of tables, names out of
        ``segments``, raw bytes, the register's row, fences ─▶ rows that rollups added in between ─▶ shares, keys, logs,
        plans, old versions, hints, spool, folders, copied artifacts ─▶ a search of every file
        ─▶ a certificate, named by its digest ─▶ audit row

After a crash the next call for the same erasure continues. Any process that finds the unfinished plan finishes it, and
the later steps are repeated until the search finds nothing.
"""

from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.lake.audit import trail as audit
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.action_plan import QUARANTINED
from ranklake.lake.plans.kinds import ERASURE
from ranklake.lake.plans.plan import row_files
from ranklake.lake.plans.rules import REPLACED
from ranklake.lake.store.files import delete
from ranklake.lake.store.governance import RAW as QUARANTINE
from ranklake.lake.store.scratch import sweep
from ranklake.lake.tables.commit import LostRaceError, number_of, swap
from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.copies import sweep_copies
from ranklake.retention.erasure.archived import matching_kept_files, rewrite_kept_files
from ranklake.retention.erasure.certificate import Certificate, certify
from ranklake.retention.erasure.places import DELETED, FORGOTTEN, PlaceResult, erase_files, erase_versions
from ranklake.retention.erasure.plan import (
    PLACE,
    SubjectMatches,
    find,
    forget_keys,
    member_check,
    plan_items,
    refuse_unfit,
)
from ranklake.retention.erasure.search import COPIED
from ranklake.retention.erasure.subject import (
    DatedRows,
    OtherSubjectError,
    Reach,
    files_with_left_words,
    rewrite_files,
    rewrite_partition,
    subject_rows,
)
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.erasures import (
    CERTIFIED,
    ERASURES,
    NAMES,
    RAW,
    REGISTER,
    ROWS,
    TABLE,
    Erasure,
    Item,
    remaining_items,
)
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.proposals.proposals import VoidProposalError
from ranklake.retention.proposals.registers import with_time
from ranklake.retention.shares.sharing import withdraw

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.tables.live_files import DataFile
    from ranklake.retention.erasure.subject import Subject
    from ranklake.retention.proposals.lifecycle import WritePlan


SCRATCH: Final = "scratch of processes that died"


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """Result of `apply`.

    Attributes
    ----------
    is_fresh
        Whether this call applied the erasure. If an earlier call did, this one only removed the rest.
    places
        Number of changed files by place, without files of live rows.
    """

    erasure: Erasure
    is_fresh: bool
    places: tuple[PlaceResult, ...]
    certificate: Certificate


approve = lifecycle.approving(ERASURES)
"""Approves an erasure; see `ranklake.retention.proposals.lifecycle.approve`."""


def apply(
    reach: Reach,
    name: str,
    subject: "Subject",
    by: str,
    *,
    today: date | None = None,
    single_operator: bool = False,
    signing: Signing = NOT_SIGNING,
    progress: "Progress | None" = None,
) -> ErasureResult:
    """Apply an approved erasure, search everything again, and write a certificate. Can be called again.

    Raises
    ------
    OtherSubjectError
        The values are not those of the erasure. Nothing was changed.
    ranklake.retention.proposals.proposals.VoidProposalError
        The subject has other rows than were approved. Nothing was changed.
    HeldError, NotIngestedError
        The subject may not be erased now. Nothing was changed.

    Also raises the errors of `ranklake.retention.proposals.lifecycle.apply`.
    """
    lake = reach.lake
    proposal = ERASURES.find(lake, name)
    if proposal.subject_sha256 != subject.sha256:
        hint = "give the values that it was planned with, all of them, and the same --column, or plan again"
        raise OtherSubjectError("these values are not those of this erasure", where=name, hint=hint)

    def check(erasure: Erasure) -> "WritePlan":
        matches = find(reach, subject)
        refuse_unfit(reach, subject, matches, today)
        _refuse_changed(lake, erasure, matches)
        return partial(_write, lake, erasure, subject, by, matches)

    erasure, is_fresh = lifecycle.apply(
        lake, ERASURES, name, by, check, single_operator=single_operator, signing=signing
    )
    settle(lake, subject)
    withdraw(lake.store)
    has_subject = member_check(lake, subject)
    keys = forget_keys(lake, subject)
    places = [PlaceResult(PLACE, FORGOTTEN, keys)] if keys else []
    if scratch_files := sweep():
        places.append(PlaceResult(SCRATCH, DELETED, len(scratch_files)))
    places += erase_files(reach, subject, reach.search(subject), has_subject, erasure.name)
    if copies := sweep_copies(lake, with_scratch=True):
        places.append(PlaceResult(COPIED, DELETED, copies))
    places += erase_versions(reach, subject)
    certificate = certify(reach, subject, erasure, places, progress=progress)
    details = {"certificate": certificate.name, "is_clean": certificate.is_clean}
    audit.record(lake, by, CERTIFIED, name, None, details, once=True, once_for=certificate.name)
    return ErasureResult(erasure, is_fresh, tuple(places), certificate)


def _refuse_changed(lake: "Lake", erasure: Erasure, matches: SubjectMatches) -> None:
    """Raise `VoidProposalError` if the subject has other rows or raw bytes than were approved."""
    approved_items = {_place(item): item for item in erasure.of(ROWS, NAMES, RAW)}
    current_items = {_place(item): item for item in plan_items(lake.catalog, matches)}
    for item in remaining_items(lake.store, erasure):
        if _place(item) not in current_items:
            raise _void(erasure, item, f"has no rows of this subject any more, and {item.rows:,} were planned")
    for item in current_items.values():
        approved = approved_items.get(_place(item))
        if approved is None:
            raise _void(erasure, item, "has rows of this subject that were not there when it was planned")
        if approved.content_sha256 != item.content_sha256:
            message = f"has {item.rows:,} rows of this subject, and other {approved.rows:,} were planned"
            raise _void(erasure, item, message)


def _place(item: Item) -> tuple[str, str | None, date | None, str | None]:
    return item.place, item.table, item.partition_date, item.about


def _void(erasure: Erasure, item: Item, what: str) -> VoidProposalError:
    return VoidProposalError(ERASURES, erasure.name, what, f"{item.table} {item.partition_date}")


def _write(
    lake: "Lake", erasure: Erasure, subject: "Subject", by: str, matches: SubjectMatches, number: int, *, alone: bool
) -> "Plan":
    """Write the files of the numbered plan that applies an erasure, and return the plan."""
    drop: dict[str, list[pa.Table]] = {}
    live: dict[str, list[pa.Table]] = {}
    new: list[DataFile] = []
    for dated in matches.rows:
        table = dated.item.table or ""
        drop.setdefault(table, []).append(dated.files)
        live.setdefault(table, []).append(dated.live)
        new += rewrite_partition(lake, subject, dated, number)
    for table, paths in files_with_left_words(lake, matches.files).items():
        dropped_paths = {path for files in drop.get(table, ()) for path in files["path"].to_pylist()}
        old, of_dates, rewritten = rewrite_files(lake, table, sorted(set(paths) - dropped_paths), number)
        if old.num_rows:
            drop.setdefault(table, []).append(old)
            live.setdefault(table, []).append(of_dates)
            new += rewritten
    row = REGISTER.head_row(erasure, "application", by, number, single_operator=alone)
    new += row_files(lake.store, TABLE, with_time([row]), number)
    raw: dict[str, dict[str, list[str]]] = {}
    for item in matches.raw:
        by_date = raw.setdefault(f"{QUARANTINE}{item.table}", {})
        by_date.setdefault(str(item.partition_date), []).append(item.about or "")
    remove, retained = (
        {table: pa.concat_tables(files, promote_options="default") for table, files in side.items()}
        for side in (drop, live)
    )
    replaced = rewrite_kept_files(lake, subject, list(matching_kept_files(lake.tables, matches.files)), number)
    facts = {"erasure": erasure.name, QUARANTINED: raw, **({REPLACED: replaced} if replaced else {})}
    return action_plan.compose(number, ERASURE.name, add=new, remove=remove, live=retained, purge=True, facts=facts)


def settle(lake: "Lake", subject: "Subject") -> None:
    """Remove the subject's rows from derived tables after the plan of the erasure, since a rollup may have added some.

    A second call changes nothing, and continues after a crash. Raises the errors of the stores.
    """
    for contract in lake.contracts().values():
        while contract.kind == "derived" and (matching := list(subject_rows(lake.tables, subject, contract))):
            for dated in matching:
                _remove_derived(lake, subject, dated)


def _remove_derived(lake: "Lake", subject: "Subject", dated: DatedRows) -> None:
    """Replace the files of a date without the subject's rows. Changes nothing if a rollup replaced the files first."""
    table = dated.item.table or ""
    handle = delta_table(lake.store, table)
    unused = dated.files["path"].to_pylist()
    if handle is None or not live_paths(handle).issuperset(unused):
        return
    number = number_of(handle) + 1
    new = rewrite_partition(lake, subject, dated, number)
    try:
        swap(handle, number, add=new, remove=dated.files)
    except LostRaceError:
        unused = [file.path for file in new]
    for path in unused:
        delete(lake.store, lake.path("tables", table, path))
