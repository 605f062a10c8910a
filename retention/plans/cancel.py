"""Cancels an applied retention plan: one numbered plan restores everything that it removed.

    applied, files kept? ─▶ (approved, if names are checked) ─▶ audit row (begun) ─▶ rows in new files, migrated to
        today's contract ─▶ one plan: files added, aggregates removed, a row of the register ─▶ audit row (applied)

Rows that an erasure removed in between are not restored. After a crash the next call continues; a vacuum deletes files
that no plan refers to.
"""

from datetime import date
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.audit import trail as audit
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import versions_of_stamp
from ranklake.lake.migrations.rewriting import concatenate, stored_rows, upgrade_rows
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.action_plan import FOLDED, MASKED, live_files
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.kinds import CANCELLATION, RENUMBER
from ranklake.lake.plans.plan import LEDGER, row_files
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.tables.order import key_columns
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read, read_some
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.register import made_by
from ranklake.retention.archive.rehydrated import rehydrated_archives, remove
from ranklake.retention.archive.rehydration import REHYDRATIONS
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.approvals import note_mode
from ranklake.retention.proposals.cancellations import CANCELLATIONS, Cancellation, needs_approval
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.proposals.kept import RESTORE_HINT, KeptFile, KeptPlan, as_files, kept_plans, restored_rows
from ranklake.retention.proposals.proposals import recorded_actions
from ranklake.retention.proposals.registers import with_time
from ranklake.retention.proposals.retention_plans import (
    CANCELLED,
    DOWNSAMPLED,
    RETENTION_PLANS,
    TABLE,
    RetentionPlan,
    head_row,
)
from ranklake.retention.proposals.retention_plans import register as retention_plans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile
    from ranklake.retention.proposals.lifecycle import WritePlan


_OLD, _NEW = "__old", "__now"


class CancelError(RanklakeError):
    """A retention plan cannot be cancelled. Nothing was changed."""


def propose(lake: "Lake", name: str, by: str, signing: Signing = NOT_SIGNING) -> bool:
    """Record in the audit log who proposes to cancel a plan and therefore may not approve it. Raises `CancelError`."""
    _refuse(RETENTION_PLANS.find(lake, name))
    return lifecycle.propose(lake, CANCELLATIONS, name, by, signing)


approve = lifecycle.approving(CANCELLATIONS)
"""Approves a cancellation, if names are checked; see `ranklake.retention.proposals.lifecycle.approve`."""


def cancel(lake: "Lake", name: str, by: str, *, signing: Signing = NOT_SIGNING) -> tuple[RetentionPlan, bool]:
    """Restore the rows and values that an applied retention plan removed. Return the plan, and whether this call did.

    Nothing changes if the plan is cancelled already.

    Raises
    ------
    CancelError
        The plan was not applied, or its files are not kept, or its rows cannot be restored unchanged.
    ranklake.retention.proposals.proposals.ProposalError
        Names are checked in this lake, and another person has not approved the cancellation.
    """
    plan = RETENTION_PLANS.find(lake, name)
    if plan.cancelled is None:
        _refuse(plan)
    if needs_approval(lake):
        _, is_new = lifecycle.apply(lake, CANCELLATIONS, name, by, partial(_check, lake, by), signing=signing)
    else:
        is_new = _cancel_unsigned(lake, plan, by)
    result = RETENTION_PLANS.find(lake, name)
    if result.cancelled is None:
        raise CancelError("the lake moved on", where=name, hint="run it again")
    _delete_rehydrated(lake, result.plan)
    return result, is_new


def _refuse(plan: RetentionPlan) -> None:
    """Raise `CancelError` if the plan keeps no files."""
    hint = "rows that are in an archive come back by 'ranklake retain rehydrate'; others are gone"
    if plan.plan is None:
        raise CancelError("this plan was not applied: there is nothing to bring back", where=plan.name)
    if plan.purged is not None:
        raise CancelError(f"its files were purged at {plan.purged:%Y-%m-%d %H:%M} UTC", where=plan.name, hint=hint)
    if plan.kept_until is None:
        message = "it was applied without a grace period, so its files went at once"
        raise CancelError(message, where=plan.name, hint=hint)


