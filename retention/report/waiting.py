"""Proposals of all kinds that somebody has to approve or apply."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ranklake.lake.audit import clock
from ranklake.retention.archive.rehydration import REHYDRATIONS
from ranklake.retention.grants.grant import GRANTS, Grant
from ranklake.retention.holds.hold import HOLD_RELEASES
from ranklake.retention.proposals.approvals import approval_status
from ranklake.retention.proposals.cancellations import CANCELLATIONS
from ranklake.retention.proposals.erasures import ERASURES
from ranklake.retention.proposals.migrations import MIGRATIONS
from ranklake.retention.proposals.proposals import Actions, AnyKind, Proposal, recorded_actions
from ranklake.retention.proposals.releases import RELEASES
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS, RetentionPlan

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

KINDS: Final[tuple[AnyKind, ...]] = (
    *(RETENTION_PLANS, CANCELLATIONS, ERASURES, HOLD_RELEASES, REHYDRATIONS, RELEASES, GRANTS, MIGRATIONS),
)
"""Every kind of proposal; `tests/retention/test_governance_page.py` looks for one that is missing."""
_APPROVED_IS_DONE: Final = (HOLD_RELEASES, GRANTS, REHYDRATIONS)
"""Kinds that take effect with their approval; nothing has to apply them."""
_OF_EVERYTHING: Final = (HOLD_RELEASES, CANCELLATIONS)
"""Kinds of which there is one for everything that it could be about; only those wait that somebody proposed."""


@dataclass(frozen=True, slots=True)
class WaitingProposal:
    """A proposal that waits for somebody.

    Attributes
    ----------
    noun, name
        What it is.
    since
        When it was proposed, or approved if it waits to be applied; None where nobody knows.
    lacking
        What it waits for.
    next_step
        The command that goes on.
    """

    noun: str
    name: str
    since: datetime | None
    lacking: str
    next_step: str


def waiting(lake: "Lake") -> list[WaitingProposal]:
    """Return the proposals that wait, the oldest first. Of retention plans that nobody approved only the last does."""
    proposals = [one for kind in KINDS for one in _of_kind(lake, kind)]
    return sorted(proposals, key=lambda proposal: (proposal.since is not None, proposal.since, proposal.name))


def _of_kind(lake: "Lake", kind: AnyKind) -> Iterator[WaitingProposal]:
    every = list(kind.register(lake).values())
    trail = recorded_actions(lake.tables, kind) if every else Actions()
    for proposal in every:
        proposed = trail.get(proposal.name, {}).get(kind.propose, [])
        if _is_over(kind, proposal, every) or (kind in _OF_EVERYTHING and not proposed):
            continue
        since = proposal.proposed or (proposed[0].ts if proposed else None)
        if not proposal.intact:
            yield WaitingProposal(
                kind.noun, proposal.name, since, "its items were altered", f"{kind.made_by}, and look into it"
            )
        elif proposal.approved is None:
            lacking = (
                approval_status(lake, kind, proposal, trail, clock.now()).lacking
                or "its approval is to be written down"
            )
            yield WaitingProposal(
                kind.noun, proposal.name, since, lacking, _command(kind, kind.to_approve(_argument(proposal)))
            )
        elif kind not in _APPROVED_IS_DONE:
            command = _command(kind, kind.to_apply(proposal.name))
            yield WaitingProposal(kind.noun, proposal.name, proposal.approved, "nobody applied it", command)


def _is_over(kind: AnyKind, proposal: Proposal, every: list[Proposal]) -> bool:
    """Return whether nobody has to do anything about it any more."""
    now = clock.now()
    if proposal.applied is not None or (proposal.expires is not None and proposal.expires <= now):
        return True
    if isinstance(proposal, Grant) and (
        proposal.revoked is not None or proposal.until <= now or proposal.is_break_glass
    ):
        return True
    if kind in _APPROVED_IS_DONE and proposal.approved is not None:
        return True
    if isinstance(proposal, RetentionPlan) and proposal.overtaken_by:
        return True
    return kind is RETENTION_PLANS and proposal.approved is None and proposal is not every[-1]


def _command(kind: AnyKind, command: str) -> str:
    return command.replace(kind.command, "ranklake grants", 1) if kind is GRANTS else command


def _argument(proposal: Proposal) -> str:
    return getattr(proposal, "hold", proposal.name)
