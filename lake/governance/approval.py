"""What the audit trail says of a retention plan: approved as it is, begun, applied."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import TABLE
from ranklake.lake.contracts.load import contract
from ranklake.lake.delta.read import read

if TYPE_CHECKING:
    from ranklake.lake.governance.register import RetentionPlan
    from ranklake.lake.storage.store import Lake

APPROVE: Final = "retention.approve"
BEGIN: Final = "retention.apply"
APPLIED: Final = "retention.applied"
DIGEST: Final = "items_sha256"

Told = Mapping[str, Mapping[str, list[dict[str, Any]]]]
"""By subject and action: the details of rows."""


class NoEvidenceError(RanklakeError):
    """A removal that the audit trail does not vouch for. ``plan`` is the retention plan."""

    def __init__(self, plan: str, what: str) -> None:
        mend = "nothing was removed; see 'ranklake audit verify' and 'ranklake audit list', then plan again"
        super().__init__(what, where=plan, mend=mend)
        self.plan = plan


def told(lake: "Lake") -> Told:
    """Return what the trail says of retention plans. Whether the trail is whole is another question."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in read(lake, contract(TABLE), ["action", "subject", "details"]).to_pylist():
        if row["action"] in {APPROVE, BEGIN, APPLIED}:
            details = json.loads(row["details"] or "{}")
            found.setdefault(row["subject"], {}).setdefault(row["action"], []).append(details)
    return found


def lacking(plan: "RetentionPlan", trail: Told) -> str:
    """Return what the trail lacks for an approval of a plan as it is; empty if it has it.

    Approvals of older software carry no digest of the items; the plan's name is one.
    """
    rows = trail.get(plan.name, {}).get(APPROVE, [])
    if not rows:
        return "the audit trail has no approval of it"
    if all(row.get(DIGEST, plan.items_sha256) != plan.items_sha256 for row in rows):
        return "what was approved under this name had other items"
    return ""


def require(lake: "Lake", plan: "RetentionPlan", *, begun: bool = False) -> None:
    """Raise `NoEvidenceError` where a whole trail does not say that a plan was approved (and begun) as it is."""
    proof = prove(lake)
    if not proof.whole:
        raise NoEvidenceError(plan.name, f"the audit trail is broken: {proof.why}")
    trail = told(lake)
    what = lacking(plan, trail)
    if not what and begun and not trail[plan.name].get(BEGIN):
        what = "the audit trail does not say that it was begun"
    if what:
        raise NoEvidenceError(plan.name, what)
