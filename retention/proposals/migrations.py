"""Migrations that drop values, as proposals: approved by another person, then applied once by one plan."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.migrations.register import APPLIED, APPROVED, REVERTED, TABLE, history, migration_row
from ranklake.lake.migrations.registry import load_migrations
from ranklake.lake.plans.plan import append_own
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.approvals import require
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, digest_of

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class MigrationProposal(Proposal):
    """A proposal to carry out a migration that drops values; its name is a digest of what it is.

    Attributes
    ----------
    label, sha256
        Of the migration.
    table, drops
        Whose columns go, and which.
    round_
        Plan that undid it last, 0 if none did: whoever approved it before did not approve it again.
    """

    label: str
    sha256: str
    table: str
    drops: tuple[str, ...]
    round_: int

    @property
    def items_sha256(self) -> str:
        """Digest of all that is proposed."""
        return digest_of([self.label, self.sha256, self.table, *self.drops, str(self.round_)])

    @property
    def intact(self) -> bool:
        """Whether it is what its name stands for."""
        return self.name == proposal_name(self.sha256, self.round_)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the trail says of it."""
        return {"migration": self.label, "table": self.table, "drops": list(self.drops), "sha256": self.sha256}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """What the trail says when it was applied."""
        return {"migration": self.label}


def proposal_name(sha256: str, round_: int) -> str:
    """Return the name of the proposal to carry out a migration."""
    return "mg-" + hashlib.sha256(f"{sha256} {round_}".encode()).hexdigest()[:16]


def register(lake: "Lake") -> dict[str, MigrationProposal]:
    """Return the proposals: one for each migration that drops values, as its file says it."""
    rows = history(lake)
    proposals = {}
    for load_migration in load_migrations(overlay=lake.catalog.overlay):
        if not load_migration.drops:
            continue
        mine = [row for row in rows if row["number"] == load_migration.number]
        round_ = max((row["plan"] for row in mine if row["status"] == REVERTED), default=0)
        name = proposal_name(load_migration.sha256, round_)
        approval = next((row for row in mine if row["proposal"] == name), {})
        done = next((row for row in mine if row["status"] == APPLIED and row["plan"] > round_), {})
        proposals[name] = MigrationProposal(
            name,
            load_migration.label,
            load_migration.sha256,
            load_migration.table,
            load_migration.drops,
            round_,
            approved=approval.get("ts"),
            approver=approval.get("actor"),
            applied=done.get("ts"),
            plan=done.get("plan"),
            single_operator=bool(done.get("single_operator")),
        )
    return proposals


def _add_approval(lake: "Lake", proposal: MigrationProposal, by: str) -> bool:
    migration = next(
        load_migration
        for load_migration in load_migrations(overlay=lake.catalog.overlay)
        if load_migration.label == proposal.label
    )

    def compose(_: object) -> list[dict[str, Any]]:
        if register(lake)[proposal.name].approved is not None:
            return []
        return [migration_row(migration, APPROVED, actor=by, proposal=proposal.name)]

    return append_own(lake.tables, TABLE, compose) > 0


MIGRATIONS: Final = ProposalKind(
    noun="migration that drops values",
    action="migration",
    command="ranklake migrate",
    register=register,
    add_approval=_add_approval,
    authored=False,
)


def require_approved(lake: "Lake", sha256: str, round_: int) -> None:
    """Raise `RanklakeError` unless an intact audit log says that a migration was approved and begun."""
    require(lake, MIGRATIONS, MIGRATIONS.find(lake, proposal_name(sha256, round_)), begun=True)


def apply_approved(
    lake: "Lake",
    label: str,
    by: str,
    compose: "Callable[[int, dict[str, Any]], Plan]",
    *,
    single_operator: bool,
    signing: "Signing | None",
) -> int | None:
    """Apply a migration that was approved; return the number of its plan, None where it was applied before.

    Raises as `ranklake.retention.proposals.lifecycle.apply`: nothing was changed then.
    """
    proposal = next(proposal for proposal in register(lake).values() if proposal.label == label)

    def check(proposal: MigrationProposal) -> Callable[..., "Plan"]:
        def write(number: int, *, alone: bool) -> "Plan":
            return compose(number, {"round": proposal.round_, "single_operator": alone})

        return write

    applied, fresh = lifecycle.apply(
        lake, MIGRATIONS, proposal.name, by, check, single_operator=single_operator, signing=signing or NOT_SIGNING
    )
    return applied.plan if fresh else None
