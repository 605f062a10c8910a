"""Applies due migrations, and undoes the last migration of a table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.audit import trail as audit
from ranklake.lake.migrations.composing import Work
from ranklake.lake.migrations.due import due, in_order
from ranklake.lake.migrations.register import REVERTED, history, last_applied
from ranklake.lake.migrations.registry import ends_of, load_migrations
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.plan import LEDGER, read_plan
from ranklake.lake.store.governance import apply_migration
from ranklake.lake.tables.table_schema import added_version_of, version_of
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.migrations.due import Computing
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Plan, Progress
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake


_TRIES: Final = 10
BEGIN: Final = "migration.apply"
APPLIED: Final = "migration.applied"
"""Actions in the audit log: a migration begins; a migration was applied."""


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """A migration that was applied or undone.

    Attributes
    ----------
    label, table, version
        Label of the migration, its table, and the table's contract version afterwards.
    plan
        Number of the plan.
    rows
        Number of rewritten rows.
    is_of_added
        Whether the migration and the version concern only columns that an overlay adds to a packaged table.
    """

    label: str
    table: str
    version: int
    plan: int
    rows: int
    is_of_added: bool = False


def apply(
    lake: "Lake",
    workers: "Workers",
    by: str,
    table: str | None = None,
    *,
    single_operator: bool = False,
    signing: Any = None,  # noqa: ANN401 - passes through to governance
    progress: "Progress | None" = None,
    computing: "Computing | None" = None,
) -> list[MigrationResult]:
    """Apply all due migrations. Returns the migrations that this call applied. An interrupted call can be repeated.

    Raises `MigrationError`, and for a migration that drops values the errors of
    `ranklake.retention.proposals.lifecycle.apply`. The failed migration has then changed nothing; earlier ones remain
    applied.

    Parameters
    ----------
    by
        Name of the person, for the audit log.
    single_operator
        Whether the person who approved a migration that drops values may also apply it.
    signing
        Signs the application of a migration that drops values, if approvals are signed.
    computing
        Computes dates of derived tables from their inputs. Without it their rows are rewritten like those of others.
    """
    lake.catalog.keep()
    drive(lake, lambda _: None, workers)  # first finish an interrupted plan
    results = []
    for migration in [item.migration for item in in_order(lake, due(lake, table), computing)]:
        if migration.table == LEDGER and not migration.is_metadata_only:
            raise MigrationError(
                "the ledger changes by added columns alone", where=migration.path, hint="write another"
            )
        work = Work(lake, workers, migration, progress=progress, computing=computing)
        if migration.drops:
            plan = _apply_approved(work, by, signing, single_operator=single_operator)
        else:
            details = {"migration": migration.label, "table": migration.table, "sha256": migration.sha256}
            audit.record(lake, by, BEGIN, migration.label, None, details)
            plan = _drive(work)
            if plan is not None:
                audit.record(lake, by, APPLIED, migration.label, None, {**details, "plan": plan.number})
        work.forget()
        if plan is not None:
            results.append(_result(migration, plan, migration.to_version))
    return results


def _drive(work: Work) -> "Plan | None":
    """Carry a migration out. Repeats it if a rollup of the previous release committed to its table meanwhile."""
    for _ in range(_TRIES):
        plan = drive(work.lake, work.compose, work.workers).plan
        if plan is None or work.is_done:
            return plan
    message = f"others wrote to {work.migration.table} {_TRIES} times meanwhile"
    raise MigrationError(
        message, where=work.migration.label, hint="end the rollups of the release before; run it again"
    )


def _apply_approved(work: Work, by: str, signing: Any, *, single_operator: bool) -> "Plan | None":  # noqa: ANN401
    lake, label = work.lake, work.migration.label

    def compose(number: int, facts: dict[str, Any]) -> "Plan":
        plan = work.compose(number, facts)
        if plan is None:
            raise MigrationError("it was applied already", where=label, hint="run it again")
        return plan

    number = apply_migration(lake, label, by, compose, single_operator=single_operator, signing=signing)
    return None if number is None else read_plan(lake.store, number)


def undo(
    lake: "Lake", workers: "Workers", by: str, table: str, *, progress: "Progress | None" = None
) -> MigrationResult:
    """Undo the last applied migration of a table.

    For files that did not change since the migration, the rows of the old files are restored, so that all values are
    the original ones, dropped columns included. Other rows are converted back by the steps. Raises `MigrationError`,
    after which nothing has changed, if there is nothing to undo or dropped values cannot be restored.
    """
    drive(lake, lambda _: None, workers)
    row = last_applied(lake, table)
    handle = delta_table(lake.store, table)
    if row is None and handle is not None:  # an earlier undo may have been interrupted before its last step
        _restore_version(lake, table)
    known = {migration.number: migration for migration in load_migrations(overlay=lake.catalog.overlay)}
    if row is None or handle is None or row["number"] not in known:
        raise MigrationError(f"no migration of {table} is there to undo", where=table, hint="see the table migrations")
    migration = known[row["number"]]
    if migration.version_in(handle) != migration.to_version:
        raise MigrationError(
            f"{table} is not at version {migration.to_version} any more", where=table, hint="look again"
        )
    _refuse_taken(migration, lake.catalog)
    work = Work(lake, workers, migration, backwards=True, progress=progress)
    details = {"migration": migration.label, "table": table, "sha256": migration.sha256}
    audit.record(lake, by, "migration.undo", migration.label, None, details)
    plan = _drive(work)
    work.forget()
    if plan is None:
        raise MigrationError(f"{migration.label} was undone by another", where=table, hint="look again")
    _restore_version(lake, table)
    audit.record(lake, by, "migration.undone", migration.label, None, {**details, "plan": plan.number})
    return _result(migration, plan, migration.from_version)


def _result(migration: "Migration", plan: "Plan", version: int) -> MigrationResult:
    return MigrationResult(
        migration.label, migration.table, version, plan.number, plan.body["facts"]["rows"], migration.is_of_added
    )


def _refuse_taken(migration: "Migration", catalog: "Catalog") -> None:
    """Raise `MigrationError` if an undo would restore an overlay's column whose name a packaged column has now."""
    old, new = ends_of(migration, catalog.overlay)
    ours = set(catalog.contract(migration.table).names) - set(new.names) if migration.is_of_added else set()
    if taken := sorted(ours.intersection(old.names)):
        message = f"{taken[0]!r} is a column of ours by now, and cannot be yours again"
        raise MigrationError(message, where=migration.label, hint="go on as it is; rename yours by another migration")


def _restore_version(lake: "Lake", table: str) -> None:
    """After an undo, restore the lake's stored overlay to the version of an operator's table or columns in the log."""
    undone = any(row["table"] == table and row["status"] == REVERTED for row in history(lake))
    contract, handle = lake.contract(table), delta_table(lake.store, table)
    if undone and contract.operators is not None and handle is not None:
        version = added_version_of(handle) if contract.overlay is None else max(version_of(handle), 1)
        lake.catalog.restore_version(table, version)
