"""Applies an erasure: rows go by one numbered plan, then every other trace; then everything is searched again.

    approved? same subject? same rows? ─▶ audit row (begun) ─▶ one numbered plan: rows out of tables, names out of
        ``segments``, raw bytes, the register's row, fences ─▶ what rollups brought meanwhile ─▶ shares, keys, logs,
        plans, old versions, hints, spool, folders, copied artifacts ─▶ a search of every file
        ─▶ a certificate, named by its digest ─▶ audit row

Killed half-way, the next call for the same erasure goes on: whoever finds the plan finishes it, and what comes after is
done again until the search finds nothing.
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
from ranklake.retention.erasure.archived import kept_hits, rewrite_archives
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
    rewrite_partition,
    subject_rows,
    written_anew,
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
    """What applying an erasure did.

    Attributes
    ----------
    is_fresh
        Whether this call applied the erasure; else an earlier call did, and this one only removed what was left.
    places
        Files outside of live rows that were changed, by place.
    """

    erasure: Erasure
    is_fresh: bool
    places: tuple[PlaceResult, ...]
    certificate: Certificate


approve = lifecycle.approving(ERASURES)
"""Approves one; see `ranklake.retention.proposals.lifecycle.approve`."""


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
    """Erase what an approved erasure names, prove it, and return what was done. Can be called again.

    Raises
    ------
    OtherSubjectError
        The values are not those of the erasure. Nothing was changed.
    ranklake.retention.proposals.proposals.VoidProposalError
        The subject has other rows than were approved. Nothing was changed.
    HeldError, NotIngestedError
        Nothing may be erased (any more, or yet). Nothing was changed.

    Raises likewise what `ranklake.retention.proposals.lifecycle.apply` does.
    """
    lake = reach.lake
    proposal = ERASURES.find(lake, name)
    if proposal.subject_sha256 != subject.sha256:
        hint = "give the values that it was planned with, all of them, and the same --column, or plan again"
        raise OtherSubjectError("these values are not those of this erasure", where=name, hint=hint)

    def check(erasure: Erasure) -> "WritePlan":
        now = find(reach, subject)
        refuse_unfit(reach, subject, now, today)
        _refuse_other(lake, erasure, now)
        return partial(_write, lake, erasure, subject, by, now)

    erasure, is_fresh = lifecycle.apply(
        lake, ERASURES, name, by, check, single_operator=single_operator, signing=signing
    )
    settle(lake, subject)
    withdraw(lake.store)
    holds = member_check(lake, subject)
    keys = forget_keys(lake, subject)
    places = [PlaceResult(PLACE, FORGOTTEN, keys)] if keys else []
    if left := sweep():
        places.append(PlaceResult(SCRATCH, DELETED, len(left)))
    places += erase_files(reach, subject, reach.each(subject), holds, erasure.name)
    if copies := sweep_copies(lake, with_scratch=True):
        places.append(PlaceResult(COPIED, DELETED, copies))
    places += erase_versions(reach, subject)
    certificate = certify(reach, subject, erasure, places, progress=progress)
    details = {"certificate": certificate.name, "is_clean": certificate.is_clean}
    audit.record(lake, by, CERTIFIED, name, None, details, once=True, once_for=certificate.name)
    return ErasureResult(erasure, is_fresh, tuple(places), certificate)


def _refuse_other(lake: "Lake", erasure: Erasure, now: SubjectMatches) -> None:
    """Raise `VoidProposalError` where the subject has other rows, or raw bytes, than were approved."""
    approved = {_place(item): item for item in erasure.of(ROWS, NAMES, RAW)}
    there = {_place(item): item for item in plan_items(lake.catalog, now)}
    for item in remaining_items(lake.store, erasure):
        if _place(item) not in there:
            raise _void(erasure, item, f"has no rows of this subject any more, and {item.rows:,} were planned")
    for item in there.values():
        known = approved.get(_place(item))
        if known is None:
            raise _void(erasure, item, "has rows of this subject that were not there when it was planned")
        if known.content_sha256 != item.content_sha256:
            raise _void(erasure, item, f"has {item.rows:,} rows of this subject, and other {known.rows:,} were planned")


def _place(item: Item) -> tuple[str, str | None, date | None, str | None]:
    return item.place, item.table, item.partition_date, item.about


def _void(erasure: Erasure, item: Item, what: str) -> VoidProposalError:
    return VoidProposalError(ERASURES, erasure.name, what, f"{item.table} {item.partition_date}")


def _write(
    lake: "Lake", erasure: Erasure, subject: "Subject", by: str, now: SubjectMatches, number: int, *, alone: bool
) -> "Plan":
    drop: dict[str, list[pa.Table]] = {}
    live: dict[str, list[pa.Table]] = {}
    new: list[DataFile] = []
    for dated in now.rows:
        table = dated.item.table or ""
        drop.setdefault(table, []).append(dated.files)
        live.setdefault(table, []).append(dated.live)
        new += rewrite_partition(lake, subject, dated, number)
    for table, paths in files_with_left_words(lake, now.files).items():
        gone_already = {path for some in drop.get(table, ()) for path in some["path"].to_pylist()}
        old, of_dates, fresh = written_anew(lake, table, sorted(set(paths) - gone_already), number)
        if old.num_rows:
            drop.setdefault(table, []).append(old)
            live.setdefault(table, []).append(of_dates)
            new += fresh
    row = REGISTER.head_row(erasure, "application", by, number, single_operator=alone)
    new += row_files(lake.store, TABLE, with_time([row]), number)
    raw: dict[str, dict[str, list[str]]] = {}
    for item in now.raw:
        raw.setdefault(f"{QUARANTINE}{item.table}", {}).setdefault(str(item.partition_date), []).append(
            item.about or ""
        )
    gone, there = (
        {table: pa.concat_tables(some, promote_options="default") for table, some in side.items()}
        for side in (drop, live)
    )
    kept = rewrite_archives(lake, subject, list(kept_hits(lake.tables, now.files)), number)
    facts = {"erasure": erasure.name, QUARANTINED: raw, **({REPLACED: kept} if kept else {})}
    return action_plan.compose(number, ERASURE.name, add=new, remove=gone, live=there, purge=True, facts=facts)


def settle(lake: "Lake", subject: "Subject") -> None:
    """Take the subject's rows out of derived tables, after the plan of its erasure; again changes nothing.

    Raises what the stores raise. A process that dies half-way leaves what the next call finds.
    """
    for contract in lake.contracts().values():
        while contract.kind == "derived" and (matching := list(subject_rows(lake.tables, subject, contract))):
            for file_rows in matching:
                _take(lake, subject, file_rows)


def _take(lake: "Lake", subject: "Subject", dated: DatedRows) -> None:
    """Replace the files of a date that hold rows of the subject; leave it to the next look where a rollup did."""
    table = dated.item.table or ""
    handle = delta_table(lake.store, table)
    gone = dated.files["path"].to_pylist()
    if handle is None or not live_paths(handle).issuperset(gone):
        return
    number = number_of(handle) + 1
    new = rewrite_partition(lake, subject, dated, number)
    try:
        swap(handle, number, add=new, remove=dated.files)
    except LostRaceError:
        gone = [file.path for file in new]
    for path in gone:
        delete(lake.store, lake.path("tables", table, path))
