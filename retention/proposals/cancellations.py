"""Cancellations of applied retention plans: their proposals, and the check of a plan that cancels.

    applied, files kept ─▶ (proposed ─▶ approved by another person, if names are checked) ─▶ audit row (begun)
        ─▶ one numbered plan: rows back in new files, and a row of the register ─▶ audit row (applied)

Each retention plan has at most one cancellation, under the plan's name. In an unsigned lake a cancellation needs no
approval; the audit log names who did it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.plans.action_plan import MASKED
from ranklake.lake.plans.verification import refusal, verify_files, verify_written
from ranklake.lake.store.lake_config import UNSIGNED
from ranklake.retention.proposals.approvals import approval_status, require
from ranklake.retention.proposals.kept import KeptPlan, kept_plan_of
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, Risk, digest_of, recorded_actions
from ranklake.retention.proposals.retention_plans import CANCELLED, DOWNSAMPLED, TABLE, RetentionPlan
from ranklake.retention.proposals.retention_plans import register as retention_plans

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class Cancellation(Proposal):
    """A proposal to restore the rows that a retention plan (`of`) removed or masked."""

    of: RetentionPlan

    @property
    def items_sha256(self) -> str:
        """Digest of the items of the retention plan."""
        return digest_of(["cancel", self.of.items_sha256])

    @property
    def intact(self) -> bool:
        """Whether the items are those of the retention plan."""
        return self.of.intact

    @property
    def facts(self) -> Mapping[str, Any]:
        """Details of its audit rows for approval and begin."""
        return {"rows": self.of.rows, "applied_by": self.of.plan}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Details of its audit row after the application."""
        return self.facts

    @property
    def risk(self) -> Risk:
        """Bytes and classes of the rows that come back. Nothing is lost."""
        classes = frozenset(item.retention_class for item in self.of.items)
        return Risk(self.of.bytes, classes, irreversible=False)


def register(lake: "Lake") -> dict[str, Cancellation]:
    """Return the cancellation of each retention plan that was applied with days of grace, by name."""
    cancellations = {
        name: Cancellation(name, plan, applied=plan.cancelled, plan=plan.cancellation)
        for name, plan in retention_plans(lake.tables).items()
        if plan.plan is not None and plan.kept_until is not None
    }
    trail = recorded_actions(lake.tables, CANCELLATIONS) if cancellations else {}
    for name in cancellations.keys() & trail.keys():
        cancellation = cancellations[name]
        for step in trail[name].get(CANCELLATIONS.approve, []):
            if not approval_status(lake, CANCELLATIONS, cancellation, trail, step.ts).lacking:  # type: ignore[arg-type]
                cancellations[name] = Cancellation(
                    name,
                    cancellation.of,
                    approved=step.ts,
                    approver=step.actor,
                    applied=cancellation.applied,
                    plan=cancellation.plan,
                )
                break
    return cancellations


CANCELLATIONS: Final = ProposalKind(
    noun="cancellation of a retention plan",
    action="cancellation",
    command="ranklake retain cancel",
    register=register,
    add_approval=lambda _lake, _cancellation, _by: False,  # the audit row is the only record
    planning="ranklake retain cancel PLAN",
    words=("{} --approve", "{}"),
)
"""Cancellations as proposals, for `ranklake.retention.proposals.lifecycle`."""


def needs_approval(lake: "Lake") -> bool:
    """Return whether another person must approve a cancellation: in every lake that is not unsigned."""
    return lake.config.approvals.mode != UNSIGNED


def verify_cancellation(lake: "Lake", plan: "Plan") -> None:
    """Check that an unfinished plan restores only rows of one retention plan, and that the cancellation was begun.

    Raises `ranklake.lake.plans.plan.RefusedPlanError`.
    """
    verify_files(lake, plan)
    name, number = plan.body["facts"]["retention_plan"], plan.body["facts"]["of"]
    kept_plan = kept_plan_of(lake.tables, name, number)
    if kept_plan is None:
        raise refusal(lake.store, plan, f"the plan would bring back what is not kept: {name}")
    try:
        cancellation = CANCELLATIONS.find(lake, name)
        if needs_approval(lake):
            require(lake, CANCELLATIONS, cancellation, begun=True)
        elif not recorded_actions(lake.tables, CANCELLATIONS).get(name, {}).get(CANCELLATIONS.begin):
            raise refusal(lake.store, plan, f"the audit log does not say that the cancellation of {name} was begun")
    except RanklakeError as error:
        raise refusal(
            lake.store, plan, f"the plan would bring rows back without approval: {name}: {error.what}"
        ) from error
    if (excess := _excess_partition(plan, kept_plan)) is not None:
        raise refusal(lake.store, plan, f"the plan would bring back other rows than {name} took: {excess}")
    verify_written(lake.store, plan, TABLE, {"retention_plan": name, "row_kind": CANCELLED, "plan": plan.number})


def _excess_partition(plan: "Plan", kept_plan: KeptPlan) -> str | None:
    """Return a partition that would get more rows than the retention plan removed there; None if none would.

    A masked partition may get no rows at all, since masking removed none.
    """
    most: Counter[tuple[str, str]] = Counter()
    for file in kept_plan.files:
        most[file.table, file.day.isoformat()] += file.rows
    for table, days in kept_plan.plan.body["facts"].get(MASKED, {}).items():
        for day in days:
            most[table, day] = 0
    change: Counter[tuple[str, str]] = Counter()
    for row in plan.body["add"]:
        change[row["table"], row["partition"]] += row["rows"]
    for table, rows in plan.body["remove"].items():
        for row in rows:
            change[table, row["date"]] -= row["num_records"]
    tables = {table for table, _ in most}
    excess = [place for place, rows in change.items() if place[0] not in {TABLE, DOWNSAMPLED} and rows > most[place]]
    foreign = [place for place in change if place[0] not in {*tables, TABLE, DOWNSAMPLED}]
    return " ".join(min([*excess, *foreign])) if excess or foreign else None
