"""Verifies that a found plan of kind ``release`` frees exactly what was approved."""

from typing import TYPE_CHECKING

from ranklake.errors import RanklakeError
from ranklake.lake.governance.evidence import require
from ranklake.lake.governance.releases import RELEASES, TABLE
from ranklake.lake.plans.verification import refusal, verify_application, verify_files

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.storage.store import Lake


def verify_release(lake: "Lake", plan: "Plan") -> None:
    """Look whether somebody approved the release, and whether as many rows go back, to which tables, as it says."""
    verify_files(lake, plan)
    name = plan.body["facts"]["release"]
    try:
        approved = RELEASES.find(lake, name)
        require(lake, RELEASES, approved, begun=True)
    except RanklakeError as error:
        raise refusal(lake, plan, f"the plan would release rows without approval: {name}: {error.what}") from error
    agreed: dict[str, int] = {}
    for item in approved.of("rows"):
        agreed[item.table] = agreed.get(item.table, 0) + item.rows
    told = {table: rows for table, rows in plan.body["account"].items() if table != "rejects"}
    if told != agreed or approved.approved is None:
        raise refusal(lake, plan, f"the plan would release other rows than were approved: {name}")
    verify_application(lake, plan, TABLE, "release", name)
