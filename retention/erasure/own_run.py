"""Deletes a run for who started it: one command, by the same plan, audit rows and certificate as any erasure.

    recorded accounts of the run = who calls? ─▶ allowed here? ─▶ proposed ─▶ approved ─▶ applied, by one person

Killed half-way, the next call goes on. Where another person has to approve, the proposal is left for them.
"""

import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.ingest.index_summary import not_taken_in
from ranklake.lake.plans.driver import finish
from ranklake.lake.plans.kinds import ERASURE
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake_config import COMMAND, SIGNED
from ranklake.printable import counted
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.certificate import Certificate, certificates
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import subject_of
from ranklake.retention.proposals.approvals import is_one_of
from ranklake.retention.proposals.erasures import ERASURES, Erasure
from ranklake.retention.proposals.identities import account, account_by
from ranklake.retention.subjects.store import has_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.lake import Lake
    from ranklake.retention.erasure.subject import Reach

REASON: Final = "deletes a run of their own"
_SEGMENTS: Final = "SELECT 1 AS one FROM segments WHERE run = $run AND rows_stored > 0 LIMIT 1"
_OWNERS: Final = "SELECT DISTINCT {user} AS name FROM runs WHERE run = $run"


class NotOwnRunError(RanklakeError):
    """The run is of somebody else, or nobody knows of whom, or deleting one's own is forbidden. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class OwnRunDeletion:
    """What a deletion did.

    Attributes
    ----------
    erasure
        The proposal.
    certificate
        What was searched and found afterwards; None where another person has to approve first.
    is_fresh
        Whether this call applied it.
    """

    erasure: Erasure
    certificate: Certificate | None
    is_fresh: bool


def caller(lake: "Lake") -> str:
    """Return the account that calls: the helper's word where the lake has one, else the owner of this process.

    No variable of the environment decides. Raises `NotOwnRunError` where the account has no name here.
    """
    if lake.config.approvals.mode == COMMAND:
        return account_by(lake.config.approvals)
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        hint = "add it to the machine's accounts, or configure [approvals] identity"
        raise NotOwnRunError(f"account {os.geteuid()} has no name here", hint=hint) from None


def delete_own_run(
    reach: "Reach",
    run: str,
    *,
    confirm: "Callable[[Erasure], None]" = lambda _: None,
    progress: "Progress | None" = None,
) -> OwnRunDeletion:
    """Delete a run, by its whole name, for the account that started it. Can be called again.

    Parameters
    ----------
    confirm
        Called with what goes before anything does; raises to leave all as it is.

    Raises
    ------
    NotOwnRunError
        See there.
    ranklake.retention.erasure.archived.HeldError
        A legal hold is about it. Nothing was changed.

    Raises also what `ranklake.retention.erasure.plan.make_plan` and `ranklake.retention.erasure.apply.apply` do.
    """
    lake = reach.lake
    finish(lake, ERASURE, InProcess())  # of a call that died
    subject = subject_of(lake, (), run)
    user = 'unsealed("user")' if has_keys(lake) else '"user"'
    owners = query(lake, _OWNERS.format(user=user), {"run": run})["name"].to_pylist()
    if not owners and (before := _applied_before(lake, subject.sha256)) is not None:
        if (known := certificates(lake.store, before.name)) and known[-1].is_clean:
            return OwnRunDeletion(before, known[-1], is_fresh=False)
        done = apply(reach, before.name, subject, account(lake), single_operator=True, progress=progress)
        return OwnRunDeletion(done.erasure, done.certificate, done.is_fresh)
    _refuse_others(reach, run, owners)
    made = make_plan(reach, subject, progress=progress)
    confirm(made)
    section, by = lake.config.approvals, caller(lake)
    propose(lake, made, by)
    if section.own_runs == "allow":
        made, _ = approve(lake, made.name, by, REASON, single_operator=True)
    if ERASURES.find(lake, made.name).approved is None:
        return OwnRunDeletion(made, None, is_fresh=False)
    done = apply(reach, made.name, subject, by, single_operator=True, progress=progress)
    return OwnRunDeletion(done.erasure, done.certificate, done.is_fresh)


def _applied_before(lake: "Lake", subject_sha256: str) -> Erasure | None:
    """Return the last erasure of a subject that was applied."""
    every = [erasure for erasure in ERASURES.register(lake).values() if erasure.subject_sha256 == subject_sha256]
    applied = [erasure for erasure in every if erasure.applied is not None]
    return max(applied, key=lambda erasure: str(erasure.applied), default=None)


def _refuse_unknown(reach: "Reach", run: str, others: str) -> None:
    """Raise `NotOwnRunError` for a run without an account in the lake: it is on its way, ownerless, or there is none.

    Raises also `ranklake.lake.store.reachability.LakeUnreachableError` where the spool cannot be listed.
    """
    spools = [spool for spool in (reach.spool, reach.spool and reach.spool.fallback) if spool is not None]
    spooled = [item for spool in spools for item in spool.listing() if item.name is not None and item.name.run == run]
    if waiting := sum(map(len, not_taken_in(reach.lake.store, spooled))):
        flaw = f"{counted(waiting, 'segment')} of it in the spool {'is' if waiting == 1 else 'are'} not ingested yet"
        raise NotOwnRunError(flaw, where=run, hint="run 'ranklake ingest', then delete it")
    if query(reach.lake, _SEGMENTS, {"run": run}).num_rows:
        hint = f"propose it, and have somebody approve: {others}"
        raise NotOwnRunError("no row of runs says who started it", where=run, hint=hint)
    raise NotOwnRunError("no such run is in the lake", where=run, hint="name it whole; 'ranklake runs' lists them")


def _refuse_others(reach: "Reach", run: str, owners: list[str | None]) -> None:
    """Raise `NotOwnRunError` unless a run has one recorded account, that account calls, and the lake allows it."""
    lake, others = reach.lake, f"ranklake erase plan --run {run}"
    if lake.config.approvals.own_runs == "forbid":
        hint = f"propose it, and have it approved: {others}"
        raise NotOwnRunError('nobody deletes runs of their own here: own_runs = "forbid"', where=run, hint=hint)
    if lake.config.approvals.mode == SIGNED:
        raise NotOwnRunError("this lake takes signatures of several people", where=run, hint=f"propose it: {others}")
    if not owners:
        _refuse_unknown(reach, run, others)
    if None in owners or not all(is_one_of(caller(lake), [owner]) for owner in owners):
        why = "nobody recorded who started it" if None in owners else "another account started it"
        raise NotOwnRunError(why, where=run, hint=f"propose it, and have somebody approve: {others}")
