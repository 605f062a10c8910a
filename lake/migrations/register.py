"""What became of migrations in a lake: rows of the table ``migrations``, and approvals of those that drop values."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations.registry import load_migrations
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.ledger import append_own
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.tables.read import read
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, digest_of

if TYPE_CHECKING:
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.store import Lake

TABLE: Final = "migrations"
APPLIED: Final = "applied"
REVERTED: Final = "reverted"
APPROVED: Final = "approved"


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


def history(lake: "Lake") -> list[dict[str, Any]]:
    """Return the rows of the table, oldest first; those of plans that are not finished are left away.

    Raises `MigrationError` where a migration that was applied is another now.
    """
    rows = read(lake, contract(TABLE)).to_pylist()
    if not rows:
        return []
    finished = last_finished(lake)
    known = {one.number: one for one in load_migrations(overlay=lake.overlay)}
    found = [row for row in sorted(rows, key=lambda row: row["ts"]) if (row["plan"] or 0) <= finished]
    last = {row["number"]: row for row in found if row["status"] != APPROVED}
    for number, row in last.items():
        if row["status"] == APPLIED and number in known and known[number].sha256 != row["sha256"]:
            what = f"migration {known[number].label} was edited after it was applied"
            raise MigrationError(what, where=known[number].path, hint="restore the file, and write another migration")
    return found


def last_applied(lake: "Lake", table: str) -> dict[str, Any] | None:
    """Return the row of the migration of a table that was applied last and not undone since; None if there is none."""
    stack: list[dict[str, Any]] = []
    for row in history(lake):
        if row["table"] == table and row["status"] == APPLIED:
            stack.append(row)
        elif row["table"] == table and row["status"] == REVERTED and stack:
            stack.pop()
    return stack[-1] if stack else None


def note(lake: "Lake", migration: "Migration", plan: "Plan") -> None:
    """Write down, once, that a plan carried a migration out or undid it."""
    facts = plan.body["facts"]
    status = REVERTED if facts["backwards"] else APPLIED

    def compose(_: object) -> list[dict[str, Any]]:
        said = read(lake, contract(TABLE), ["plan"])["plan"].to_pylist()
        if plan.number in said:
            return []
        alone = facts.get("single_operator") or None
        return [_row(migration, status, plan=plan.number, rows=facts["rows"], single_operator=alone)]

    append_own(lake, TABLE, compose)


def _row(migration: "Migration", status: str, **facts: Any) -> dict[str, Any]:  # noqa: ANN401 - a column's own
    now = datetime.now(UTC)
    return {
        "number": migration.number,
        "name": migration.name,
        "table": migration.table,
        "from_version": migration.from_version,
        "to_version": migration.to_version,
        "sha256": migration.sha256,
        "status": status,
        "ts": now,
        "date": now.date(),
        **facts,
    }


def register(lake: "Lake") -> dict[str, MigrationProposal]:
    """Return the proposals: one for each migration that drops values, as its file says it."""
    rows = history(lake)
    found = {}
    for one in load_migrations(overlay=lake.overlay):
        if not one.drops:
            continue
        mine = [row for row in rows if row["number"] == one.number]
        round_ = max((row["plan"] for row in mine if row["status"] == REVERTED), default=0)
        name = proposal_name(one.sha256, round_)
        approval = next((row for row in mine if row["proposal"] == name), {})
        done = next((row for row in mine if row["status"] == APPLIED and row["plan"] > round_), {})
        found[name] = MigrationProposal(
            name,
            one.label,
            one.sha256,
            one.table,
            one.drops,
            round_,
            approved=approval.get("ts"),
            approver=approval.get("actor"),
            applied=done.get("ts"),
            plan=done.get("plan"),
            single_operator=bool(done.get("single_operator")),
        )
    return found


def _add_approval(lake: "Lake", proposal: MigrationProposal, by: str) -> bool:
    migration = next(one for one in load_migrations(overlay=lake.overlay) if one.label == proposal.label)

    def compose(_: object) -> list[dict[str, Any]]:
        if register(lake)[proposal.name].approved is not None:
            return []
        return [_row(migration, APPROVED, actor=by, proposal=proposal.name)]

    return append_own(lake, TABLE, compose) > 0


MIGRATIONS: Final = ProposalKind(
    noun="migration that drops values",
    action="migration",
    command="ranklake migrate",
    register=register,
    add_approval=_add_approval,
    authored=False,
)
"""Migrations that drop values, as proposals: `ranklake.retention.proposals.lifecycle` approves and applies them."""
