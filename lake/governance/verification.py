"""Verifies that a found plan of kind ``retention`` removes exactly what was approved."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from ranklake.errors import RanklakeError
from ranklake.lake.delta.commit import files_digest
from ranklake.lake.governance.evidence import require
from ranklake.lake.governance.retention_plans import RETENTION_PLANS, TABLE
from ranklake.lake.plans.action_plan import QUARANTINED
from ranklake.lake.plans.verification import refusal, verify_application, verify_files

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.storage.store import Lake


def verify_retention(lake: "Lake", plan: "Plan") -> None:
    """Look whether exactly what somebody approved goes."""
    verify_files(lake, plan)
    name = plan.body["facts"]["retention_plan"]
    try:
        approved = RETENTION_PLANS.find(lake, name)
        require(lake, RETENTION_PLANS, approved, begun=True)
    except RanklakeError as error:
        raise refusal(lake, plan, f"the plan would remove rows without approval: {name}: {error.what}") from error
    gone: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for table, rows in plan.body["remove"].items():
        for row in rows:
            gone.setdefault((table, row["date"]), []).append(row)
    stay: Counter[tuple[str, str]] = Counter()
    for row in plan.body["add"]:
        stay[row["table"], row["partition"]] += row["rows"]
    agreed = {
        (item.table, item.partition_date.isoformat()): (item.rows, item.files_sha256, item.part_sha256 is not None)
        for item in approved.items
    }
    told = {
        place: (
            sum(row["num_records"] for row in rows) - stay[place],
            files_digest(row["path"] for row in rows),
            stay[place] > 0,
        )
        for place, rows in gone.items()
    }
    for table, days in plan.body["facts"].get(QUARANTINED, {}).items():
        told |= {(table, day): (0, files_digest(some), False) for day, some in days.items()}
    if told != agreed or approved.approved is None:
        raise refusal(lake, plan, f"the plan would remove other rows than were approved: {name}")
    verify_application(lake, plan, TABLE, "retention_plan", name)
