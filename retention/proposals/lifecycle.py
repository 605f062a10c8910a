"""Approves and applies proposals. One person approves, another applies; the application is one numbered plan.

After a crash the next call for the same proposal continues. Each audit row is written once, and any process that finds
an unfinished plan finishes it.
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
"""Approves a proposal of one kind. Returns the proposal, and whether this call approved it."""


class ApprovalOptions(TypedDict, total=False):
    """Options of `approve`.

    Attributes
    ----------
    single_operator
        Whether the proposer may approve. Refused if the lake requires signatures.
    signing
        The key or signed statement, if the lake requires signatures.
    """

    single_operator: bool
    signing: Signing


class WritePlan(Protocol):
    """Writes the plan that applies a proposal that was just checked."""

    def __call__(self, number: int, *, alone: bool) -> "Plan":
        """Return the plan with this number after its files are written; `alone` if one person approved and applies."""


def propose(lake: "Lake", kind: ProposalKind[AnyProposal], name: str, by: str, signing: Signing = NOT_SIGNING) -> bool:
    """Record an author of a proposal in the audit log; return False if that person is recorded already.

    A proposal may have several authors, since equal items are one proposal. No author may approve it. Raises the same
    errors as `approve`.
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
    """Return the text to sign for a step. Raises the errors of `ProposalKind.find`."""
    return statement_of(lake, _approval_subject(kind, kind.find(lake, name)), step, by, reason).text


def standing(lake: "Lake", kind: ProposalKind[AnyProposal], proposal: AnyProposal) -> ApprovalStatus:
    """Return which approvals of a proposal count now, and which are missing."""
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
    """Approve a proposal. Return the proposal, and whether this call changed anything.

    Nothing changes if the proposal has all approvals, has one of this person, or is applied. The proposal becomes
    ``approved`` when it has all approvals that its risk requires (`ranklake.retention.proposals.approvals`).

    Parameters
    ----------
    by
        Name of the approver; see `ranklake.retention.proposals.identities.name_of`.
    single_operator
        Whether the proposer may approve. Refused if the lake requires signatures.
    signing
        The key or signed statement, if the lake requires signatures.

    Raises `UnknownProposalError`, `AlteredProposalError`, `ExpiredProposalError`, `VoidProposalError` and
    `SameOperatorError` of `ranklake.retention.proposals.proposals`, `DowngradeError`, and the errors of
    `ranklake.retention.proposals.identities.identify`.
    """
    proposal, trail = kind.find(lake, name), recorded_actions(lake.tables, kind)
    if proposal.applied is not None:
        return proposal, False
    if proposal.void_because:
        raise VoidProposalError(kind, name, proposal.void_because)
    _refuse_expired(kind, proposal)
    refuse_downgrade(lake, trail)
    status = approval_status(lake, kind, proposal, trail, clock.now())
    if status.lacking and not is_one_of(by, status.approvers):
        if is_one_of(by, status.authors) and not _may_act_alone(lake, single_operator=single_operator):
            raise SameOperatorError(name, "proposed", "approve", may_be_alone=not _is_signed(lake))
        who = identify(lake, _approval_subject(kind, proposal), APPROVE, by, reason, signing)
        note_mode(lake, trail, who.name)
        details, is_first = {**_facts(proposal), **who.details}, not trail.get(name, {}).get(kind.approve)
        once_for = who.signature or ("" if is_first else str(who.details["at"]))
        audit.record(lake, who.name, kind.approve, name, who.reason, details, once=True, once_for=once_for)
        has_changed, status = True, standing(lake, kind, proposal)
    else:
        has_changed = False
    if not status.lacking and proposal.approved is None:
        has_changed = kind.add_approval(lake, proposal, status.approvers[-1]) or has_changed
    return kind.find(lake, name), has_changed


