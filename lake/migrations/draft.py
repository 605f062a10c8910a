"""Drafts a migration from the differences between two versions of a contract."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from ranklake.lake.contracts import freeze
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Column, Contract
from ranklake.lake.contracts.overlay import MIGRATIONS, SNAPSHOTS
from ranklake.lake.migrations import registry
from ranklake.lake.migrations.migration import FIRST_OWN
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.store import overlays

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

FACTORS: Final = {
    ("ns", "s"): 1e-9,
    ("us", "s"): 1e-6,
    ("ms", "s"): 1e-3,
    ("s", "ns"): 1_000_000_000,
    ("ms", "ns"): 1_000_000,
    ("us", "ns"): 1_000,
    ("kBy", "By"): 1_000,
    ("MBy", "By"): 1_000_000,
    ("KiBy", "By"): 1_024,
    ("MiBy", "By"): 1_048_576,
    ("%", "ratio"): 0.01,
    ("kW", "W"): 1_000,
    ("mW", "W"): 0.001,
    ("mJ", "J"): 0.001,
    ("kHz", "Hz"): 1_000,
    ("MHz", "Hz"): 1_000_000,
}
"""Conversion factors by old and new unit."""

ANSWERS: Final = timedelta(days=365)
"""Default time for which queries may use a former name, from the day of the draft."""


def draft(table: str, name: str, folder: Path | None = None) -> Path:
    """Write a draft of the next migration of a packaged table. Returns the path of the file.

    For an unknown pair of units the draft contains the factor 0, which is invalid and must be replaced. Raises
    `MigrationError` if there is nothing to draft.
    """
    folder = registry.FOLDER if folder is None else folder
    migrations = registry.load_migrations(folder)
    begin = max((migration.to_version for migration in migrations if migration.table == table), default=1)
    newest = contract(table).version
    if begin >= newest:
        hint = f"run python -m ranklake.lake.contracts.freeze {table}, then raise `version:` in its contract"
        raise MigrationError(f"{table} has no version after {begin}", where=table, hint=hint)
    old, new = registry.contract_at(table, begin), registry.contract_at(table, begin + 1)
    facts = {
        "number": len(migrations) + 1,
        "name": name,
        "table": table,
        "from": begin,
        "to": begin + 1,
        "digests": {"from": freeze.contract_digest(old), "to": freeze.contract_digest(new)},
        "steps": list(_steps(old, new)),
    }
    return _write_draft(folder, facts)


def draft_own(lake: "Lake", table: str, name: str) -> Path:
    """Write a draft of the next migration of an operator's table, and the snapshot of its earlier version.

    Both are written into the configured folder. Returns the path of the migration. It leads from the version in the
    lake to the next version, which the folder must contain. For a packaged table, it migrates the columns that the
    folder adds. Raises `MigrationError` if there is nothing to draft, and
    `ranklake.lake.contracts.errors.ContractError`.
    """
    own, known = lake.catalog.configured(), overlays.newest_overlay(lake.store)
    if own is None or table not in own.tables:
        raise MigrationError(f"no folder of contracts with {table} is configured", where=table, hint="name --contracts")
    if known is None or table not in known.tables:
        raise MigrationError(f"the lake has no {table} yet", where=table, hint="nothing has to follow its contract")
    old, new = contract(table, known), contract(table, own.over(known))
    if old.overlay is None:
        old, new = old.added, new.added
    if new.version != old.version + 1:
        hint = f"write version: {old.version + 1} into {table}.yaml"
        raise MigrationError(f"{table} has version {new.version}, the lake {old.version}", where=table, hint=hint)
    folder = Path(own.origin)
    number = max((migration.number for migration in registry.load_own(known)), default=FIRST_OWN - 1) + 1
    facts = {
        "number": number,
        "name": name,
        "table": table,
        "from": old.version,
        "to": new.version,
        "digests": {"from": freeze.contract_digest(old), "to": freeze.contract_digest(new)},
        "steps": list(_steps(old, new)),
    }
    freeze.keep_snapshot(old, folder / SNAPSHOTS)
    return _write_draft(folder / MIGRATIONS, facts)


def _write_draft(folder: Path, facts: dict[str, Any]) -> Path:
    """Write the file of a draft. Returns its path."""
    path = folder / f"{facts['number']:04d}_{facts['name']}.yaml"
    folder.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(facts, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def _steps(old: Contract, new: Contract) -> Iterator[dict[str, Any]]:
    if old.name != new.name:
        yield {"rename_table": old.name, "to": new.name, "until": (datetime.now(UTC) + ANSWERS).date()}
    before = {column.id: column for column in old.columns}
    after = {column.id: column for column in new.columns}
    for id_ in sorted(before.keys() - after.keys()):
        yield {"drop": before[id_].name}
    for id_ in sorted(before.keys() & after.keys()):
        yield from _changes(before[id_], after[id_])
    for id_ in sorted(after.keys() - before.keys()):
        yield {"add": after[id_].name}


def _changes(old: Column, new: Column) -> Iterator[dict[str, Any]]:
    if old.type != new.type:
        yield {"retype": old.name, "to": new.type}
    answers = {} if old.name == new.name else {"until": (datetime.now(UTC) + ANSWERS).date()}
    if old.unit != new.unit:
        factor = FACTORS.get((old.unit or "", new.unit or ""), 0)
        yield {"convert": old.name, "to": new.name, "unit": new.unit, "factor": factor, **answers}
    elif old.name != new.name:
        yield {"rename": old.name, "to": new.name, **answers}
