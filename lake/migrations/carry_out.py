"""Carries out, and verifies, plans of kind ``migration``: one commit that changes columns and files together."""

import time
from dataclasses import replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.delta import STATISTICS_PROPERTY, statistics_columns
from ranklake.lake.contracts.model import Contract
from ranklake.lake.migrations.register import MIGRATIONS, note, proposal_name
from ranklake.lake.migrations.registry import contract_at, ends_of, load_migrations
from ranklake.lake.plans.ledger import commit_rows, ledger_row
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.plans.units import Unit, carry_out
from ranklake.lake.plans.verification import refusal, verify_files
from ranklake.lake.tables.commit import APP_ID, PLAN_ID, LostRaceError, number_of, said
from ranklake.lake.tables.data_file import addition
from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.table_schema import (
    ADDED_VERSION,
    CONTRACT_VERSION,
    as_logged,
    commit,
    contract_fields,
    fields_of,
    metadata_action,
    version_of,
)
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.proposals.evidence import require

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.store import Lake


def target_of(lake: "Lake", migration: "Migration", handle: "DeltaTable", *, backwards: bool) -> Contract:
    """Return the contract that a migration leads a table to, or back to, with columns that are not ours to change.

    Those are columns of the log that neither contract knows: an overlay's, which stay as they are.
    """
    ends = ends_of(migration, lake.overlay)
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
        note(lake, migration, plan)
    row = ledger_row(plan, plan.body["account"])
    last = Unit("commit", LEDGER, detail=f"plan {plan.number}", writes=True)
    carry_out(last, lambda: commit_rows(lake, LEDGER, [row], plan.number))


def _commit(lake: "Lake", plan: "Plan", migration: "Migration") -> bool:
    """Commit, unless that was done; return whether it is.

    A derived table is written beside plans. Where a release of before was faster with it, the plan is passed over: its
    files are not of those that are there now.
    """
    handle = delta_table(lake, migration.table)
    assert handle is not None, "a migration of no table"
    done = said(handle, PLAN_ID)
    if done is not None and done >= plan.number:
        return True
    gone = plan.body["remove"].get(migration.table, [])
    is_derived = lake.contract(migration.table).kind == "derived"
    if gone and is_derived and {row["path"] for row in gone} != live_paths(handle):
        return False
    backwards = plan.body["facts"]["backwards"]
    target = target_of(lake, migration, handle, backwards=backwards)
    properties = {
        STATISTICS_PROPERTY: ",".join(statistics_columns(target)),
        ADDED_VERSION if migration.is_of_added else CONTRACT_VERSION: str(
            migration.from_version if backwards else migration.to_version
        ),
    }
    now = int(time.time() * 1000)
    numbers = {APP_ID: max(plan.number, number_of(handle) + 1), PLAN_ID: plan.number}
    actions: list[dict[str, Any]] = [metadata_action(handle, contract_fields(target), properties)]
    actions += [{"txn": {"appId": name, "version": number}} for name, number in numbers.items()]
    actions += [_removal(row, now) for row in gone]
    actions += [
        addition(row["path"], row["partition"], row["size_bytes"], row["stats"], now) for row in plan.body["add"]
    ]
    info = {"operation": "MIGRATE", "ranklake.plan": str(plan.number), "ranklake.migration": migration.label}
    if not commit(lake, migration.table, handle.version(), actions, info):
        raise LostRaceError(f"{migration.table} moved on", where=lake.uri, hint="run it again")
    return True


def _removal(row: dict[str, Any], now: int) -> dict[str, Any]:
    return {
        "remove": {
            "path": row["path"],
            "deletionTimestamp": now,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {"date": row["date"]},
            "size": row["size_bytes"],
        }
    }


def _migration_of(lake: "Lake", plan: "Plan") -> "Migration":
    facts = plan.body["facts"]
    known = {one.label: one for one in load_migrations(overlay=lake.overlay)}
    found = known.get(facts["migration"])
    if found is None:
        raise refusal(lake, plan, f"migration {facts['migration']} is not known here", "upgrade ranklake")
    if found.sha256 != facts["sha256"]:
        what = f"migration {found.label} is not the one that the plan was made by"
        raise refusal(lake, plan, what, "restore its file, or go on with the release that made the plan")
    return found


def verify_migration(lake: "Lake", plan: "Plan") -> None:
    """Look whether a found plan is of a migration that is known here, approved if it drops, and loses no row."""
    migration = _migration_of(lake, plan)
    if {*plan.body["remove"], *(row["table"] for row in plan.body["add"])} - {migration.table}:
        raise refusal(lake, plan, f"the plan changes other tables than {migration.table}")
    facts = plan.body["facts"]
    if facts.get("moves_rows", False) is not migration.moves_rows:
        raise refusal(lake, plan, f"the plan moves rows to other dates, and {migration.label} does not, or the reverse")
    if facts.get("computed") and lake.contract(migration.table).kind != "derived":
        raise refusal(lake, plan, f"the plan computes dates of {migration.table}, which is no derived table")
    verify_files(lake, plan)
    if not migration.drops or facts["backwards"]:
        return
    name = proposal_name(migration.sha256, facts["round"])
    try:
        require(lake, MIGRATIONS, MIGRATIONS.find(lake, name), begun=True)
    except RanklakeError as error:
        raise refusal(lake, plan, f"the plan would drop values without approval: {name}: {error.what}") from error
