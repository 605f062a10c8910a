"""The register of migrations in a lake: the table ``migrations``, which records approvals, applications and undos."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations.registry import load_migrations
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.plan import append_own, last_finished
from ranklake.lake.tables.read import read

if TYPE_CHECKING:
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

TABLE: Final = "migrations"
APPLIED: Final = "applied"
REVERTED: Final = "reverted"
APPROVED: Final = "approved"


def history(lake: "Lake") -> list[dict[str, Any]]:
    """Return the rows of the register, oldest first, without rows of unfinished plans.

    Raises `MigrationError` if the file of an applied migration was changed.
    """
    rows = read(lake.tables, contract(TABLE)).to_pylist()
    if not rows:
        return []
    finished = last_finished(lake.tables)
    known = {migration.number: migration for migration in load_migrations(overlay=lake.catalog.overlay)}
    valid = [row for row in sorted(rows, key=lambda row: row["ts"]) if (row["plan"] or 0) <= finished]
    last = {row["number"]: row for row in valid if row["status"] != APPROVED}
    for number, row in last.items():
        if row["status"] == APPLIED and number in known and known[number].sha256 != row["sha256"]:
            message = f"migration {known[number].label} was edited after it was applied"
            raise MigrationError(
                message, where=known[number].path, hint="restore the file, and write another migration"
            )
    return valid


def last_applied(lake: "Lake", table: str) -> dict[str, Any] | None:
    """Return the row of a table's last applied migration that was not undone; None if there is none."""
    stack: list[dict[str, Any]] = []
    for row in history(lake):
        if row["table"] == table and row["status"] == APPLIED:
            stack.append(row)
        elif row["table"] == table and row["status"] == REVERTED and stack:
            stack.pop()
    return stack[-1] if stack else None


def note(tables: "Tables", migration: "Migration", plan: "Plan") -> None:
    """Add a row for a plan that applied or undid a migration, unless the register has it."""
    facts = plan.body["facts"]
    status = REVERTED if facts["backwards"] else APPLIED

    def compose(_: object) -> list[dict[str, Any]]:
        plans = read(tables, contract(TABLE), ["plan"])["plan"].to_pylist()
        if plan.number in plans:
            return []
        single_operator = facts.get("single_operator") or None
        return [migration_row(migration, status, plan=plan.number, rows=facts["rows"], single_operator=single_operator)]

    append_own(tables, TABLE, compose)


def migration_row(migration: "Migration", status: str, **facts: Any) -> dict[str, Any]:  # noqa: ANN401 - values of columns
    """Return a row of the table ``migrations`` with the current time."""
    now = datetime.now(UTC)
    return {
        "number": migration.number,
        "name": migration.name,
        "table": migration.table,
        "from_version": migration.from_version,
        "to_version": migration.to_version,
        "sha256": migration.sha256,
        "status": status,
        "ts": now,
        "date": now.date(),
        **facts,
    }
