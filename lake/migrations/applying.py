"""Applies what is due, and undoes the last migration of a table."""

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
"""What the audit log calls it that a migration is about to begin, and that it was applied."""


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """A migration that was carried out, or undone.

    Attributes
    ----------
    label, table, version
        Which, of which table, and the contract version that it has now.
    plan
        Number of the plan.
    rows
        Rows that were rewritten.
    is_of_added
        Whether it was of columns that an overlay adds to a table of ours, and the version is of these alone.
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
    """Carry out what is due; return what this call did. Killed anywhere, the next call goes on.

    Parameters
    ----------
    by
        Who does it, for the audit trail.
    single_operator
        Whether who approved a migration that drops values may apply it.
    signing
        What signs the application of such a one, where approvals are signed.
    computing
        Computes dates of derived tables from their inputs; without it their rows are rewritten as others' are.

    Raises `MigrationError`, and for one that drops values what `ranklake.retention.proposals.lifecycle.apply` does:
    nothing of that migration was changed then, and earlier ones stay.
    """
    lake.catalog.keep()
    drive(lake, lambda _: None, workers)  # what a dead driver left half done comes first
    done = []
    for migration in [due_one.migration for due_one in in_order(lake, due(lake, table), computing)]:
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
            done.append(
                MigrationResult(
                    migration.label,
                    migration.table,
                    migration.to_version,
                    plan.number,
                    plan.body["facts"]["rows"],
                    migration.is_of_added,
                )
            )
    return done


def _drive(work: Work) -> "Plan | None":
    """Carry a migration out; again where a rollup of the release before was faster with its table."""
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
    """Undo the migration of a table that was applied last; return what was done.

    Rows of files that are as the migration left them are read from the files of before, so that values come back as
    they were, dropped columns included. Rows that came since are turned back by the steps. Raises `MigrationError`
    where nothing is to undo, or dropped values are gone: nothing was changed then.
    """
    drive(lake, lambda _: None, workers)
    row = last_applied(lake, table)
    handle = delta_table(lake.store, table)
    if row is None and handle is not None:  # whoever undid it may have died before its last step
        _restore_version(lake, table)
    known = {one.number: one for one in load_migrations(overlay=lake.catalog.overlay)}
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
    return _done(migration, plan, migration.from_version)


def _done(migration: "Migration", plan: "Plan", version: int) -> MigrationResult:
    return MigrationResult(
        migration.label, migration.table, version, plan.number, plan.body["facts"]["rows"], migration.is_of_added
    )


def _refuse_taken(migration: "Migration", catalog: "Catalog") -> None:
    """Raise `MigrationError` where a column that an undo would bring back has the name that one of ours has now."""
    old, new = ends_of(migration, catalog.overlay)
    ours = set(catalog.contract(migration.table).names) - set(new.names) if migration.is_of_added else set()
    if taken := sorted(ours.intersection(old.names)):
        message = f"{taken[0]!r} is a column of ours by now, and cannot be yours again"
        raise MigrationError(message, where=migration.label, hint="go on as it is; rename yours by another migration")


def _restore_version(lake: "Lake", table: str) -> None:
    """Have the lake know an operator's own table, or columns, by the version that the log has, after an undo."""
    undone = any(row["table"] == table and row["status"] == REVERTED for row in history(lake))
    contract, handle = lake.contract(table), delta_table(lake.store, table)
    if undone and contract.operators is not None and handle is not None:
        version = added_version_of(handle) if contract.overlay is None else max(version_of(handle), 1)
        lake.catalog.restore_version(table, version)
