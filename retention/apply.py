"""Approving a retention plan, and applying it: exactly the planned files go, once, and the trail says who and why.

    approve   audit row, then approval row
    apply     audit row (begun), then one numbered plan of the lake: files dropped, application row, bytes deleted; then
              audit row (done)

Whoever dies on the way leaves what the next apply of the same plan finishes.
"""

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.audit import trail as audit
from ranklake.lake.governance.approval import APPLIED, APPROVE, BEGIN, DIGEST, require
from ranklake.lake.governance.register import TABLE, Item, RetentionPlan, add, find, head_row, stamped
from ranklake.lake.governance.retired import RAW
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.action_plan import QUARANTINED
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.kinds import RETENTION
from ranklake.lake.plans.ledger import row_files
from ranklake.lake.plans.workers import InProcess
from ranklake.retention.plan import due

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.storage.store import Lake
    from ranklake.retention.policy import Policies


class NotApprovedError(RanklakeError):
    """A plan that nobody approved. ``plan`` is its name."""

    def __init__(self, plan: str) -> None:
        super().__init__("nobody approved this plan", where=plan, mend=f"ranklake retain approve {plan} --by NAME")
        self.plan = plan


class VoidPlanError(RanklakeError):
    """A plan that no longer says what is due.

    Attributes
    ----------
    plan, item
        Its name, and the first partition that is not as planned.
    """

    def __init__(self, plan: str, item: Item, what: str) -> None:
        where = f"{plan}: {item.table} {item.partition_date}"
        super().__init__(what, where=where, mend="plan again with 'ranklake retain plan'")
        self.plan, self.item = plan, item


class SameOperatorError(RanklakeError):
    """Whoever applies a plan approved it, too. ``plan`` is its name."""

    def __init__(self, plan: str) -> None:
        mend = "have another person apply it, or say that there is one alone: --single-operator"
        super().__init__("whoever approved this plan may not apply it, too", where=plan, mend=mend)
        self.plan = plan


def approve(lake: "Lake", name: str, by: str, reason: str | None = None) -> tuple[RetentionPlan, bool]:
    """Approve a plan; return it, and whether this call did it.

    A plan that was approved or applied already is left as it is. Raises
    `ranklake.lake.governance.register.UnknownPlanError`, and `ranklake.lake.governance.register.AlteredPlanError` for a
    plan whose items are not its own.
    """
    plan = find(lake, name)
    if plan.approved is not None:
        return plan, False
    audit.record(lake, by, APPROVE, name, reason, _details(plan), once=True)
    fresh = add(lake, plan, by, "approval")
    return find(lake, name), fresh


def apply(
    lake: "Lake",
    name: str,
    by: str,
    contracts: "Mapping[str, Contract]",
    policies: "Policies",
    today: date | None = None,
    *,
    single_operator: bool = False,
) -> tuple[RetentionPlan, bool]:
    """Remove what an approved plan names, bytes and all; return the plan, and whether this call did it.

    A plan that was applied already is left as it is.

    Parameters
    ----------
    single_operator
        Whether who approved the plan may apply it; the register and the trail then say so.

    Raises
    ------
    UnknownPlanError, AlteredPlanError, NotApprovedError, SameOperatorError
        Nothing was changed.
    NoEvidenceError
        The audit trail does not say that the plan was approved as it is. Nothing was changed.
    VoidPlanError
        A partition has other files than planned, or is not due (any more, or yet) under the policies of today. Nothing
        was changed.
    """
    plan = find(lake, name)
    if plan.applied is None:
        if plan.approved is None:
            raise NotApprovedError(name)
        alone = _is_same(by, plan.approver)
        if alone and not single_operator:
            raise SameOperatorError(name)
        require(lake, plan)
        day = today or datetime.now(UTC).date()

        def compose(number: int) -> "Plan | None":
            drop = _checked(lake, plan, contracts, policies, day)
            return _compose(lake, plan, number, by, drop, alone=alone)

        drive(lake, compose, InProcess())
    done = find(lake, name)
    if done.applied is None:  # some other plan took its files between our look and our try
        raise VoidPlanError(name, plan.items[0], "the lake moved on")
    details = {"plan": done.plan, "rows": done.rows, **_alone(done.single_operator)}
    audit.record(lake, by, APPLIED, name, None, details, once=True)
    return done, plan.applied is None


def _checked(
    lake: "Lake", plan: RetentionPlan, contracts: "Mapping[str, Contract]", policies: "Policies", today: date
) -> dict[str, pa.Table] | None:
    """Return the files to drop per table; None if the plan was applied by now. Raises `VoidPlanError`."""
    if find(lake, plan.name).applied is not None:
        return None
    now = {(item.table, item.partition_date): (item, files) for item, files in due(lake, contracts, policies, today)}
    drop: dict[str, list[pa.Table]] = {}
    for item in plan.items:
        current, files = now.get((item.table, item.partition_date), (None, None))
        if current is None:
            raise VoidPlanError(plan.name, item, "is not due under the policies of today, or is gone")
        if current.files_sha256 != item.files_sha256:
            raise VoidPlanError(plan.name, item, "has other files than planned")
        drop.setdefault(item.table, []).append(files)
    return {table: pa.concat_tables(parts, promote_options="default") for table, parts in drop.items()}


def _compose(
    lake: "Lake", plan: RetentionPlan, number: int, by: str, drop: dict[str, pa.Table] | None, *, alone: bool
) -> "Plan | None":
    if drop is None:
        return None
    audit.record(lake, by, BEGIN, plan.name, None, {**_details(plan), **_alone(alone)}, once=True)
    raw = {item.table: drop.pop(item.table) for item in plan.items if item.table in drop and item.table.startswith(RAW)}
    row = head_row(plan, "application", by, number, single_operator=alone)
    done = row_files(lake, TABLE, stamped([row], datetime.now(UTC)), number)
    facts = {
        "retention_plan": plan.name,
        QUARANTINED: _raw(plan, raw),
    }  # whole dates go, so what is dropped is all that is live there
    return action_plan.compose(number, RETENTION.name, add=done, remove=drop, live=drop, purge=True, facts=facts)


def _raw(plan: RetentionPlan, raw: "Mapping[str, pa.Table]") -> dict[str, dict[str, list[str]]]:
    """Return the digests of raw bytes that go, by table and date."""
    found: dict[str, dict[str, list[str]]] = {}
    for item in plan.items:
        if item.table in raw:
            rows = raw[item.table]
            mine = rows.filter(pc.equal(rows["date"], pa.scalar(item.partition_date, pa.date32())))
            found.setdefault(item.table, {})[item.partition_date.isoformat()] = mine["path"].to_pylist()
    return found


def _details(plan: RetentionPlan) -> dict[str, Any]:
    """Return what the trail says of a plan."""
    sums = {"rows": plan.rows, "bytes": plan.bytes, "files": plan.files}
    return {**sums, "policy_sha256": plan.policy_sha256, DIGEST: plan.items_sha256}


def _alone(alone: bool) -> dict[str, bool]:
    return {"single_operator": True} if alone else {}


def _is_same(one: str, other: str | None) -> bool:
    """Say whether two names are one, however they are spelt."""
    return other is not None and "".join(one.split()).casefold() == "".join(other.split()).casefold()
