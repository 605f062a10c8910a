"""What a proposal takes, by its risk: how many approvers, and which roles among them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ranklake.lake.store.approvals import DEFAULT_TIERS, UNSIGNED, ApprovalsSection
from ranklake.retention.proposals.proposals import Risk


@dataclass(frozen=True, slots=True)
class Needed:
    """What a proposal takes: so many different approvers, and of each role at least one."""

    approvers: int = 1
    roles: tuple[str, ...] = ()

    @property
    def plain(self) -> dict[str, Any]:
        """Plain JSON values, as the trail keeps them."""
        return {"approvers": self.approvers, "roles": list(self.roles)}

    @classmethod
    def said(cls, details: Mapping[str, Any]) -> Self:
        """Return what a row of the trail says was needed; one approver where it says nothing."""
        facts = details.get("needed")
        if not isinstance(facts, dict):
            return cls()
        approvers, roles = facts.get("approvers"), facts.get("roles")
        return cls(approvers if isinstance(approvers, int) else 1, tuple(roles) if isinstance(roles, list) else ())

    def lacking(self, approvers: Iterable[Iterable[str]]) -> str:
        """Return what is lacking, in words; empty if nothing.

        Parameters
        ----------
        approvers
            The roles of each approver so far.
        """
        there = [frozenset(roles) for roles in approvers]
        parts = []
        if len(there) < self.approvers:
            parts.append(f"it has {len(there)} of {self.approvers} approvals")
        parts += [f"nobody of role {role} approved it" for role in self.roles if not any(role in one for one in there)]
        return ", ".join(parts)


def needed(section: ApprovalsSection, kind: str, risk: Risk) -> Needed:
    """Return what a proposal of a kind takes. Names that nobody checks are not counted: one is enough then."""
    if section.mode == UNSIGNED:
        return Needed()
    approvers, roles = 1, set[str]()
    for tier in section.tiers or DEFAULT_TIERS:
        if (
            (not tier.kinds or kind in tier.kinds)
            and (not tier.classes or not risk.classes.isdisjoint(tier.classes))
            and (not tier.over_bytes or (risk.bytes is not None and risk.bytes >= tier.over_bytes))
            and (not tier.irreversible or risk.irreversible)
        ):
            approvers = max(approvers, tier.approvers)
            roles |= {tier.role} - {""}
    return Needed(approvers, tuple(sorted(roles)))
