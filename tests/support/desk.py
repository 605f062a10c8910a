"""A second kind of proposal, beside retention plans: releases from quarantine, each applied by an empty plan."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ranklake.lake.audit.trail import trail
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.kinds import COMPACTION
from ranklake.lake.plans.plan import last_finished
from ranklake.retention.proposals.lifecycle import apply, approve, propose
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, Risk, VoidProposalError, digest_of


@dataclass(frozen=True, slots=True)
class Release(Proposal):
    """A proposal to let rows out of quarantine; its name is a digest of its items."""

    items: tuple[str, ...]
    bytes: int = 0

    @property
    def items_sha256(self):
        """Digest of all that its items say."""
        return digest_of(self.items)

    @property
    def intact(self):
        """Whether its items are those that its name stands for."""
        return self.name == self.items_sha256[:8]

    @property
    def risk(self):
        """What it puts at stake."""
        return Risk(self.bytes, frozenset(self.items))

    @property
    def facts(self):
        """What the audit log says of it."""
        return {"segments": len(self.items)}

    @property
    def outcome(self):
        """What the audit log says when it was applied."""
        return {"released": len(self.items)}


class Desk:
    """A kind of proposal, its register, and what applies one: an empty plan of the lake."""

    def __init__(self, site):
        self.site, self.rows, self.begun, self.void = site, {}, {}, False
        self.kind = ProposalKind("release", "release", "ranklake quality", self.register, self.add)

    def register(self, lake):
        """Return what was proposed and what became of it."""
        done = {name: number for name, number in self.begun.items() if number <= last_finished(lake.tables)}
        return {
            name: replace(one, applied=datetime.now(UTC), plan=done[name]) if name in done else one
            for name, one in self.rows.items()
        }

    def add(self, _lake, proposal, by):
        """Write down an approval."""
        self.rows[proposal.name] = replace(proposal, approved=datetime.now(UTC), approver=by)
        return True

    def propose(self, *items, **facts):
        """Write down a proposal and return its name."""
        name = digest_of(items)[:8]
        self.rows[name] = Release(name, items=items, proposed=datetime.now(UTC), **facts)
        return name

    def sign_as_author(self, name, by, **options):
        """Say who made a proposal."""
        return propose(self.site.lake, self.kind, name, by, **options)

    def approve(self, name, by, **options):
        """Approve a proposal."""
        return approve(self.site.lake, self.kind, name, by, **options)

    def apply(self, name, by, **options):
        """Apply a proposal."""

        def check(found):
            if self.void:
                raise VoidProposalError(self.kind, name, "is released already", found.items[0])

            def write(number, *, alone):
                self.begun[name] = number
                return action_plan.compose(number, COMPACTION.name, facts={"release": name, "alone": alone})

            return write

        return apply(self.site.lake, self.kind, name, by, check, **options)

    def actions(self):
        """Return what the audit log says was done, and by whom."""
        return [(row["action"], row["actor"]) for row in trail(self.site.lake.tables)]