def approving(kind: ProposalKind[AnyProposal]) -> Approve[AnyProposal]:
    """Return `approve` with its kind filled in."""

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
    """Apply an approved proposal by one numbered plan. Return the proposal, and whether this call applied it.

    Nothing changes if the proposal is applied already.

    Parameters
    ----------
    check
        Compares the proposal with the lake after all earlier plans are finished. Returns the function that writes the
        plan; raises `VoidProposalError` if the proposal no longer fits. The audit row is written between check and
        plan. If others wrote audit rows meanwhile, `check` runs again.
    single_operator
        Whether the approver may apply; the audit log then records it. Refused if the lake requires signatures.
    signing
        The key or signed statement, if the lake requires signatures.

    Raises
    ------
    UnknownProposalError, AlteredProposalError, ExpiredProposalError, NotApprovedError, SameOperatorError
        Nothing was changed.
    NoEvidenceError
        The audit log has no approval of these items. Nothing was changed.
    VoidProposalError
        The proposal no longer fits the lake. Nothing was changed.
    """
    proposal = kind.find(lake, name)
    if proposal.applied is None:
        _refuse_expired(kind, proposal)
        if proposal.approved is None:
            raise NotApprovedError(kind, name, lake.config.approvals, standing(lake, kind, proposal).lacking)
        status = require(lake, kind, proposal)
        alone = is_one_of(by, [*status.approvers, proposal.approver])
        if alone and not _may_act_alone(lake, single_operator=single_operator):
            raise SameOperatorError(name, "approved", "apply", may_be_alone=not _is_signed(lake))
        who = identify(lake, _approval_subject(kind, proposal), APPLY, by, None, signing)

        def compose(number: int) -> "Plan | None":
            if kind.find(lake, name).applied is not None:  # another process applied it
                return None
            checked_rows = audit.length(lake)
            write = check(proposal)
            facts = {**_facts(proposal), **_alone(alone), **who.details, "needed": status.needed.plain}
            note_mode(lake, recorded_actions(lake.tables, kind), who.name)
            row = audit.record(lake, by, kind.begin, name, who.reason, facts, once=True, once_for=who.signature)
            if row != checked_rows:  # audit rows written meanwhile, such as a legal hold, precede this application
                write = check(proposal)
            return write(number, alone=alone)

        _drive(lake, compose)
    result = kind.find(lake, name)
    if result.applied is None:  # another plan changed the same files between check and plan
        raise VoidProposalError(kind, name, "the lake moved on")
    details = {"plan": result.plan, **result.outcome, **_alone(result.single_operator)}
    audit.record(lake, by, kind.applied, name, None, details, once=True)
    return result, proposal.applied is None


def _drive(lake: "Lake", compose: "Callable[[int], Plan | None]") -> None:
    """Drive the lake's plans. If composing failed while another process wrote the same plan number, try again."""
    number = 0  # plans count from 1

    def compose_numbered(next_number: int) -> "Plan | None":
        nonlocal number
        number = next_number
        return compose(next_number)

    while True:
        number = 0
        try:
            drive(lake, compose_numbered, InProcess())
        except RanklakeError:
            if not number or read_plan(lake.store, number) is None:
                raise
        else:
            return


def _refuse_expired(kind: AnyKind, proposal: Proposal) -> None:
    if proposal.expires is not None and proposal.expires <= clock.now():
        raise ExpiredProposalError(kind, proposal.name, proposal.expires)


def _facts(proposal: Proposal) -> dict[str, Any]:
    """Return the details of a proposal's audit rows."""
    return {**proposal.facts, DIGEST: proposal.items_sha256}


def _approval_subject(kind: AnyKind, proposal: Proposal) -> SignedSubject:
    return SignedSubject(kind.action, proposal.name, proposal.items_sha256)


def _alone(alone: bool) -> dict[str, bool]:
    return {"single_operator": True} if alone else {}


def _may_act_alone(lake: "Lake", *, single_operator: bool) -> bool:
    """Return whether one person may do two steps. Raises `RanklakeError` if the lake requires signatures."""
    if single_operator and _is_signed(lake):
        message = "--single-operator is for lakes of one person, and this one takes signatures of several"
        raise RanklakeError(message, hint="have another person do it")
    return single_operator


def _is_signed(lake: "Lake") -> bool:
    return lake.config.approvals.mode == SIGNED
