"""Purges the files of applied retention plans after their days of grace, with one numbered plan for each.

days of grace over, by clock and uptime? no legal hold? ─▶ audit row (begun) ─▶ one plan: files deleted, and a row of
the register
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
from ranklake.lake.store.files import RIGHT_LACKS, UNKNOWN, delete, keeps_versions, lock_reason, remove_dead, versions
from ranklake.lake.store.governance import RAW
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_where
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.rehydrated import rehydrated_archives, remove_expired
from ranklake.retention.archive.sweeping import delete_ended_copies, sweep_archives
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
    """Delete object versions of an applied plan that the bucket no longer protects; return `left_in_bucket`."""
    plan = read_plan(lake.store, applied.plan) if applied.plan is not None else None
    if plan is not None:
        remove_dead(lake.fs, purged_places(lake, plan))
    return left_in_bucket(lake, applied)


def left_in_bucket(lake: "Lake", applied: "RetentionPlan") -> list[str]:
    """Return how many object versions the bucket keeps of an applied plan's deleted files, one line per reason.

    One line says so if that cannot be determined. Raises the errors of the store.
    """
    plan = read_plan(lake.store, applied.plan) if applied.plan is not None else None
    keeps = keeps_versions(lake.fs, lake.store.root)
    if plan is None or keeps is False:
        return []
    if keeps is None:
        return [UNKNOWN] if hasattr(lake.fs, "call_s3") else []  # other stores have no versions
    counts: Counter[str] = Counter()
    for place in purged_places(lake, plan):
        for version in versions(lake.fs, place):
            if not version.is_current and not version.is_marker:
                counts[lock_reason(lake.fs, version) or RIGHT_LACKS] += 1
    return [f"the bucket keeps {count:,} versions of what went: {reason}" for reason, count in sorted(counts.items())]


def compose(store: "Store", kept_plan: KeptPlan, by: str, number: int) -> "Plan":
    """Return the plan that purges the kept files of a retention plan. Writes only the file with the register's row."""
    row = head_row(kept_plan.proposal, PURGED, by, number)
    add = row_files(store, TABLE, with_time([row]), number)
    facts = {"retention_plan": kept_plan.proposal.name, "of": kept_plan.plan.number}
    return action_plan.compose(number, PURGE.name, add=add, facts=facts)


def execute(lake: "Lake", plan: "Plan", _workers: object = None, _progress: object = None) -> None:
    """Delete the kept files of the purged plan and older files of the same dates, then commit the register's row.

    Can be called again after a crash. Files that other retention plans keep are spared. Raises
    `ranklake.lake.tables.commit.LostRaceError`.
    """
    number = plan.body["facts"]["of"]
    carry_out(Unit("purge", detail=f"files that plan {number} kept"), lambda: _delete(lake, number))
    action_plan.execute(lake, plan)


def _delete(lake: "Lake", number: int) -> None:
    spared_paths: dict[str, set[str]] = {}
    purged_files: list[KeptFile] = []
    for kept_plan in kept_plans(lake.tables):
        if kept_plan.plan.number == number:
            purged_files += kept_plan.files
            continue
        for file in kept_plan.files:
            spared_paths.setdefault(file.table, set()).add(file.path)
    for file in purged_files:
        delete(lake.store, lake.path("tables", file.table, file.path))  # an earlier attempt may have deleted it
    purged = read_plan(lake.store, number)
    if purged is not None:
        action_plan.purge(lake, purged, spared_paths)


def verify_purge(lake: "Lake", plan: "Plan") -> None:
    """Check that an unfinished plan purges kept files, and that the days of grace were over when the purge began.

    The time of the audit row counts, not the clock of this machine: some files may be deleted already. Raises
    `ranklake.lake.plans.plan.RefusedPlanError`.
    """
    verify_files(lake, plan)
    name, number = plan.body["facts"]["retention_plan"], plan.body["facts"]["of"]
    kept_plan = kept_plan_of(lake.tables, name, number)
    if kept_plan is None:
        raise refusal(lake.store, plan, f"the plan would delete what is not kept: {name}")
    if fault := _begin_fault(lake, kept_plan):
        raise refusal(lake.store, plan, f"the plan would delete what {name} keeps: {fault}")
    verify_written(lake.store, plan, TABLE, {"retention_plan": name, "row_kind": PURGED, "plan": plan.number})


