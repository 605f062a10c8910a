"""The register: retention plans and their state, as rows of ``retention_plans``.

A plan's name is a digest of its items, and is computed again when it is read: who changes what a plan would remove
makes another plan of it, which nobody approved.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ranklake.lake.plans.plan import append_own, last_finished
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, Risk, digest_of
from ranklake.retention.proposals.registers import item_of, register_rows, with_time

if TYPE_CHECKING:
    from ranklake.lake.store.tables import Tables

TABLE: Final = "retention_plans"
DOWNSAMPLED: Final = "downsampled"
"""Table of what is left of downsampled rows."""
DOWNSAMPLE: Final = "downsample"
"""Action of an item whose rows become aggregates, and go."""

MOST_TIMES: Final = 32
"""How often one and the same plan can be cancelled."""
CANCELLED, PURGED = "cancellation", "purge"
"""Rows of the register that say what became of a plan that was applied."""
PURGE_BEGIN: Final = "retention.purge"
"""Action of the audit trail's row that comes before a purge; its time says that the grace was over."""


@dataclass(frozen=True, slots=True)
class Item:
    """A partition that would go, or rows of it.

    Attributes
    ----------
    table, partition_date
        Which.
    retention_class, period_days, cutoff_date, reason
        Why: its class is kept that long, partitions before the cutoff go.
    rows, bytes, files
        What goes: of part of a partition its rows, their share of the bytes of the files that hold them, those files.
    files_sha256
        Digest of the names of the files; with other files it is another partition than the one that was planned.
    rule
        The rules that say so.
    part_sha256
        Digest of which rows of the files go, or of which of their columns are masked and how; None if all rows go.
    action, interval_s
        `DOWNSAMPLE`, and the length of its intervals; None where rows go for good, or are masked.
    archive_to
        Place that the rows move to (`ranklake.retention.archive`); None where they go for good.
    """

    table: str
    partition_date: date
    retention_class: str
    period_days: int
    cutoff_date: date
    rows: int
    bytes: int
    files: int
    files_sha256: str
    reason: str
    rule: str | None = None
    part_sha256: str | None = None
    action: str | None = None
    interval_s: int | None = None
    archive_to: str | None = None

    @property
    def is_mask(self) -> bool:
        """Whether values are masked: then no row goes, and `reason` begins with the columns."""
        return self.part_sha256 is not None and self.rows == 0

    def plain(self) -> dict[str, Any]:
        """Return plain values, without those that say nothing."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class RetentionPlan(Proposal):
    """A proposal to let partitions go; its name is a digest of its items.

    Attributes
    ----------
    items
        What would go.
    policy_sha256
        Of the policy file it was made under.
    kept_until
        Until when it can be cancelled, once it is applied; None where the bytes went at once.
    cancelled, cancellation
        When it was cancelled, and the lake's plan that did; None if not.
    purged
        When the bytes were deleted that were kept; None if not.
    overtaken_by
        Of one that was not applied, the first plan that was, since, and took of a partition of its: it cannot be
        applied any more. Empty if there is none.
    """

    items: tuple[Item, ...]
    policy_sha256: str
    kept_until: datetime | None = None
    cancelled: datetime | None = None
    cancellation: int | None = None
    purged: datetime | None = None
    overtaken_by: str = ""

    first_state: ClassVar[str] = "planned"

    @property
    def intact(self) -> bool:
        """Whether its items are those that its name stands for."""
        return any(self.name == plan_name(self.items, times) for times in range(MOST_TIMES))

    @property
    def state(self) -> str:
        """As for every proposal, or cancelled, or overtaken."""
        if self.cancelled is not None and self.intact:
            return "cancelled"
        if self.overtaken_by and self.intact:
            return "overtaken"
        return super(RetentionPlan, self).state

    @property
    def void_because(self) -> str:
        """Which plan took of its rows."""
        return f"{self.overtaken_by} took of the same dates since" if self.state == "overtaken" else ""

    @property
    def holds(self) -> bool:
        """Whether what it took is gone: it was applied, and nobody cancelled it."""
        return self.plan is not None and self.cancelled is None

    @property
    def is_kept(self) -> bool:
        """Whether the bytes of what it took are there, so that it can be cancelled, or has to be purged."""
        return self.holds and self.kept_until is not None and self.purged is None

    @property
    def items_sha256(self) -> str:
        """Digest of all that its items say, for whoever approves them."""
        return digest_of(item.plain() for item in self.items)

    @property
    def facts(self) -> dict[str, Any]:
        """What the trail says of it."""
        return {"rows": self.rows, "bytes": self.bytes, "files": self.files, "policy_sha256": self.policy_sha256}

    @property
    def outcome(self) -> dict[str, Any]:
        """What the trail says when it was applied."""
        return {"rows": self.rows}

    @property
    def risk(self) -> Risk:
        """What it puts at stake: its bytes, for good."""
        return Risk(self.bytes, frozenset(item.retention_class for item in self.items))

    @property
    def rows(self) -> int:
        """Rows that would go, or went."""
        return sum(item.rows for item in self.items)

    @property
    def bytes(self) -> int:
        """Bytes that would go, or went."""
        return sum(item.bytes for item in self.items)

    @property
    def files(self) -> int:
        """Files that would go, or went."""
        return sum(item.files for item in self.items)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        moments = {
            "planned": self.proposed,
            "approved": self.approved,
            "applied": self.applied,
            "kept_until": self.kept_until,
            "cancelled": self.cancelled,
            "purged": self.purged,
        }
        times = {name: None if when is None else when.isoformat() for name, when in moments.items()}
        items = [
            {**item.plain(), "partition_date": str(item.partition_date), "cutoff_date": str(item.cutoff_date)}
            for item in self.items
        ]
        sums = {"rows": self.rows, "bytes": self.bytes, "files": self.files}
        head = {"retention_plan": self.name, "state": self.state, "single_operator": self.single_operator}
        head["overtaken_by"] = self.overtaken_by or None
        return {**head, **sums, "plan": self.plan, **times, "items": items}


_KINDS: Final = {"plan": "proposed", "approval": "approved", "application": "applied"}


def register(tables: "Tables") -> dict[str, RetentionPlan]:
    """Return every plan by name, oldest first.

    A plan is applied when the lake's plan that applies it is finished, not when its row appears.
    """
    rows = register_rows(tables, TABLE)
    if not rows:  # then a ledger of newer software need not be understood
        return {}
    finished = last_finished(tables)
    plans: dict[str, RetentionPlan] = {}
    for row in sorted(rows, key=lambda row: (row["row_kind"] != "plan", row["ts"])):
        name = row["retention_plan"]
        if name not in plans and row["row_kind"] != "plan":  # whoever wrote it wrote no plan
            plans[name] = RetentionPlan(name, (), row["policy_sha256"] or "")
        if row["row_kind"] == "plan":
            plans[name] = RetentionPlan(name, (), row["policy_sha256"], proposed=row["ts"])
        elif row["row_kind"] == "item":
            plans[name] = replace(plans[name], items=(*plans[name].items, item_of(TABLE, Item, row)))
        elif row["row_kind"] == "approval":
            plans[name] = replace(plans[name], approved=row["ts"], approver=row["actor"])
        elif row["row_kind"] == "application" and row["plan"] is not None and row["plan"] <= finished:
            alone, until = bool(row["single_operator"]), row["kept_until"]
            facts = {"applied": row["ts"], "plan": row["plan"], "kept_until": until, "single_operator": alone}
            plans[name] = replace(plans[name], **facts)
        elif row["row_kind"] == CANCELLED and row["plan"] is not None and row["plan"] <= finished:
            plans[name] = replace(plans[name], cancelled=row["ts"], cancellation=row["plan"])
        elif row["row_kind"] == PURGED and row["plan"] is not None and row["plan"] <= finished:
            plans[name] = replace(plans[name], purged=row["ts"])
    ordered = {
        name: sorted(one.items, key=lambda item: (item.table, item.partition_date)) for name, one in plans.items()
    }
    return _mark_overtaken({name: replace(one, items=tuple(ordered[name])) for name, one in plans.items()})


def cancelled_plans(tables: "Tables") -> set[int]:
    """Return the lake's plans that applied retention plans which were cancelled."""
    return {one.plan for one in register(tables).values() if one.plan is not None and one.cancelled is not None}


