"""Evidence from the audit trail about proposals: approved unchanged, begun, applied."""

from typing import TYPE_CHECKING

from ranklake.lake.audit import clock
from ranklake.lake.audit.proof import prove
from ranklake.lake.store.approvals import SIGNED
from ranklake.retention.proposals.modes import refuse_downgrade
from ranklake.retention.proposals.proposals import AnyKind, Proposal, ProposalError
from ranklake.retention.proposals.standing import Judge, Standing, is_one_of, stand
from ranklake.retention.proposals.statements import DIGEST
from ranklake.retention.proposals.steps import Actions, recorded_actions

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake


class NoEvidenceError(ProposalError):
    """A proposal that the audit trail does not vouch for."""

    def __init__(self, proposal: str, what: str) -> None:
        hint = "nothing was changed; see 'ranklake audit verify' and 'ranklake audit show', then plan again"
        super().__init__(proposal, what, hint=hint)


def missing_evidence(kind: AnyKind, proposal: Proposal, trail: Actions) -> str:
    """Return what the trail lacks for an approval of a proposal as it is; empty if it has it.

    Approvals of older software carry no digest of the items; the proposal's name is one.
    """
    rows = trail.get(proposal.name, {}).get(kind.approve, [])
    if not rows:
        return "the audit trail has no approval of it"
    if all(row.details.get(DIGEST, proposal.items_sha256) != proposal.items_sha256 for row in rows):
        return "what was approved under this name had other items"
    return ""


def require(lake: "Lake", kind: AnyKind, proposal: Proposal, *, begun: bool = False) -> Standing:
    """Return the standing of a proposal that a whole trail says was approved (and begun) as it is, by enough people.

    Raises `NoEvidenceError`; `DowngradeError` where approvals were signed, and nobody here has the keys to verify them;
    and what reading the keys raises.
    """
    proof = prove(lake)
    if not proof.whole:
        raise NoEvidenceError(proposal.name, f"the audit trail is broken: {proof.why}")
    trail = recorded_actions(lake, kind)
    refuse_downgrade(lake, trail)
    what = missing_evidence(kind, proposal, trail)
    begins = trail.get(proposal.name, {}).get(kind.begin, [])
    if not what and begun and not begins:
        what = "the audit trail does not say that it was begun"
    if what:
        raise NoEvidenceError(proposal.name, what)
    # What was begun in time is finished, whenever somebody finds it.
    found = stand(lake, kind, proposal, trail, begins[-1].ts if begun else clock.now())
    if found.lacking:
        raise NoEvidenceError(proposal.name, "; ".join([found.lacking, *found.refused]))
    if begun and lake.config.approvals.mode == SIGNED:
        last, judge = begins[-1], Judge(lake)
        doubt = judge.doubt(last, proposal.items_sha256, last.ts)
        if not doubt and is_one_of(last.actor, found.approvers):
            doubt = "whoever approved it began it"
        if doubt:
            raise NoEvidenceError(proposal.name, f"row {last.seq} of the audit trail, which began it: {doubt}")
    return found
