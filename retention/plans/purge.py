"""Purges what applied retention plans kept, when their grace is over: each by a numbered plan of its own.

First clock and uptime must say that it is over, and no legal hold may be about any of it. Then comes a row of the audit
trail, then the plan: files deleted, the register's row.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.audit import clock
from ranklake.lake.audit import trail as audit
from ranklake.lake.audit.proof import prove
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.action_plan import ENDED, QUARANTINED, purged_places
from ranklake.lake.plans.driver import Unit, carry_out, drive
from ranklake.lake.plans.kinds import PURGE
from ranklake.lake.plans.plan import read_plan, row_files
from ranklake.lake.plans.verification import refusal, verify_files, verify_written
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.files import RIGHT_LACKS, UNKNOWN, delete, keeps_versions, remove_dead, versions, why_kept
from ranklake.lake.store.governance import RAW
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_where
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.rehydrated import rehydrated_archives, remove_expired
from ranklake.retention.archive.sweeping import forget_ended, sweep_archives
from ranklake.retention.copies import sweep_copies
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.plans.cancel import rows_of
from ranklake.retention.policies.order import Level
from ranklake.retention.policies.parts import Parts, RunFacts, Values, run_facts
from ranklake.retention.proposals.kept import (
    ARCHIVED_ROWS,
    RESTORE_HINT,
    KeptFile,
    KeptPlan,
    kept_plan_of,
    kept_plans,
    restored_rows,
)
from ranklake.retention.proposals.registers import with_time
from ranklake.retention.proposals.retention_plans import PURGE_BEGIN, PURGED, RETENTION_PLANS, TABLE, head_row

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.retention.holds.hold import Hold
    from ranklake.retention.proposals.retention_plans import RetentionPlan


def delete_left(lake: "Lake", applied: "RetentionPlan") -> list[str]:
    """Delete what can be deleted by now of what a bucket keeps of an applied plan; return `left_in_bucket`."""
    plan = read_plan(lake.store, applied.plan) if applied.plan is not None else None
    if plan is not None:
        remove_dead(lake.fs, purged_places(lake, plan))
    return left_in_bucket(lake, applied)


def left_in_bucket(lake: "Lake", applied: "RetentionPlan") -> list[str]:
    """Return how many versions the bucket keeps of what an applied plan took, in lines by reason; empty if none.

    Where that cannot be determined, one line says so. Raises what the store raises.
    """
    plan = read_plan(lake.store, applied.plan) if applied.plan is not None else None
    keeps = keeps_versions(lake.fs, lake.store.root)
    if plan is None or keeps is False:
        return []
    if keeps is None:
        return [UNKNOWN] if hasattr(lake.fs, "call_s3") else []  # of other stores it never can
    why: Counter[str] = Counter()
    for place in purged_places(lake, plan):
        for version in versions(lake.fs, place):
            if not version.is_current and not version.is_marker:
                why[why_kept(lake.fs, version) or RIGHT_LACKS] += 1
    return [f"the bucket keeps {count:,} versions of what went: {reason}" for reason, count in sorted(why.items())]


def compose(store: "Store", kept_plan: KeptPlan, by: str, number: int) -> "Plan":
    """Return the plan that purges what a retention plan kept; its row of the register is written, and no other file."""
    row = head_row(kept_plan.proposal, PURGED, by, number)
    add = row_files(store, TABLE, with_time([row]), number)
    facts = {"retention_plan": kept_plan.proposal.name, "of": kept_plan.plan.number}
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
    for kept_plan in kept_plans(lake.tables):
        if kept_plan.plan.number == number:
            mine += kept_plan.files
            continue
        for file in kept_plan.files:
            spare.setdefault(file.table, set()).add(file.path)
    for file in mine:
        delete(lake.store, lake.path("tables", file.table, file.path))  # an earlier try may have come this far
    purged = read_plan(lake.store, number)
    if purged is not None:
        action_plan.purge(lake, purged, spare)


def verify_purge(lake: "Lake", plan: "Plan") -> None:
    """Check that a found plan purges what is kept, and whose grace was over when it was begun.

    The clock of whoever finds it is not asked: some of the files may be gone already, and nothing brings them back.
    """
    verify_files(lake, plan)
    name, number = plan.body["facts"]["retention_plan"], plan.body["facts"]["of"]
    kept_plan = kept_plan_of(lake.tables, name, number)
    if kept_plan is None:
        raise refusal(lake.store, plan, f"the plan would delete what is not kept: {name}")
    if why_not := _why_not_begun(lake, kept_plan):
        raise refusal(lake.store, plan, f"the plan would delete what {name} keeps: {why_not}")
    verify_written(lake.store, plan, TABLE, {"retention_plan": name, "row_kind": PURGED, "plan": plan.number})


def _why_not_begun(lake: "Lake", kept_plan: KeptPlan) -> str:
    """Return what the trail lacks for a purge that was begun when the grace was over; empty if it has it."""
    proof = prove(lake)
    if not proof.whole:
        return f"the audit trail is broken: {proof.why}"
    handle = latest(lake.tables, audit.TABLE)
    dates = set() if handle is None else set(files(handle)["date"].to_pylist())
    if any(
        when >= kept_plan.until
        for when in _begun(lake.tables, kept_plan, [one for one in dates if one >= kept_plan.until.date()])
    ):
        return ""
    if not _begun(lake.tables, kept_plan):
        return "the audit trail does not say that it was begun"
    return f"it was begun in the grace, which lasts until {kept_plan.until:%Y-%m-%d %H:%M} UTC"


def _begun(tables: "Tables", kept_plan: KeptPlan, dates: Sequence[date] | None = None) -> list[datetime]:
    """Return when the trail says that a purge was begun, on some dates or any."""
    handle = latest(tables, audit.TABLE)

    def mine(rows: pa.Table) -> pa.ChunkedArray:
        return pc.and_(pc.equal(rows["action"], PURGE_BEGIN), pc.equal(rows["subject"], kept_plan.proposal.name))

    if handle is None:
        return []
    live = files(handle, dates)
    return [
        when
        for rows in read_where(tables.store, contract(audit.TABLE), live, ["ts"], ["action", "subject"], mine)
        for when in rows["ts"].to_pylist()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """What a call did about kept files.

    Attributes
    ----------
    plans
        Retention plans whose files went.
    waiting
        Those whose files stay for now, each with the reason.
    left
        What a bucket keeps of the former all the same, in lines.
    copies
        Files of copied artifacts that went, since no row names them any more.
    """

    plans: tuple[str, ...] = ()
    waiting: tuple[tuple[str, str], ...] = ()
    left: tuple[str, ...] = ()
    copies: int = 0

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        waiting = [{"plan": name, "why": why} for name, why in self.waiting]
        return {"plans": list(self.plans), "waiting": waiting, "versions_left": list(self.left), "copies": self.copies}


def purge_due(lake: "Lake", by: str, *, dry_run: bool = False) -> PurgeResult:
    """Delete what was kept, and whose grace is over; killed half-way, the next call goes on.

    Where a legal hold is about any of a plan's rows, all that it took stays as it is, and can be cancelled; it stays,
    too, where another program restored a table that has some of it again. Raises what the stores raise.
    """
    gone: list[str] = []
    waiting: list[tuple[str, str]] = []
    for kept_plan in kept_plans(lake.tables):
        name = kept_plan.proposal.name
        if why := _why_not(lake, kept_plan):
            waiting.append((name, why))
            continue
        if not dry_run:
            drive(lake, lambda number, name=name: _plan(lake, name, by, number), InProcess())  # type: ignore[misc]
        gone.append(name)
    copies = 0 if dry_run else sweep_copies(lake)
    if dry_run or not gone:
        return PurgeResult(plans=tuple(gone), waiting=tuple(waiting), copies=copies)
    sweep_archives(lake.tables)
    left = [line for name in gone for line in left_in_bucket(lake, RETENTION_PLANS.find(lake, name))]
    return PurgeResult(plans=tuple(gone), waiting=tuple(waiting), left=tuple(left), copies=copies)


def _plan(lake: "Lake", name: str, by: str, number: int) -> "Plan | None":
    seen = audit.length(lake)
    kept_plan = next((kept_plan for kept_plan in kept_plans(lake.tables) if kept_plan.proposal.name == name), None)
    if kept_plan is None or _why_not(lake, kept_plan):  # it was cancelled, or purged, or is held by now
        return None
    facts = {"rows": kept_plan.proposal.rows, "files": len(kept_plan.files), "kept_until": kept_plan.until.isoformat()}
    if audit.record(lake, by, PURGE_BEGIN, name, None, facts, once=True) != seen and _hold_reason(lake, kept_plan):
        return None  # by a hold that was set since, and so before this purge
    return compose(lake.store, kept_plan, by, number)


def _why_not(lake: "Lake", kept_plan: KeptPlan) -> str:
    """Return why what a plan took stays for now; empty if it goes."""
    return kept_plan.why_not_over() or _hold_reason(lake, kept_plan) or _restored_tables(lake.store, kept_plan)


def _restored_tables(store: "Store", kept_plan: KeptPlan) -> str:
    """Return which tables have files of it again, which they would lack; empty if none has."""
    again = [f"{table} has {rows:,} rows of it again" for table, rows in restored_rows(store, kept_plan).items()]
    return f"{' and '.join(again)}: another program restored the table; {RESTORE_HINT}" if again else ""


def _hold_reason(lake: "Lake", kept_plan: KeptPlan) -> str:
    """Return which legal hold keeps what a plan took; empty if none does."""
    holds = holds_of(lake, clock.now().date())
    facts = run_facts(lake.tables, [hold.rule for hold in holds])
    for hold in holds:
        rows = _held_rows(lake, kept_plan, hold, facts)
        if rows:
            return f"the legal hold {hold.name} is about {rows:,} rows or files of it until {hold.until}"
    return ""


def _held_rows(lake: "Lake", kept_plan: KeptPlan, hold: "Hold", facts: RunFacts) -> int:
    count = 0
    raw = kept_plan.plan.body["facts"].get(QUARANTINED, {})
    for name, days in raw.items():
        known = lake.contracts().get(name.removeprefix(RAW))
        if known is None or hold.rule.may_match(known):
            count += sum(map(len, days.values()))
    for name, days in kept_plan.plan.body["facts"].get(ENDED, {}).items():
        known = lake.contracts().get(name.removeprefix(ARCHIVED_ROWS))
        for day, archives in days.items():
            if known is None or (hold.covers(date.fromisoformat(day)) and hold.rule.may_match(known)):
                count += len(archives)  # whose rows they have nobody looks up
    for file in kept_plan.files:
        known = lake.contracts().get(file.table)
        if known is None or not hold.covers(file.day) or not hold.rule.may_match(known):
            continue
        parts = Parts(lake, known, (), (hold.rule,), facts)
        if not parts.columns:
            count += file.rows if parts.of_table().level is Level.HOLD else 0
            continue
        rows = rows_of(lake.tables, as_read(latest(lake.tables, file.table), known), file)
        count += int(pc.sum(parts.mask(rows, partial(_is_held, parts))).as_py() or 0)
    return count


def _is_held(parts: Parts, values: Values) -> bool:
    return parts.of(values).level is Level.HOLD


def expired_names(tables: "Tables", *, dry_run: bool = False) -> list[str]:
    """Delete rehydrated rows whose day, or archive, is over, and return the names of what they came back by."""
    today = clock.now().date()
    ended = forget_ended(tables, dry_run=dry_run)
    if not dry_run:
        return sorted([*ended, *remove_expired(tables.store, today)])
    return sorted({*ended, *(one.name for one in rehydrated_archives(tables.store) if one.until <= today)})
