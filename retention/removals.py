"""Whether every removal of rows has what it must have: ledger, plan files, register and audit trail held together."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract
from ranklake.lake.delta.read import read
from ranklake.lake.governance.evidence import missing_evidence
from ranklake.lake.governance.retention_plans import RETENTION_PLANS, register
from ranklake.lake.governance.steps import Actions, recorded_actions
from ranklake.lake.plans.kinds import RETENTION, Rows, booked
from ranklake.lake.plans.plan import LEDGER, DamagedPlanError, last_finished, read_plan

if TYPE_CHECKING:
    from ranklake.lake.governance.retention_plans import RetentionPlan
    from ranklake.lake.storage.store import Lake


def unaccounted(lake: "Lake") -> list[str]:
    """Return what removals of rows lack, in lines; none if each has its plan, its approval, its begin and its end.

    Reads the ledger, the register, the audit trail, and the plan files of removals. Raises what the store raises.
    """
    plans, trail = register(lake), recorded_actions(lake, RETENTION_PLANS)
    every = read(lake, contract(LEDGER), ["plan", "kind", "tables"])
    # Of the plans of years, those that took something away: only a count below zero has a minus.
    some = every.filter(pc.or_kleene(pc.match_substring(every["tables"], "-"), pc.equal(every["kind"], RETENTION.name)))
    ledger = {row["plan"]: row for row in some.to_pylist()}
    return [
        *_by_ledger(lake, ledger, plans, trail),
        *_by_register(lake, ledger, plans),
        *(
            f"the audit trail tells that {name} was applied, and the register does not know it"
            for name, rows in sorted(trail.items())
            if RETENTION_PLANS.applied in rows and name not in plans
        ),
    ]


def _by_ledger(
    lake: "Lake", ledger: Mapping[int, Mapping[str, Any]], plans: "Mapping[str, RetentionPlan]", trail: Actions
) -> Iterator[str]:
    applied = {one.plan: one for one in plans.values() if one.plan is not None}
    for number, row in sorted(ledger.items()):
        gone = {table: -rows for table, rows in json.loads(row["tables"]).items() if rows < 0}
        head = f"plan {number} ({row['kind']}) removed {sum(gone.values())} rows"
        if row["kind"] == RETENTION.name:
            for what in _lacks(lake, number, gone, applied.get(number), trail):
                yield f"{head}: {what}"
        elif gone and booked(row["kind"]) in {Rows.BROUGHT, Rows.KEPT}:
            yield f"{head}, and such a plan removes none"
        elif gone and booked(row["kind"]) is Rows.RETIRED:  # what a check moves is in rejects, and the books know it
            yield f"{head}, and nothing says who approved that"


def _lacks(
    lake: "Lake", number: int, gone: Mapping[str, int], one: "RetentionPlan | None", trail: Actions
) -> Iterator[str]:
    """Yield what a retention lacks that was carried out."""
    try:
        plan = read_plan(lake, number)
        if plan is None or plan.kind != RETENTION.name:
            yield "its plan file is gone" if plan is None else f"its plan file is of kind {plan.kind}"
    except DamagedPlanError as error:
        yield str(error)
    if one is None:
        yield "the register has no plan that it applied"
        return
    expected: Counter[str] = Counter()
    for item in one.items:
        expected[item.table] += item.rows
    rows, again = trail.get(one.name, {}), f"run 'ranklake retain apply {one.name}' again"
    missing = missing_evidence(RETENTION_PLANS, one, trail)
    faults = {
        f"the items of {one.name} were altered": not one.intact,
        f"{one.name} names other rows": dict(gone) != {table: count for table, count in expected.items() if count},
        f"the register does not have the plan {one.name}": one.proposed is None,
        f"the register has no approval of {one.name}": one.approved is None,
        f"{one.name}: {missing}": bool(missing),
        f"the audit trail does not say that {one.name} was begun": RETENTION_PLANS.begin not in rows,
        f"the audit trail does not say that {one.name} was applied; {again}": RETENTION_PLANS.applied not in rows,
    }
    yield from (what for what, found in faults.items() if found)


def _by_register(
    lake: "Lake", ledger: Mapping[int, Mapping[str, Any]], plans: "Mapping[str, RetentionPlan]"
) -> Iterator[str]:
    """Yield what the register says and the ledger does not."""
    finished = last_finished(lake)
    for one in plans.values():
        if one.plan is not None and one.plan <= finished and ledger.get(one.plan, {}).get("kind") != RETENTION.name:
            yield f"{one.name} says that plan {one.plan} applied it, and the ledger does not"
        elif not one.intact and one.plan is None:
            yield f"{one.name}: its items were altered; it cannot be applied"
