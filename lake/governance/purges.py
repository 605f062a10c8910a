"""Purges: plans that delete what applied retention plans kept, once their grace is over."""

from typing import TYPE_CHECKING

from ranklake.lake.governance.kept import KeptFile, kept
from ranklake.lake.governance.retention_plans import PURGED, TABLE
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.plans.units import Unit, carry_out
from ranklake.lake.plans.verification import refusal, verify_files, verify_written
from ranklake.lake.storage.removal import delete

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.storage.store import Lake


def execute(lake: "Lake", plan: "Plan", _workers: object = None, _progress: object = None) -> None:
    """Delete what the plan that is purged kept, and what is left of the same dates from before; then write that down.

    Can be called again. What other retention plans keep stays. Raises `ranklake.lake.delta.commit.LostRaceError`.
    """
    number = plan.body["facts"]["of"]
    carry_out(Unit("purge", detail=f"files that plan {number} kept"), lambda: _delete(lake, number))
    action_plan.execute(lake, plan)


def _delete(lake: "Lake", number: int) -> None:
    spare: dict[str, set[str]] = {}
    mine: list[KeptFile] = []
    for one in kept(lake):
        if one.plan.number == number:
            mine += one.files
            continue
        for file in one.files:
            spare.setdefault(file.table, set()).add(file.path)
    for file in mine:
        delete(lake, lake.path("tables", file.table, file.path))  # an earlier try may have come this far
    purged = read_plan(lake, number)
    if purged is not None:
        action_plan.purge(lake, purged, spare)


def verify_purge(lake: "Lake", plan: "Plan") -> None:
    """Look whether a found plan purges what is kept, and whose grace is over."""
    verify_files(lake, plan)
    name, number = plan.body["facts"]["retention_plan"], plan.body["facts"]["of"]
    found = next((one for one in kept(lake) if one.proposal.name == name and one.plan.number == number), None)
    if found is None:
        raise refusal(lake, plan, f"the plan would delete what is not kept: {name}")
    if why_not := found.why_not_over():
        raise refusal(lake, plan, f"the plan would delete what {name} keeps: {why_not}")
    verify_written(lake, plan, TABLE, {"retention_plan": name, "row_kind": PURGED, "plan": plan.number})
