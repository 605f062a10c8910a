"""Cancellations of applied retention plans: as proposals where names are checked, and as plans that are verified.

    applied, its files kept ─▶ (proposed ─▶ approved by another, where names are checked) ─▶ audit row (begun)
        ─▶ one numbered plan: rows back in new files, the register's row ─▶ audit row (applied)

There is one for each retention plan, under its name. A lake whose names nobody checks needs no approval: the trail says
who did it.
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
    """A proposal to bring back what a retention plan took."""

    of: RetentionPlan

    @property
    def items_sha256(self) -> str:
        """Digest of what would come back: the items of the plan that took it."""
        return digest_of(["cancel", self.of.items_sha256])

    @property
    def intact(self) -> bool:
        """Whether the items are those of the retention plan."""
        return self.of.intact

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the trail says of it."""
        return {"rows": self.of.rows, "applied_by": self.of.plan}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """What the trail says when rows are back."""
        return self.facts

    @property
    def risk(self) -> Risk:
        """What it puts at stake: rows come back that were to go; nothing is lost."""
        classes = frozenset(item.retention_class for item in self.of.items)
        return Risk(self.of.bytes, classes, irreversible=False)


def register(lake: "Lake") -> dict[str, Cancellation]:
    """Return the cancellation of every plan that was applied and keeps its files, or was cancelled."""
    cancellations = {
        name: Cancellation(name, one, applied=one.cancelled, plan=one.cancellation)
        for name, one in retention_plans(lake.tables).items()
        if one.plan is not None and one.kept_until is not None
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
    add_approval=lambda _lake, _cancellation, _by: False,  # the trail's row is all there is
    planning="ranklake retain cancel PLAN",
    words=("{} --approve", "{}"),
)
"""Cancellations as proposals: `ranklake.retention.proposals.lifecycle` has them approved where names are checked."""


def needs_approval(lake: "Lake") -> bool:
    """Return whether another person must approve a cancellation: wherever names are checked."""
    return lake.config.approvals.mode != UNSIGNED


def verify_cancellation(lake: "Lake", plan: "Plan") -> None:
    """Check that a found plan brings back no more than what one retention plan took, as somebody began."""
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
            raise refusal(lake.store, plan, f"the audit trail does not say that the cancellation of {name} was begun")
    except RanklakeError as error:
        raise refusal(
            lake.store, plan, f"the plan would bring rows back without approval: {name}: {error.what}"
        ) from error
    if (wrong := _too_much(plan, kept_plan)) is not None:
        raise refusal(lake.store, plan, f"the plan would bring back other rows than {name} took: {wrong}")
    verify_written(lake.store, plan, TABLE, {"retention_plan": name, "row_kind": CANCELLED, "plan": plan.number})


def _too_much(plan: "Plan", kept_plan: KeptPlan) -> str | None:
    """Return a table and date that would get more rows than the retention plan took there, or than it held before."""
    most: Counter[tuple[str, str]] = Counter()
    for file in kept_plan.files:
        most[file.table, file.day.isoformat()] += file.rows
    for table, days in kept_plan.plan.body["facts"].get(MASKED, {}).items():
        for day in days:
            most[table, day] = 0
    more: Counter[tuple[str, str]] = Counter()
    for row in plan.body["add"]:
        more[row["table"], row["partition"]] += row["rows"]
    for table, rows in plan.body["remove"].items():
        for row in rows:
            more[table, row["date"]] -= row["num_records"]
    tables = {table for table, _ in most}
    wrong = [place for place, rows in more.items() if place[0] not in {TABLE, DOWNSAMPLED} and rows > most[place]]
    others = [place for place in more if place[0] not in {*tables, TABLE, DOWNSAMPLED}]
    return " ".join(min([*wrong, *others])) if wrong or others else None
