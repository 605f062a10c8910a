"""Purges: plans that delete what applied retention plans kept, once their grace is over."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.audit import trail as audit
from ranklake.lake.audit.proof import prove
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.kinds import PURGE
from ranklake.lake.plans.ledger import row_files
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.plans.units import Unit, carry_out
from ranklake.lake.plans.verification import refusal, verify_files, verify_written
from ranklake.lake.store.removal import delete
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_where
from ranklake.lake.tables.tables import latest
from ranklake.retention.proposals.kept import Kept, KeptFile, kept
from ranklake.retention.proposals.retention_plans import PURGED, TABLE, head_row, stamped

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.store import Lake

BEGIN: Final = "retention.purge"
"""Action of the trail's row that comes before such a plan; its time says that the grace was over."""


def compose(lake: "Lake", one: Kept, by: str, number: int) -> "Plan":
    """Return the plan that purges what a retention plan kept; its row of the register is written, and no other file."""
    row = head_row(one.proposal, PURGED, by, number)
    add = row_files(lake, TABLE, stamped([row], datetime.now(UTC)), number)
    facts = {"retention_plan": one.proposal.name, "of": one.plan.number}
    return action_plan.compose(number, PURGE.name, add=add, facts=facts)


def execute(lake: "Lake", plan: "Plan", _workers: object = None, _progress: object = None) -> None:
    """Delete what the plan that is purged kept, and what is left of the same dates from before; then write that down.

    Can be called again. What other retention plans keep stays. Raises `ranklake.lake.tables.commit.LostRaceError`.
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
    """Look whether a found plan purges what is kept, and whose grace was over when it was begun.

    The clock of whoever finds it is not asked: some of the files may be gone already, and nothing brings them back.
    """
    verify_files(lake, plan)
    name, number = plan.body["facts"]["retention_plan"], plan.body["facts"]["of"]
    found = next((one for one in kept(lake) if one.proposal.name == name and one.plan.number == number), None)
    if found is None:
        raise refusal(lake, plan, f"the plan would delete what is not kept: {name}")
    if why_not := _why_not_begun(lake, found):
        raise refusal(lake, plan, f"the plan would delete what {name} keeps: {why_not}")
    verify_written(lake, plan, TABLE, {"retention_plan": name, "row_kind": PURGED, "plan": plan.number})


def _why_not_begun(lake: "Lake", found: Kept) -> str:
    """Return what the trail lacks for a purge that was begun when the grace was over; empty if it has it."""
    proof = prove(lake)
    if not proof.whole:
        return f"the audit trail is broken: {proof.why}"
    handle = latest(lake, audit.TABLE)
    dates = set() if handle is None else set(files(handle)["date"].to_pylist())
    if any(when >= found.until for when in _begun(lake, found, [one for one in dates if one >= found.until.date()])):
        return ""
    if not _begun(lake, found):
        return "the audit trail does not say that it was begun"
    return f"it was begun in the grace, which lasts until {found.until:%Y-%m-%d %H:%M} UTC"


def _begun(lake: "Lake", found: Kept, dates: Sequence[date] | None = None) -> list[datetime]:
    """Return when the trail says that a purge was begun, on some dates or any."""
    handle = latest(lake, audit.TABLE)

    def mine(rows: pa.Table) -> pa.ChunkedArray:
        return pc.and_(pc.equal(rows["action"], BEGIN), pc.equal(rows["subject"], found.proposal.name))

    if handle is None:
        return []
    some = files(handle, dates)
    return [
        when
        for rows in read_where(lake, contract(audit.TABLE), some, ["ts"], ["action", "subject"], mine)
        for when in rows["ts"].to_pylist()
    ]