def _mark_overtaken(plans: dict[str, RetentionPlan]) -> dict[str, RetentionPlan]:
    """Return plans with what overtook them: whoever takes of a partition leaves other files than were planned."""
    applied = sorted((one for one in plans.values() if one.applied is not None), key=lambda plan: plan.plan or 0)
    places = {one.name: {(item.table, item.partition_date) for item in one.items} for one in plans.values()}
    for name, plan in plans.items():
        if plan.applied is not None or plan.proposed is None:
            continue
        for other in applied:
            if other.applied > plan.proposed and places[name] & places[other.name]:  # type: ignore[operator]
                plans[name] = replace(plan, overtaken_by=other.name)
                break
    return plans


def plan_name(items: Iterable[Item], times: int = 0) -> str:
    """Return the name of a plan with these items. The day it was planned for is no part of it.

    Parameters
    ----------
    times
        How often such a plan was cancelled before: what was approved then is not approved now.
    """
    facts = [
        [
            *(item.table, item.partition_date.isoformat(), item.retention_class, item.period_days, item.files_sha256),
            *([] if item.part_sha256 is None else [item.part_sha256]),
            *([] if item.action is None else [item.action, item.interval_s]),
            *([] if item.archive_to is None else [f"to {item.archive_to}"]),
        ]
        for item in items
    ]
    again = [[times]] if times else []
    return "rp-" + hashlib.sha256(json.dumps([*sorted(facts), *again]).encode()).hexdigest()[:16]


