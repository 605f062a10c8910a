"""Migrations that drop values, as proposals: another person approves, then one plan applies the migration."""

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
    """A proposal to carry out a migration that drops values. Its name is a digest of the migration and `round_`.

    Attributes
    ----------
    label, sha256
        Name and digest of the migration.
    table, drops
        The table, and the columns that it loses.
    round_
        Number of the last plan that reverted the migration, 0 if none did. An approval from before that does not count.
    """

    label: str
    sha256: str
    table: str
    drops: tuple[str, ...]
    round_: int

    @property
    def items_sha256(self) -> str:
        """Digest of all fields of the proposal. An approval is for this digest."""
        return digest_of([self.label, self.sha256, self.table, *self.drops, str(self.round_)])

    @property
    def intact(self) -> bool:
        """Whether the migration matches the digest in the name."""
        return self.name == proposal_name(self.sha256, self.round_)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Details of its audit rows for approval and begin."""
        return {"migration": self.label, "table": self.table, "drops": list(self.drops), "sha256": self.sha256}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Details of its audit row after the application."""
        return {"migration": self.label}


def proposal_name(sha256: str, round_: int) -> str:
    """Return the name of the proposal to carry out a migration."""
    return "mg-" + hashlib.sha256(f"{sha256} {round_}".encode()).hexdigest()[:16]


def register(lake: "Lake") -> dict[str, MigrationProposal]:
    """Return a proposal for each migration that drops values, by name."""
    rows = history(lake)
    proposals = {}
    for migration in load_migrations(overlay=lake.catalog.overlay):
        if not migration.drops:
            continue
        own_rows = [row for row in rows if row["number"] == migration.number]
        round_ = max((row["plan"] for row in own_rows if row["status"] == REVERTED), default=0)
        name = proposal_name(migration.sha256, round_)
        approval = next((row for row in own_rows if row["proposal"] == name), {})
        application = next((row for row in own_rows if row["status"] == APPLIED and row["plan"] > round_), {})
        proposals[name] = MigrationProposal(
            name,
            migration.label,
            migration.sha256,
            migration.table,
            migration.drops,
            round_,
            approved=approval.get("ts"),
            approver=approval.get("actor"),
            applied=application.get("ts"),
            plan=application.get("plan"),
            single_operator=bool(application.get("single_operator")),
        )
    return proposals


def _add_approval(lake: "Lake", proposal: MigrationProposal, by: str) -> bool:
    migration = next(
        migration for migration in load_migrations(overlay=lake.catalog.overlay) if migration.label == proposal.label
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
    """Raise `RanklakeError` unless an intact audit log proves that a migration was approved and begun."""
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
    """Apply an approved migration. Return the number of its plan; None if it was applied before.

    Raises the errors of `ranklake.retention.proposals.lifecycle.apply`; nothing was changed then.
    """
    proposal = next(proposal for proposal in register(lake).values() if proposal.label == label)

    def check(proposal: MigrationProposal) -> Callable[..., "Plan"]:
        def write(number: int, *, alone: bool) -> "Plan":
            return compose(number, {"round": proposal.round_, "single_operator": alone})

        return write

    applied, is_new = lifecycle.apply(
        lake, MIGRATIONS, proposal.name, by, check, single_operator=single_operator, signing=signing or NOT_SIGNING
    )
    return applied.plan if is_new else None
