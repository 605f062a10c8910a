"""Evidence from the audit trail about proposals: approved unchanged, begun, applied."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import TABLE
from ranklake.lake.contracts.load import contract
from ranklake.lake.delta.read import read
from ranklake.lake.governance.proposals import AnyKind, Proposal, ProposalError

if TYPE_CHECKING:
    from ranklake.lake.storage.store import Lake

DIGEST: Final = "items_sha256"
"""Under which a row of the trail names what was approved, or begun."""

Actions = Mapping[str, Mapping[str, list[dict[str, Any]]]]
"""By subject and action: the details of rows."""


class NoEvidenceError(ProposalError):
    """A proposal that the audit trail does not vouch for."""

    def __init__(self, proposal: str, what: str) -> None:
        mend = "nothing was changed; see 'ranklake audit verify' and 'ranklake audit list', then plan again"
        super().__init__(proposal, what, mend=mend)


def recorded_actions(lake: "Lake", kind: AnyKind) -> Actions:
    """Return what the trail says of proposals of a kind. Whether the trail is whole is another question."""
    actions = {kind.approve, kind.begin, kind.applied}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in read(lake, contract(TABLE), ["action", "subject", "details"]).to_pylist():
        if row["action"] in actions:
            details = json.loads(row["details"] or "{}")
            found.setdefault(row["subject"], {}).setdefault(row["action"], []).append(details)
    return found


def missing_evidence(kind: AnyKind, proposal: Proposal, trail: Actions) -> str:
    """Return what the trail lacks for an approval of a proposal as it is; empty if it has it.

    Approvals of older software carry no digest of the items; the proposal's name is one.
    """
    rows = trail.get(proposal.name, {}).get(kind.approve, [])
    if not rows:
        return "the audit trail has no approval of it"
    if all(row.get(DIGEST, proposal.items_sha256) != proposal.items_sha256 for row in rows):
        return "what was approved under this name had other items"
    return ""


def require(lake: "Lake", kind: AnyKind, proposal: Proposal, *, begun: bool = False) -> None:
    """Raise `NoEvidenceError` where a whole trail does not say that a proposal was approved (and begun) as it is."""
    proof = prove(lake)
    if not proof.whole:
        raise NoEvidenceError(proposal.name, f"the audit trail is broken: {proof.why}")
    trail = recorded_actions(lake, kind)
    what = missing_evidence(kind, proposal, trail)
    if not what and begun and not trail[proposal.name].get(kind.begin):
        what = "the audit trail does not say that it was begun"
    if what:
        raise NoEvidenceError(proposal.name, what)
