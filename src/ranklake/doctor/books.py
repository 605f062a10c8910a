"""Probes of what stands in the lake: the next plan, the audit trail, removals of rows."""

from collections.abc import Iterator
from datetime import UTC, datetime

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, failed, ok, warning
from ranklake.lake.audit.proof import prove
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.verification import authorise
from ranklake.retention.removals import unaccounted
from ranklake.views.words import counted


def plans(patient: Patient) -> Iterator[Finding]:
    """Say whether the next plan waits, and may be carried out; a refused one is told by what refuses it."""
    lake = Context.of(patient.config).open_lake()
    finished = last_finished(lake)
    plan = read_plan(lake, finished + 1)
    if plan is None:
        yield ok(f"all {finished:,} are finished")
        return
    authorise(lake, plan)
    age_s = (datetime.now(UTC) - plan.created).total_seconds()
    said = f"plan {plan.number} ({plan.kind}), written {age_s:,.0f} s ago, is not finished"
    if age_s > patient.overdue_s:
        yield warning(said, "'ranklake ingest' finishes it, or says why not")
    else:
        yield ok(f"{said}: somebody is at it")


def audit(patient: Patient) -> Iterator[Finding]:
    """Say whether the audit trail is whole, and its witness agrees."""
    proof = prove(Context.of(patient.config).open_lake())
    if proof.whole:
        yield ok(f"whole: {counted(proof.rows, 'row')}")
    else:
        mend = "find out who did it and restore the table from a backup; 'ranklake audit resume' goes on after a loss"
        yield failed(f"the audit trail is broken: {proof.why}", mend)


def removals(patient: Patient) -> Iterator[Finding]:
    """Say whether each removal of rows has its plan, its approval and its rows in the trail."""
    lines = unaccounted(Context.of(patient.config).open_lake())
    for line in lines:
        yield failed(line, "find out by 'ranklake audit list' who did it, and 'ranklake replay' what was lost")
    if not lines:
        yield ok("each has its plan and its approval")
