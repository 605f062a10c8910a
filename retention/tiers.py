"""Rules that ask for several approvers: plans of theirs are made and applied only where that many are needed."""

from typing import TYPE_CHECKING

from ranklake.retention.policy import PolicyError
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS
from ranklake.retention.proposals.tiers import needed

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake
    from ranklake.retention.proposals.retention_plans import RetentionPlan
    from ranklake.retention.rules.policies import Policies


def refuse_low_tier(lake: "Lake", plan: "RetentionPlan", policies: "Policies") -> None:
    """Raise `PolicyError` where a rule that decides asks for more approvers than the lake's approvals take.

    Names that nobody checks are not counted, so a rule of a tier above 1 needs signed approvals.
    """
    names = {name for item in plan.items for name in (item.rule or "").split(", ")}
    takes = needed(lake.config.approvals, RETENTION_PLANS.action, plan.risk).approvers
    for rule in policies.rules:
        if rule.name in names and rule.tier > takes:
            what = f"rule {rule.name!r} asks for {rule.tier} approvers, and approvals here take {takes}"
            hint = "sign approvals, and ask for as many under [[approvals.tiers]]; nothing was changed"
            raise PolicyError(what, where=str(rule.at), hint=hint)
