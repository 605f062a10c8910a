"""Approves and applies proposals: one person approves, another applies, as one numbered plan.

Whoever dies on the way leaves what the next call for the same proposal finishes: rows of the audit trail are written
once, and a plan that was written is finished by whoever finds it.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from ranklake.lake.audit import trail as audit
from ranklake.lake.governance.evidence import DIGEST, require
from ranklake.lake.governance.proposals import (
    AnyKind,
    ExpiredProposalError,
    NotApprovedError,
    Proposal,
    ProposalKind,
    SameOperatorError,
    Some,
    VoidProposalError,
)
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.workers import InProcess

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.storage.store import Lake


class WritePlan(Protocol):
    """Writes what applies a proposal, which was checked just before."""

    def __call__(self, number: int, *, alone: bool) -> "Plan":
        """Return the plan of a number, its files written; `alone` if one person approved and applies."""


def approve(
    lake: "Lake",
    kind: ProposalKind[Some],
    name: str,
    by: str,
    reason: str | None = None,
    *,
    single_operator: bool = False,
) -> tuple[Some, bool]:
    """Approve a proposal; return it, and whether this call did it.

    One that was approved or applied already is left as it is.

    Parameters
    ----------
    single_operator
        Whether who proposed it may approve it.

    Raises `UnknownProposalError`, `AlteredProposalError`, `ExpiredProposalError` and `SameOperatorError` of
    `ranklake.lake.governance.proposals`.
    """
    found = kind.find(lake, name)
    if found.approved is not None:
        return found, False
    _refuse_expired(kind, found)
    if _is_same(by, found.proposer) and not single_operator:
        raise SameOperatorError(name, "proposed", "approve")
    audit.record(lake, by, kind.approve, name, reason, _facts(found), once=True)
    fresh = kind.add_approval(lake, found, by)
    return kind.find(lake, name), fresh


def apply(
    lake: "Lake",
    kind: ProposalKind[Some],
    name: str,
    by: str,
    check: Callable[[Some], WritePlan],
    *,
    single_operator: bool = False,
) -> tuple[Some, bool]:
    """Apply an approved proposal by one numbered plan; return it, and whether this call did it.

    One that was applied already is left as it is.

    Parameters
    ----------
    check
        Holds the proposal against the lake as it is, when all earlier plans are finished; raises `VoidProposalError`
        where it does not fit any more, else returns what writes the plan. In between the trail gets its row.
    single_operator
        Whether who approved it may apply it; the trail then says so.

    Raises
    ------
    UnknownProposalError, AlteredProposalError, ExpiredProposalError, NotApprovedError, SameOperatorError
        Nothing was changed.
    NoEvidenceError
        The audit trail does not say that it was approved as it is. Nothing was changed.
    VoidProposalError
        It does not fit the lake any more. Nothing was changed.
    """
    found = kind.find(lake, name)
    if found.applied is None:
        _refuse_expired(kind, found)
        if found.approved is None:
            raise NotApprovedError(kind, name)
        alone = _is_same(by, found.approver)
        if alone and not single_operator:
            raise SameOperatorError(name, "approved", "apply")
        require(lake, kind, found)

        def compose(number: int) -> "Plan | None":
            if kind.find(lake, name).applied is not None:  # another driver was at it
                return None
            write = check(found)
            audit.record(lake, by, kind.begin, name, None, {**_facts(found), **_alone(alone)}, once=True)
            return write(number, alone=alone)

        drive(lake, compose, InProcess())
    done = kind.find(lake, name)
    if done.applied is None:  # some other plan took what it is about between our look and our try
        raise VoidProposalError(kind, name, "the lake moved on")
    details = {"plan": done.plan, **done.outcome, **_alone(done.single_operator)}
    audit.record(lake, by, kind.applied, name, None, details, once=True)
    return done, found.applied is None


def _refuse_expired(kind: AnyKind, found: Proposal) -> None:
    if found.expires is not None and found.expires <= datetime.now(UTC):
        raise ExpiredProposalError(kind, found.name, found.expires)


def _facts(found: Proposal) -> dict[str, Any]:
    """Return what the trail says of a proposal."""
    return {**found.facts, DIGEST: found.items_sha256}


def _alone(alone: bool) -> dict[str, bool]:
    return {"single_operator": True} if alone else {}


def _is_same(one: str, other: str | None) -> bool:
    """Say whether two names are one, however they are spelt."""
    return other is not None and "".join(one.split()).casefold() == "".join(other.split()).casefold()