def _begin_fault(lake: "Lake", kept_plan: KeptPlan) -> str:
    """Return why the audit log does not prove that the purge began after the days of grace; empty if it does."""
    proof = prove(lake)
    if not proof.whole:
        return f"the audit log is broken: {proof.why}"
    handle = latest(lake.tables, audit.TABLE)
    dates = set() if handle is None else set(files(handle)["date"].to_pylist())
    dates_after = [day for day in dates if day >= kept_plan.until.date()]
    if any(when >= kept_plan.until for when in _begin_times(lake.tables, kept_plan, dates_after)):
        return ""
    if not _begin_times(lake.tables, kept_plan):
        return "the audit log does not say that it was begun"
    return f"it was begun in the grace, which lasts until {kept_plan.until:%Y-%m-%d %H:%M} UTC"


def _begin_times(tables: "Tables", kept_plan: KeptPlan, dates: Sequence[date] | None = None) -> list[datetime]:
    """Return the times of the audit rows that began a purge, on the given dates or on any."""
    handle = latest(tables, audit.TABLE)

    def is_begin(rows: pa.Table) -> pa.ChunkedArray:
        return pc.and_(pc.equal(rows["action"], PURGE_BEGIN), pc.equal(rows["subject"], kept_plan.proposal.name))

    if handle is None:
        return []
    live = files(handle, dates)
    return [
        when
        for rows in read_where(tables.store, contract(audit.TABLE), live, ["ts"], ["action", "subject"], is_begin)
        for when in rows["ts"].to_pylist()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """Result of `purge_due`.

    Attributes
    ----------
    plans
        Retention plans whose files were deleted.
    waiting
        Retention plans whose files are still kept, each with the reason.
    left
        Lines about object versions of deleted files that the bucket keeps.
    copies
        Number of deleted artifact copies that no row refers to any more.
    """

    plans: tuple[str, ...] = ()
    waiting: tuple[tuple[str, str], ...] = ()
    left: tuple[str, ...] = ()
    copies: int = 0

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        waiting = [{"plan": name, "why": reason} for name, reason in self.waiting]
        return {"plans": list(self.plans), "waiting": waiting, "versions_left": list(self.left), "copies": self.copies}


def purge_due(lake: "Lake", by: str, *, dry_run: bool = False) -> PurgeResult:
    """Purge the plans whose days of grace are over. After a crash the next call continues.

    A plan stays as it is, and can still be cancelled, if a legal hold covers any of its rows or if another program put
    its files back into a table. Raises the errors of the stores.
    """
    purged: list[str] = []
    waiting: list[tuple[str, str]] = []
    for kept_plan in kept_plans(lake.tables):
        name = kept_plan.proposal.name
        if reason := _keep_reason(lake, kept_plan):
            waiting.append((name, reason))
            continue
        if not dry_run:
            drive(lake, lambda number, name=name: _plan(lake, name, by, number), InProcess())  # type: ignore[misc]
        purged.append(name)
    copies = 0 if dry_run else sweep_copies(lake)
    if dry_run or not purged:
        return PurgeResult(plans=tuple(purged), waiting=tuple(waiting), copies=copies)
    sweep_archives(lake.tables)
    left = [line for name in purged for line in left_in_bucket(lake, RETENTION_PLANS.find(lake, name))]
    return PurgeResult(plans=tuple(purged), waiting=tuple(waiting), left=tuple(left), copies=copies)


def _plan(lake: "Lake", name: str, by: str, number: int) -> "Plan | None":
    """Record the begin of a purge and return its plan; None if the files must stay after all."""
    checked_rows = audit.length(lake)
    kept_plan = next((kept_plan for kept_plan in kept_plans(lake.tables) if kept_plan.proposal.name == name), None)
    if kept_plan is None or _keep_reason(lake, kept_plan):  # cancelled, purged or put on hold in between
        return None
    facts = {"rows": kept_plan.proposal.rows, "files": len(kept_plan.files), "kept_until": kept_plan.until.isoformat()}
    row = audit.record(lake, by, PURGE_BEGIN, name, None, facts, once=True)
    if row != checked_rows and _hold_reason(lake, kept_plan):  # a hold whose audit row precedes this purge
        return None
    return compose(lake.store, kept_plan, by, number)


def _keep_reason(lake: "Lake", kept_plan: KeptPlan) -> str:
    """Return why a plan's files must be kept for now; empty if they can be purged."""
    return kept_plan.why_not_over() or _hold_reason(lake, kept_plan) or _restored_tables(lake.store, kept_plan)


def _restored_tables(store: "Store", kept_plan: KeptPlan) -> str:
    """Return which tables refer to the plan's kept files again, as a clause; empty if none does."""
    clauses = [f"{table} has {rows:,} rows of it again" for table, rows in restored_rows(store, kept_plan).items()]
    return f"{' and '.join(clauses)}: another program restored the table; {RESTORE_HINT}" if clauses else ""


def _hold_reason(lake: "Lake", kept_plan: KeptPlan) -> str:
    """Return which legal hold covers rows or files of a plan, as a clause; empty if none does."""
    holds = holds_of(lake, clock.now().date())
    facts = run_facts(lake.tables, [hold.rule for hold in holds])
    for hold in holds:
        rows = _held_rows(lake, kept_plan, hold, facts)
        if rows:
            return f"the legal hold {hold.name} is about {rows:,} rows or files of it until {hold.until}"
    return ""


def _held_rows(lake: "Lake", kept_plan: KeptPlan, hold: "Hold", facts: RunFacts) -> int:
    """Return the number of rows, raw files and archives of a plan that a hold covers.

    Raw files and archives count if the hold may cover any rows of their table.
    """
    count = 0
    raw = kept_plan.plan.body["facts"].get(QUARANTINED, {})
    for name, days in raw.items():
        table = lake.contracts().get(name.removeprefix(RAW))
        if table is None or hold.rule.may_match(table):
            count += sum(map(len, days.values()))
    for name, days in kept_plan.plan.body["facts"].get(ENDED, {}).items():
        table = lake.contracts().get(name.removeprefix(ARCHIVED_ROWS))
        for day, archives in days.items():
            if table is None or (hold.covers(date.fromisoformat(day)) and hold.rule.may_match(table)):
                count += len(archives)
    for file in kept_plan.files:
        table = lake.contracts().get(file.table)
        if table is None or not hold.covers(file.day) or not hold.rule.may_match(table):
            continue
        parts = Parts(lake, table, (), (hold.rule,), facts)
        if not parts.columns:
            count += file.rows if parts.of_table().level is Level.HOLD else 0
            continue
        rows = rows_of(lake.tables, as_read(latest(lake.tables, file.table), table), file)
        count += int(pc.sum(parts.mask(rows, partial(_is_held, parts))).as_py() or 0)
    return count


def _is_held(parts: Parts, values: Values) -> bool:
    return parts.of(values).level is Level.HOLD


def expired_names(tables: "Tables", *, dry_run: bool = False) -> list[str]:
    """Delete expired rehydrated rows, and those whose archive was deleted; return the names of their proposals."""
    today = clock.now().date()
    ended = delete_ended_copies(tables, dry_run=dry_run)
    if not dry_run:
        return sorted([*ended, *remove_expired(tables.store, today)])
    return sorted({*ended, *(copy.name for copy in rehydrated_archives(tables.store) if copy.until <= today)})