def _cancel_unsigned(lake: "Lake", plan: RetentionPlan, by: str) -> bool:
    """Cancel a plan in an unsigned lake; return whether this call did."""

    def compose(number: int) -> "Plan | None":
        cancellation = CANCELLATIONS.find(lake, plan.name)
        if cancellation.applied is not None:  # another process cancelled it
            return None
        write = _check(lake, by, cancellation)
        note_mode(lake, recorded_actions(lake.tables, CANCELLATIONS), by)
        audit.record(lake, by, CANCELLATIONS.begin, plan.name, None, dict(cancellation.facts), once=True)
        return write(number, alone=False)

    drive(lake, compose, InProcess())
    result = CANCELLATIONS.find(lake, plan.name)
    if result.applied is not None:
        details = {**result.outcome, "plan": result.plan}
        audit.record(lake, by, CANCELLATIONS.applied, plan.name, None, details, once=True)
    return plan.cancelled is None


def _check(lake: "Lake", by: str, cancellation: Cancellation) -> "WritePlan":
    """Return the function that writes the plan. Raises `CancelError` if the rows cannot be restored unchanged."""
    _refuse(RETENTION_PLANS.find(lake, cancellation.name))
    kept_plan = next(kept_plan for kept_plan in kept_plans(lake.tables) if kept_plan.proposal.name == cancellation.name)
    for table in {file.table for file in kept_plan.files}:
        if table not in lake.contracts():
            raise CancelError(
                f"there is no table {table} any more", where=cancellation.name, hint="configure its contract"
            )
        version = as_read(latest(lake.tables, table), lake.contract(table)).stamp
        newest = max((file.version or 0 for file in kept_plan.files if file.table == table), default=0)
        if newest > version:
            message = f"its rows of {table} are under contract version {newest}, and the table is under {version}"
            raise CancelError(message, where=cancellation.name, hint="apply the migration again that was undone")
    for table, rows in restored_rows(lake.store, kept_plan).items():
        message = f"{table} has {rows:,} rows of it again, by another program, and would have them twice"
        raise CancelError(message, where=cancellation.name, hint=RESTORE_HINT)
    _refuse_renumbered(lake.tables, kept_plan)
    _refuse_wrong_order(lake.tables, kept_plan)
    return partial(_write, lake, kept_plan, by)


def _refuse_renumbered(tables: "Tables", kept_plan: KeptPlan) -> None:
    """Raise `CancelError` if a later plan renumbered rows, since kept rows still have their old keys."""
    ledger = read(tables, contract(LEDGER), ["plan", "kind"])
    since = pc.and_(pc.equal(ledger["kind"], RENUMBER.name), pc.greater(ledger["plan"], kept_plan.plan.number))
    numbers = ledger.filter(since)["plan"].to_pylist()
    if numbers:
        message = f"plan {min(numbers)} gave rows other numbers since, which the kept ones would lack"
        raise CancelError(
            message, where=kept_plan.proposal.name, hint="replay the dates from the spool, if it has them"
        )


def _masked_dates(kept_plan: KeptPlan) -> set[tuple[str, date]]:
    """Return the tables and dates of which a plan masked values."""
    days_by_table = kept_plan.plan.body["facts"].get(MASKED, {})
    return {(table, date.fromisoformat(day)) for table, days in days_by_table.items() for day in days}


def _refuse_wrong_order(tables: "Tables", kept_plan: KeptPlan) -> None:
    """Raise `CancelError` if a later plan, which can be cancelled, removed or masked rows whose values this one masked.

    The later plan has to be cancelled first. Otherwise its rows would keep the masked values, or values that it masks
    would be restored in clear.
    """
    masked = _masked_dates(kept_plan)
    for other in kept_plans(tables) if masked else ():
        shared = masked & {(file.table, file.day) for file in other.files}
        if other.plan.number > kept_plan.plan.number and shared:
            table, day = min(shared)
            message = f"{other.proposal.name} took, or masked, rows of {table} {day} after it"
            raise CancelError(
                message, where=kept_plan.proposal.name, hint=f"ranklake retain cancel {other.proposal.name} first"
            )


def _masked_since(tables: "Tables", kept_plan: KeptPlan) -> set[tuple[str, date]]:
    """Return the tables and dates of which a later plan masked values and was not cancelled."""
    later = (
        other for other in retention_plans(tables).values() if other.holds and (other.plan or 0) > kept_plan.plan.number
    )
    return {(item.table, item.partition_date) for other in later for item in other.items if item.is_mask}


