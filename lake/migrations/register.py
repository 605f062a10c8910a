"""What became of migrations in a lake: rows of the table ``migrations``."""

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
    """Return the rows of the table, oldest first; those of plans that are not finished are left away.

    Raises `MigrationError` where a migration that was applied is another now.
    """
    rows = read(lake.tables, contract(TABLE)).to_pylist()
    if not rows:
        return []
    finished = last_finished(lake.tables)
    known = {one.number: one for one in load_migrations(overlay=lake.catalog.overlay)}
    applied = [row for row in sorted(rows, key=lambda row: row["ts"]) if (row["plan"] or 0) <= finished]
    last = {row["number"]: row for row in applied if row["status"] != APPROVED}
    for number, row in last.items():
        if row["status"] == APPLIED and number in known and known[number].sha256 != row["sha256"]:
            message = f"migration {known[number].label} was edited after it was applied"
            raise MigrationError(
                message, where=known[number].path, hint="restore the file, and write another migration"
            )
    return applied


def last_applied(lake: "Lake", table: str) -> dict[str, Any] | None:
    """Return the row of the migration of a table that was applied last and not undone since; None if there is none."""
    stack: list[dict[str, Any]] = []
    for row in history(lake):
        if row["table"] == table and row["status"] == APPLIED:
            stack.append(row)
        elif row["table"] == table and row["status"] == REVERTED and stack:
            stack.pop()
    return stack[-1] if stack else None


def note(tables: "Tables", migration: "Migration", plan: "Plan") -> None:
    """Write down, once, that a plan carried a migration out or undid it."""
    facts = plan.body["facts"]
    status = REVERTED if facts["backwards"] else APPLIED

    def compose(_: object) -> list[dict[str, Any]]:
        plans = read(tables, contract(TABLE), ["plan"])["plan"].to_pylist()
        if plan.number in plans:
            return []
        alone = facts.get("single_operator") or None
        return [migration_row(migration, status, plan=plan.number, rows=facts["rows"], single_operator=alone)]

    append_own(tables, TABLE, compose)


def migration_row(migration: "Migration", status: str, **facts: Any) -> dict[str, Any]:  # noqa: ANN401 - a column's own
    """Return a row of the table ``migrations``, dated now."""
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
