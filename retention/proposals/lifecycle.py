"""Approves and applies proposals: one person approves, another applies, as one numbered plan.

Killed half-way, the next call for the same proposal goes on: rows of the audit log are written once, and whoever finds
a plan that was written finishes it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.audit import trail as audit
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake_config import SIGNED
from ranklake.retention.proposals.approvals import (
    ApprovalStatus,
    approval_status,
    is_one_of,
    note_mode,
    refuse_downgrade,
    require,
)
from ranklake.retention.proposals.identities import (
    APPLY,
    APPROVE,
    DIGEST,
    NOT_SIGNING,
    PROPOSE,
    SignedSubject,
    Signing,
    identify,
    statement_of,
)
from ranklake.retention.proposals.proposals import (
    AnyKind,
    AnyProposal,
    ExpiredProposalError,
    NotApprovedError,
    Proposal,
    ProposalKind,
    SameOperatorError,
    VoidProposalError,
    recorded_actions,
)

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake


Approve = Callable[..., tuple[AnyProposal, bool]]
"""Approves a proposal of one kind; returns it, and whether this call did it."""


class ApprovalOptions(TypedDict, total=False):
    """Options of `approve`.

    Attributes
    ----------
    single_operator
        Whether who proposed it may approve it; not where approvals are signed.
    signing
        What signs, where approvals are signed.
    """

    single_operator: bool
    signing: Signing


class WritePlan(Protocol):
    """Writes what applies a proposal, which was checked just before."""

    def __call__(self, number: int, *, alone: bool) -> "Plan":
        """Return the plan of a number, its files written; `alone` if one person approved and applies."""


def propose(lake: "Lake", kind: ProposalKind[AnyProposal], name: str, by: str, signing: Signing = NOT_SIGNING) -> bool:
    """Write into the trail who is the author of a proposal; False if it says so already.

    Equal items are one proposal, which may have several authors; none of them approves it. Raises what `approve` does.
    """
    proposal, trail = kind.find(lake, name), recorded_actions(lake.tables, kind)
    refuse_downgrade(lake, trail)
    if is_one_of(by, approval_status(lake, kind, proposal, trail, clock.now()).authors):
        return False
    who = identify(lake, _approval_subject(kind, proposal), PROPOSE, by, None, signing)
    note_mode(lake, trail, who.name)
    audit.record(lake, who.name, kind.propose, name, who.reason, {**_facts(proposal), **who.details})
    return True


def statement(
    lake: "Lake", kind: ProposalKind[AnyProposal], name: str, step: str, by: str, reason: str | None = None
) -> str:
    """Return the text that somebody would sign for a step. Raises what finding the proposal does."""
    return statement_of(lake, _approval_subject(kind, kind.find(lake, name)), step, by, reason).text


def standing(lake: "Lake", kind: ProposalKind[AnyProposal], proposal: AnyProposal) -> ApprovalStatus:
    """Return whose approvals of a proposal count now, and what is lacking."""
    return approval_status(lake, kind, proposal, recorded_actions(lake.tables, kind), clock.now())


def approve(
    lake: "Lake",
    kind: ProposalKind[AnyProposal],
    name: str,
    by: str,
    reason: str | None = None,
    *,
    single_operator: bool = False,
    signing: Signing = NOT_SIGNING,
) -> tuple[AnyProposal, bool]:
    """Approve a proposal; return it, and whether this call did it.

    One that was approved enough, by this person, or applied already is left as it is. It is ``approved`` once all have
    approved whom its risk takes (`ranklake.retention.proposals.approvals`).

    Parameters
    ----------
    by
        Who; see `ranklake.retention.proposals.identities.name_of`.
    single_operator
        Whether who proposed it may approve it; not where approvals are signed.
    signing
        What signs, where approvals are signed.

    Raises `UnknownProposalError`, `AlteredProposalError`, `ExpiredProposalError`, `VoidProposalError` and
    `SameOperatorError` of `ranklake.retention.proposals.proposals`, `DowngradeError`, and what
    `ranklake.retention.proposals.identities.identify` does.
    """
    proposal, trail = kind.find(lake, name), recorded_actions(lake.tables, kind)
    if proposal.applied is not None:
        return proposal, False
    if proposal.void_because:
        raise VoidProposalError(kind, name, proposal.void_because)
    _refuse_expired(kind, proposal)
    refuse_downgrade(lake, trail)
    now = approval_status(lake, kind, proposal, trail, clock.now())
    if now.lacking and not is_one_of(by, now.approvers):
        if is_one_of(by, now.authors) and not _alone_may(lake, single_operator=single_operator):
            raise SameOperatorError(name, "proposed", "approve", may_be_alone=_is_lax(lake))
        who = identify(lake, _approval_subject(kind, proposal), APPROVE, by, reason, signing)
        note_mode(lake, trail, who.name)
        details, first = {**_facts(proposal), **who.details}, not trail.get(name, {}).get(kind.approve)
        once_for = who.signature or ("" if first else str(who.details["at"]))
        audit.record(lake, who.name, kind.approve, name, who.reason, details, once=True, once_for=once_for)
        fresh, now = True, standing(lake, kind, proposal)
    else:
        fresh = False
    if not now.lacking and proposal.approved is None:
        fresh = kind.add_approval(lake, proposal, now.approvers[-1]) or fresh
    return kind.find(lake, name), fresh


def approving(kind: ProposalKind[AnyProposal]) -> Approve[AnyProposal]:
    """Return `approve` of one kind, for the room that has it."""

    def of_kind(
        lake: "Lake", name: str, /, by: str, reason: str | None = None, **options: Unpack[ApprovalOptions]
    ) -> tuple[AnyProposal, bool]:
        return approve(lake, kind, name, by, reason, **options)

    return of_kind


def apply(
    lake: "Lake",
    kind: ProposalKind[AnyProposal],
    name: str,
    by: str,
    check: Callable[[AnyProposal], WritePlan],
    *,
    single_operator: bool = False,
    signing: Signing = NOT_SIGNING,
) -> tuple[AnyProposal, bool]:
    """Apply an approved proposal by one numbered plan; return it, and whether this call did it.

    One that was applied already is left as it is.

    Parameters
    ----------
    check
        Holds the proposal against the lake as it is, when all earlier plans are finished; raises `VoidProposalError`
        where it does not fit any more, else returns what writes the plan. In between the trail gets its row; where
        others wrote there since the look, it is asked again.
    single_operator
        Whether who approved it may apply it; the trail then says so. Not where approvals are signed.
    signing
        What signs, where approvals are signed.

    Raises
    ------
    UnknownProposalError, AlteredProposalError, ExpiredProposalError, NotApprovedError, SameOperatorError
        Nothing was changed.
    NoEvidenceError
        The audit trail does not say that it was approved as it is. Nothing was changed.
    VoidProposalError
        It does not fit the lake any more. Nothing was changed.
    """
    proposal = kind.find(lake, name)
    if proposal.applied is None:
        _refuse_expired(kind, proposal)
        if proposal.approved is None:
            raise NotApprovedError(kind, name, lake.config.approvals, standing(lake, kind, proposal).lacking)
        held = require(lake, kind, proposal)
        alone = is_one_of(by, [*held.approvers, proposal.approver])
        if alone and not _alone_may(lake, single_operator=single_operator):
            raise SameOperatorError(name, "approved", "apply", may_be_alone=_is_lax(lake))
        who = identify(lake, _approval_subject(kind, proposal), APPLY, by, None, signing)

        def compose(number: int) -> "Plan | None":
            if kind.find(lake, name).applied is not None:  # another driver was at it
                return None
            seen = audit.length(lake)
            write = check(proposal)
            facts = {**_facts(proposal), **_alone(alone), **who.details, "needed": held.needed.plain}
            note_mode(lake, recorded_actions(lake.tables, kind), who.name)
            row = audit.record(lake, by, kind.begin, name, who.reason, facts, once=True, once_for=who.signature)
            if row != seen:  # what was recorded since, such as a legal hold, comes before this application
                write = check(proposal)
            return write(number, alone=alone)

        _drive(lake, compose)
    done = kind.find(lake, name)
    if done.applied is None:  # some other plan took what it is about between our look and our try
        raise VoidProposalError(kind, name, "the lake moved on")
    details = {"plan": done.plan, **done.outcome, **_alone(done.single_operator)}
    audit.record(lake, by, kind.applied, name, None, details, once=True)
    return done, proposal.applied is None


def _drive(lake: "Lake", compose: "Callable[[int], Plan | None]") -> None:
    """Drive; whoever finds the lake unfit because another carries out a plan just then looks again after that."""
    number = 0  # plans count from 1

    def noted(free: int) -> "Plan | None":
        nonlocal number
        number = free
        return compose(free)

    while True:
        number = 0
        try:
            drive(lake, noted, InProcess())
        except RanklakeError:
            if not number or read_plan(lake.store, number) is None:
                raise
        else:
            return


def _refuse_expired(kind: AnyKind, proposal: Proposal) -> None:
    if proposal.expires is not None and proposal.expires <= clock.now():
        raise ExpiredProposalError(kind, proposal.name, proposal.expires)


def _facts(proposal: Proposal) -> dict[str, Any]:
    """Return what the trail says of a proposal."""
    return {**proposal.facts, DIGEST: proposal.items_sha256}


def _approval_subject(kind: AnyKind, proposal: Proposal) -> SignedSubject:
    return SignedSubject(kind.action, proposal.name, proposal.items_sha256)


def _alone(alone: bool) -> dict[str, bool]:
    return {"single_operator": True} if alone else {}


def _alone_may(lake: "Lake", *, single_operator: bool) -> bool:
    """Return whether one person may do two steps. Raises `RanklakeError` in a lake with signatures."""
    if single_operator and not _is_lax(lake):
        message = "--single-operator is for lakes of one person, and this one takes signatures of several"
        raise RanklakeError(message, hint="have another person do it")
    return single_operator


def _is_lax(lake: "Lake") -> bool:
    return lake.config.approvals.mode != SIGNED
