"""Carries out, and verifies, plans of kind ``migration``: one commit that changes columns and files together."""

from dataclasses import replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING

from deltalake.exceptions import CommitFailedError

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.model import Contract
from ranklake.lake.migrations.register import note
from ranklake.lake.migrations.registry import contract_at, ends_of, load_migrations
from ranklake.lake.plans.driver import Unit, carry_out
from ranklake.lake.plans.plan import LEDGER, commit_rows, ledger_row
from ranklake.lake.plans.verification import refusal, verify_files
from ranklake.lake.store.governance import require_approved_migration
from ranklake.lake.tables.commit import AGAIN, PLAN_ID, LostRaceError, change_contract, transaction_number
from ranklake.lake.tables.live_files import DataFile, live_paths
from ranklake.lake.tables.table_schema import added_version_of, align, as_logged, fields_of, version_of
from ranklake.lake.tables.tables import delta_table, reading_log, refresh

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake


def target_of(catalog: "Catalog", migration: "Migration", handle: "DeltaTable", *, backwards: bool) -> Contract:
    """Return the contract that a migration leads a table to, or back to, with columns that are not ours to change.

    Those are columns of the log that neither contract knows: an overlay's, which stay as they are.
    """
    ends = ends_of(migration, catalog.overlay)
    here, there = reversed(ends) if backwards else ends
    fields = fields_of(handle.schema())
    own = {*here.names, *there.names}
    foreign = {field["name"] for field in fields} - own
    if migration.is_of_added:  # what is ours stays as the log has it
        ours = as_logged(fields, contract_at(migration.table, max(version_of(handle), 1)), foreign)
        return replace(ours, columns=(*ours.columns, *there.columns))
    if not foreign:
        return there
    return replace(there, columns=(*there.columns, *as_logged(fields, there, foreign).columns))


def execute(lake: "Lake", plan: "Plan", _workers: object = None, _progress: object = None) -> None:
    """Carry out the plan, again if need be. Raises `LostRaceError`."""
    migration = _migration_of(lake, plan)
    table = migration.table
    dates = {date.fromisoformat(row["partition"]) for row in plan.body["add"]}
    unit = Unit("commit", table, tuple(dates), f"plan {plan.number} (migration)", writes=True)
    if carry_out(unit, partial(_commit, lake, plan, migration)):
        note(lake.tables, migration, plan)
    row = ledger_row(plan, plan.body["account"])
    last = Unit("commit", LEDGER, detail=f"plan {plan.number}", writes=True)
    carry_out(last, lambda: commit_rows(lake.tables, LEDGER, [row], plan.number))


def _commit(lake: "Lake", plan: "Plan", migration: "Migration") -> bool:
    """Commit, unless that was done; return whether it is.

    Some tables are written beside plans. Where somebody was faster with such a table, the plan is passed over: its
    files are not of those that are there now. Raises `LostRaceError`.
    """
    handle = delta_table(lake.store, migration.table)
    assert handle is not None, "a migration of no table"
    backwards = plan.body["facts"]["backwards"]
    target = target_of(lake.catalog, migration, handle, backwards=backwards)
    done = transaction_number(handle, PLAN_ID) or 0
    if done > plan.number:
        return True
    if done < plan.number:
        gone = {row["path"] for row in plan.body["remove"].get(migration.table, [])}
        if gone and gone != live_paths(handle):
            return False
        end = migration.from_version if backwards else migration.to_version
        of_added = migration.is_of_added
        target = replace(
            target,
            version=version_of(handle) if of_added else end,
            added_version=end if of_added else added_version_of(handle),
        )
        new = [DataFile(**{**row, "partition": date.fromisoformat(row["partition"])}) for row in plan.body["add"]]
        metadata = {"ranklake.plan": str(plan.number), "ranklake.migration": migration.label}
        change_contract(handle, target, plan.number, new, metadata)
        refresh(handle)
    try:
        with reading_log(handle):
            align(handle, target)
    except CommitFailedError as error:
        raise LostRaceError(f"{migration.table} moved on", where=lake.uri, hint=AGAIN) from error
    return True


def _migration_of(lake: "Lake", plan: "Plan") -> "Migration":
    facts = plan.body["facts"]
    known = {one.label: one for one in load_migrations(overlay=lake.catalog.overlay)}
    migration = known.get(facts["migration"])
    if migration is None:
        raise refusal(lake.store, plan, f"migration {facts['migration']} is not known here", "upgrade ranklake")
    if migration.sha256 != facts["sha256"]:
        message = f"migration {migration.label} is not the one that the plan was made by"
        raise refusal(lake.store, plan, message, "restore its file, or go on with the release that made the plan")
    return migration


def verify_migration(lake: "Lake", plan: "Plan") -> None:
    """Look whether a found plan is of a migration that is known here, approved if it drops, and loses no row."""
    migration = _migration_of(lake, plan)
    if {*plan.body["remove"], *(row["table"] for row in plan.body["add"])} - {migration.table}:
        raise refusal(lake.store, plan, f"the plan changes other tables than {migration.table}")
    facts = plan.body["facts"]
    if facts.get("computed") and lake.contract(migration.table).kind != "derived":
        raise refusal(lake.store, plan, f"the plan computes dates of {migration.table}, which is no derived table")
    verify_files(lake, plan)
    if not migration.drops or facts["backwards"]:
        return
    try:
        require_approved_migration(lake, migration.sha256, facts["round"])
    except RanklakeError as error:
        raise refusal(lake.store, plan, f"the plan would drop values without approval: {error}") from error
