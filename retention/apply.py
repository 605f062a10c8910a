"""Approving a retention plan, and applying it: exactly the planned files go, once, and the trail says who and why.

What both ask, and what the audit trail and the register get, is the same for all proposals
(`ranklake.lake.governance.lifecycle`). Here stands what is retention's: whether what was planned is still there and
due, and the numbered plan that drops its files, writes the application into the register, and deletes the bytes.
"""

from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.governance import lifecycle
from ranklake.lake.governance.identities import NOT_SIGNING, Signing
from ranklake.lake.governance.proposals import VoidProposalError
from ranklake.lake.governance.retention_plans import RETENTION_PLANS, TABLE, Item, RetentionPlan, head_row, stamped
from ranklake.lake.governance.retired import RAW
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.action_plan import QUARANTINED
from ranklake.lake.plans.kinds import RETENTION
from ranklake.lake.plans.ledger import row_files
from ranklake.retention.plan import due

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.governance.lifecycle import WritePlan
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.storage.store import Lake
    from ranklake.retention.policy import Policies


def approve(
    lake: "Lake",
    name: str,
    by: str,
    reason: str | None = None,
    *,
    single_operator: bool = False,
    signing: Signing = NOT_SIGNING,
) -> tuple[RetentionPlan, bool]:
    """Approve a plan; return it, and whether this call did it. See `ranklake.lake.governance.lifecycle.approve`."""
    return lifecycle.approve(lake, RETENTION_PLANS, name, by, reason, single_operator=single_operator, signing=signing)


def apply(
    lake: "Lake",
    name: str,
    by: str,
    contracts: "Mapping[str, Contract]",
    policies: "Policies",
    today: date | None = None,
    *,
    single_operator: bool = False,
    signing: Signing = NOT_SIGNING,
) -> tuple[RetentionPlan, bool]:
    """Remove what an approved plan names, bytes and all; return the plan, and whether this call did it.

    A plan that was applied already is left as it is. Raises what `ranklake.lake.governance.lifecycle.apply` does;
    `VoidProposalError` where a partition has other files than planned, or is not due (any more, or yet) under the
    policies of today. Nothing was changed then.

    Parameters
    ----------
    single_operator
        Whether who approved the plan may apply it; the register and the trail then say so.
    signing
        What signs, where approvals are signed.
    """
    day = today or datetime.now(UTC).date()

    def check(plan: RetentionPlan) -> "WritePlan":
        return partial(_write, lake, plan, by, _files(lake, plan, contracts, policies, day))

    return lifecycle.apply(lake, RETENTION_PLANS, name, by, check, single_operator=single_operator, signing=signing)


def _files(
    lake: "Lake", plan: RetentionPlan, contracts: "Mapping[str, Contract]", policies: "Policies", today: date
) -> dict[str, pa.Table]:
    """Return the files to drop per table. Raises `VoidProposalError`."""
    now = {(item.table, item.partition_date): (item, files) for item, files in due(lake, contracts, policies, today)}
    drop: dict[str, list[pa.Table]] = {}
    for item in plan.items:
        current, files = now.get((item.table, item.partition_date), (None, None))
        if current is None:
            raise _void(plan, item, "is not due under the policies of today, or is gone")
        if current.files_sha256 != item.files_sha256:
            raise _void(plan, item, "has other files than planned")
        drop.setdefault(item.table, []).append(files)
    return {table: pa.concat_tables(parts, promote_options="default") for table, parts in drop.items()}


def _void(plan: RetentionPlan, item: Item, what: str) -> VoidProposalError:
    return VoidProposalError(RETENTION_PLANS, plan.name, what, f"{item.table} {item.partition_date}")


def _write(
    lake: "Lake", plan: RetentionPlan, by: str, drop: dict[str, pa.Table], number: int, *, alone: bool
) -> "Plan":
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