def add_entry(tables: "Tables", plan: RetentionPlan, actor: str | None, kind: str) -> bool:
    """Write down a plan with its items, or its approval; False if that stands there already."""

    def compose(_: object) -> list[dict[str, Any]]:
        known = register(tables).get(plan.name)
        if known is not None and getattr(known, _KINDS[kind]) is not None:
            return []
        items = [item_row(plan, item) for item in plan.items] if kind == "plan" else []
        return with_time([head_row(plan, kind, actor), *items])

    return append_own(tables, TABLE, compose) > 0


def head_row(
    plan: RetentionPlan,
    kind: str,
    actor: str | None,
    number: int | None = None,
    *,
    single_operator: bool = False,
    kept_until: datetime | None = None,
) -> dict[str, Any]:
    """Return the row of a plan, or of what was done about it, without its time."""
    return {
        "retention_plan": plan.name,
        "row_kind": kind,
        "rows": plan.rows,
        "bytes": plan.bytes,
        "files": plan.files,
        "actor": actor,
        "plan": number,
        "policy_sha256": plan.policy_sha256,
        "single_operator": single_operator or None,
        "kept_until": kept_until,
    }


def item_row(plan: RetentionPlan, item: Item) -> dict[str, Any]:
    """Return the row of an item, without its time."""
    return {"retention_plan": plan.name, "row_kind": "item", **asdict(item), "policy_sha256": plan.policy_sha256}


RETENTION_PLANS: Final = ProposalKind(
    noun="retention plan",
    action="retention",
    command="ranklake retain",
    register=lambda lake: register(lake.tables),
    add_approval=lambda lake, plan, by: add_entry(lake.tables, plan, by, "approval"),
)
"""Retention plans as proposals: `ranklake.retention.proposals.lifecycle` approves and applies them."""