def _write(lake: "Lake", kept_plan: KeptPlan, by: str, number: int, *, alone: bool) -> "Plan":
    """Write the files of the numbered plan that cancels a retention plan, and return the plan."""
    add: list[DataFile] = []
    remove: dict[str, list[pa.Table]] = {}
    masked = _masked_dates(kept_plan)
    masked_again = masked & _masked_since(lake.tables, kept_plan)
    places: dict[tuple[str, date], list[KeptFile]] = {}
    for file in kept_plan.files:
        places.setdefault((file.table, file.day), []).append(file)
    for (table, day), kept in sorted(places.items()):
        remove.setdefault(table, []).append(as_files([]))  # so that reconciliation counts the added rows
        target = as_read(latest(lake.tables, table), lake.contract(table))
        live = live_files(lake, table, [day])
        if (table, day) in masked_again:  # its values cannot be distinguished from those that the later plan masked
            continue
        if (table, day) in masked:
            for old_file, new in _unmask_files(lake.tables, target, kept, live, number):
                remove.setdefault(table, []).append(old_file)
                add += new
        elif target.kind != "derived" or not live.num_rows:  # a derived table with rows was computed again
            for file in kept:
                add += append_files(lake.store, target, rows_of(lake.tables, target, file), number)
    for old_file, new in _remove_aggregates(lake, kept_plan, number):
        remove.setdefault(DOWNSAMPLED, []).append(old_file)
        add += new
    row = head_row(kept_plan.proposal, CANCELLED, by, number, single_operator=alone)
    add += row_files(lake.store, TABLE, with_time([row]), number)
    old_files = {table: pa.concat_tables(files, promote_options="default") for table, files in remove.items()}
    facts = {"retention_plan": kept_plan.proposal.name, "of": kept_plan.plan.number}
    return action_plan.compose(number, CANCELLATION.name, add=add, remove=old_files, facts=facts)


def rows_of(tables: "Tables", target: "Contract", file: KeptFile) -> pa.Table:
    """Return the rows of a kept file, migrated to the names, types and units of the contract `target`.

    Raises `ranklake.lake.tables.live_files.DamagedFileError`.
    """
    versions = versions_of_stamp(file.version or target.stamp)
    rows = upgrade_rows(stored_rows(tables, file.table, file.row), target, *versions)
    return rows if "date" in rows.column_names else rows.append_column("date", _days(file.day, rows.num_rows))


def _days(day: date, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(day, pa.date32()), rows)


def _unmask_files(
    tables: "Tables", target: "Contract", kept: list[KeptFile], live: pa.Table, number: int
) -> "Iterator[tuple[pa.Table, list[DataFile]]]":
    """Yield each live file with masked rows, and the new files in which these rows have their old values.

    Rows that were removed in between are not restored, and new rows are kept. Raises `CancelError` if the table's rows
    have no keys.
    """
    if not target.envelope:
        message = f"values of {target.table} were masked, and nothing tells its rows apart but their values"
        raise CancelError(message, hint="they stay masked; leave the plan as it is")
    keys = key_columns(target)
    old_rows = concatenate([rows_of(tables, target, file) for file in kept])
    old_keys = old_rows.select(keys).append_column(_OLD, pa.array(range(old_rows.num_rows), pa.int64()))
    for path, rows in read_some(tables, target, live, verify=True):
        new_keys = rows.select(keys).append_column(_NEW, pa.array(range(rows.num_rows), pa.int64()))
        matches = old_keys.join(new_keys, keys=keys, join_type="inner")
        if not matches.num_rows:
            continue
        others = rows.filter(pc.invert(pc.is_in(new_keys[_NEW], value_set=matches[_NEW].combine_chunks())))
        restored = pa.concat_tables([others, old_rows.take(matches[_OLD])], promote_options="permissive")
        yield live.filter(pc.equal(live["path"], path)), append_files(tables.store, target, restored, number)


def _remove_aggregates(lake: "Lake", kept_plan: KeptPlan, number: int) -> "Iterator[tuple[pa.Table, list[DataFile]]]":
    """Yield each live file with aggregates of the plan, and the new files without them."""
    days_by_table = kept_plan.plan.body["facts"].get(FOLDED, {})
    days = {date.fromisoformat(day) for table_days in days_by_table.values() for day in table_days}
    if not days:
        return
    target = lake.contract(DOWNSAMPLED)
    live = live_files(lake, DOWNSAMPLED, sorted(days))
    changes = action_plan.remove_rows(
        lake.tables, target, number, live, lambda rows: pc.equal(rows["plan"], kept_plan.plan.number)
    )
    yield from ((old_file, new) for old_file, new, _ in changes)


def _delete_rehydrated(lake: "Lake", number: int | None) -> None:
    """Delete the rows that were brought back from the plan's archives, since they are in their tables again."""
    plan_archives = made_by(lake.tables, number)
    rehydrations = REHYDRATIONS.register(lake) if plan_archives else {}
    for copy in rehydrated_archives(lake.store) if plan_archives else ():
        if copy.name in rehydrations and plan_archives & set(rehydrations[copy.name].archives):
            remove(lake.store, copy.name)
