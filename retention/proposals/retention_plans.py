"""Retention plans and their state: the register, which is the table ``retention_plans``.

A plan's name is a digest of its items and is verified on every read. A plan whose items were changed no longer matches
its name, so the approval does not hold for it.
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
"""Table with the aggregates of downsampled rows."""
DOWNSAMPLE: Final = "downsample"
"""Action of an item whose rows are replaced by aggregates."""

MOST_TIMES: Final = 32
"""How often a plan with the same items can be cancelled."""
CANCELLED, PURGED = "cancellation", "purge"
"""Kinds of register rows that record the cancellation and the purge of an applied plan."""
PURGE_BEGIN: Final = "retention.purge"
"""Action of the audit row before a purge. Its time proves that the days of grace were over."""


@dataclass(frozen=True, slots=True)
class Item:
    """A partition of a table, or some of its rows, that a plan removes, masks, downsamples or archives.

    Attributes
    ----------
    table, partition_date
        The partition.
    retention_class, period_days, cutoff_date, reason
        Why it is due: rows of the class are kept for the period, and partitions before the cutoff are due.
    rows, bytes, files
        What is removed. For some rows of a partition: those rows, their share of the bytes of their files, and the
        number of these files.
    files_sha256
        Digest of the names of the files. If the partition has other files, the plan no longer fits.
    rule
        The rules of the policy that decided.
    part_sha256
        Digest of the selected rows, or of the masked columns and their masks; None if all rows are removed.
    action, interval_s
        `DOWNSAMPLE` and the length of its intervals; None for all other items.
    archive_to
        The place that the rows move to (`ranklake.retention.archive`); None if they are not archived.
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
        """Whether the item masks values. It then removes no rows, and `reason` begins with the columns."""
        return self.part_sha256 is not None and self.rows == 0

    def plain(self) -> dict[str, Any]:
        """Return the fields that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class RetentionPlan(Proposal):
    """A proposal to apply retention to partitions. Its name is a digest of its items.

    Attributes
    ----------
    items
        The partitions, or parts of them.
    policy_sha256
        Digest of the policy file in force when the plan was made.
    kept_until
        Until when an applied plan can be cancelled; None if its bytes were deleted immediately.
    cancelled, cancellation
        When it was cancelled, and the number of the lake's plan for that; None if it was not.
    purged
        When the kept bytes were deleted; None if they were not.
    overtaken_by
        For a plan that was not applied: the first plan that was applied later and changed one of its partitions. This
        plan can then no longer be applied. Empty if there is none.
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
        """Whether the items match the digest in the name."""
        return any(self.name == plan_name(self.items, times) for times in range(MOST_TIMES))

    @property
    def state(self) -> str:
        """A state of `Proposal`, or ``cancelled`` or ``overtaken``."""
        if self.cancelled is not None and self.intact:
            return "cancelled"
        if self.overtaken_by and self.intact:
            return "overtaken"
        return super(RetentionPlan, self).state

    @property
    def void_because(self) -> str:
        """The plan that overtook this one, as a clause; empty if there is none."""
        return f"{self.overtaken_by} took of the same dates since" if self.state == "overtaken" else ""

    @property
    def holds(self) -> bool:
        """Whether it is in effect: applied and not cancelled."""
        return self.plan is not None and self.cancelled is None

    @property
    def is_kept(self) -> bool:
        """Whether the removed files are still kept, so that the plan can be cancelled or has to be purged."""
        return self.holds and self.kept_until is not None and self.purged is None

    @property
    def items_sha256(self) -> str:
        """Digest of all fields of all items. An approval is for this digest."""
        return digest_of(item.plain() for item in self.items)

    @property
    def facts(self) -> dict[str, Any]:
        """Details of its audit rows for approval and begin."""
        return {"rows": self.rows, "bytes": self.bytes, "files": self.files, "policy_sha256": self.policy_sha256}

    @property
    def outcome(self) -> dict[str, Any]:
        """Details of its audit row after the application."""
        return {"rows": self.rows}

    @property
    def risk(self) -> Risk:
        """Its bytes and classes; the removal cannot be undone."""
        return Risk(self.bytes, frozenset(item.retention_class for item in self.items))

    @property
    def rows(self) -> int:
        """Rows of all items."""
        return sum(item.rows for item in self.items)

    @property
    def bytes(self) -> int:
        """Bytes of all items."""
        return sum(item.bytes for item in self.items)

    @property
    def files(self) -> int:
        """Files of all items."""
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
    """Return all retention plans by name, oldest first.

    A plan is applied when the lake's plan that applies it is finished, not when its row appears.
    """
    rows = register_rows(tables, TABLE)
    if not rows:  # skip the ledger: newer software may have written it
        return {}
    finished = last_finished(tables)
    plans: dict[str, RetentionPlan] = {}
    for row in sorted(rows, key=lambda row: (row["row_kind"] != "plan", row["ts"])):
        name = row["retention_plan"]
        if name not in plans and row["row_kind"] != "plan":  # the register has no row of the plan
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
        name: sorted(plan.items, key=lambda item: (item.table, item.partition_date)) for name, plan in plans.items()
    }
    return _mark_overtaken({name: replace(plan, items=tuple(ordered[name])) for name, plan in plans.items()})


def cancelled_plans(tables: "Tables") -> set[int]:
    """Return the numbers of the lake's plans that applied retention plans and were cancelled later."""
    return {plan.plan for plan in register(tables).values() if plan.plan is not None and plan.cancelled is not None}


def _mark_overtaken(plans: dict[str, RetentionPlan]) -> dict[str, RetentionPlan]:
    """Set `overtaken_by` of the plans: an applied plan changes the files of its partitions."""
    applied = sorted((plan for plan in plans.values() if plan.applied is not None), key=lambda plan: plan.plan or 0)
    places = {plan.name: {(item.table, item.partition_date) for item in plan.items} for plan in plans.values()}
    for name, plan in plans.items():
        if plan.applied is not None or plan.proposed is None:
            continue
        for other in applied:
            if other.applied > plan.proposed and places[name] & places[other.name]:  # type: ignore[operator]
                plans[name] = replace(plan, overtaken_by=other.name)
                break
    return plans


def plan_name(items: Iterable[Item], times: int = 0) -> str:
    """Return the name of a plan with these items. The day of planning is not part of the digest.

    Parameters
    ----------
    times
        How often a plan with these items was cancelled before. Each number gives another name, so that an earlier
        approval does not count again.
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
    repetition = [[times]] if times else []
    return "rp-" + hashlib.sha256(json.dumps([*sorted(facts), *repetition]).encode()).hexdigest()[:16]


def add_entry(tables: "Tables", plan: RetentionPlan, actor: str | None, kind: str) -> bool:
    """Write a plan with its items, or its approval, into the register; return False if it is there already."""

    def compose(_: object) -> list[dict[str, Any]]:
        registered = register(tables).get(plan.name)
        if registered is not None and getattr(registered, _KINDS[kind]) is not None:
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
    """Return the register's row of a plan or of a step (`kind`), without its time."""
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
    """Return the register's row of an item, without its time."""
    return {"retention_plan": plan.name, "row_kind": "item", **asdict(item), "policy_sha256": plan.policy_sha256}


RETENTION_PLANS: Final = ProposalKind(
    noun="retention plan",
    action="retention",
    command="ranklake retain",
    register=lambda lake: register(lake.tables),
    add_approval=lambda lake, plan, by: add_entry(lake.tables, plan, by, "approval"),
)
"""Retention plans as proposals: `ranklake.retention.proposals.lifecycle` approves and applies them."""
