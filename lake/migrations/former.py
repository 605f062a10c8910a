"""Former names of columns and tables, from before migrations, and the expressions that replace them now."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ranklake.lake.migrations import registry
from ranklake.lake.migrations.steps.columns import RenameTable
from ranklake.lake.query.former import Former, FormerTable

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.contracts.overlay import Overlay
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.migrations.steps.step import Step


def former_names(contract: "Contract") -> Mapping[str, Former]:
    """Return the former names of a contract's columns, by name.

    A name that a current column has is not a former name. If several columns had a name, it refers to the last of them.
    Raises `ranklake.lake.migrations.steps.step.MigrationError` if migrations cannot be read.
    """
    names = _up_to(contract, registry.FOLDER, contract.operators)
    return {name: former for name, former in names.items() if name not in contract}


def former_tables(contracts: "Mapping[str, Contract]") -> dict[str, FormerTable]:
    """Return the former names of tables, by name. The name of a table's folder is one of them.

    Raises `ranklake.lake.migrations.steps.step.MigrationError` if migrations cannot be read.
    """
    renamed = {name: contract for name, contract in contracts.items() if contract.called}
    renamed_tables = {name: FormerTable(name, name, contract.called) for name, contract in renamed.items()}
    overlay = next((contract.overlay for contract in renamed.values() if contract.overlay is not None), None)
    for migration in registry.load_migrations(overlay=overlay):
        if migration.table not in renamed or migration.to_version > renamed[migration.table].version:
            continue
        for step in migration.steps:
            if isinstance(step, RenameTable):
                now = renamed[migration.table].called
                renamed_tables[step.earlier] = FormerTable(
                    step.earlier, migration.table, now, migration.label, step.until
                )
    return renamed_tables


def removed_names(migration: "Migration") -> Mapping[str, Former]:
    """Return the names that a migration removes, by name, including names that exist only between its steps."""
    return _after({}, migration)


@lru_cache(maxsize=256)
def _up_to(contract: "Contract", folder: Path, overlay: "Overlay | None") -> Mapping[str, Former]:
    names: dict[str, Former] = {}
    for migration in registry.load_migrations(folder, overlay):
        if migration.table == contract.table and migration.to_version <= migration.version_of(contract):
            names = _after(names, migration)
    return MappingProxyType(names)


def _after(known: Mapping[str, Former], migration: "Migration") -> dict[str, Former]:
    """Update former names by a migration, and add the names that it removes."""
    names = dict(known)
    for step in migration.steps:
        names = {name: follow_step(former, step, migration.label) for name, former in names.items()}
        for name in step.touched:
            former = follow_step(Former(name, name, migration.label, step.until), step, migration.label)
            if former.now != name:
                names[name] = former
    return names


def follow_step(former: Former, step: "Step", label: str) -> Former:
    """Return a former name with its replacement after a step."""
    if former.by:
        return _computed(former, tuple(follow_step(part, step, label) for part in former.parts), label)
    successor = step.successor(former.now) if former.now else None
    if successor is None:
        return former if not former.now else _replacement_sql(former, step, label)
    factor, offset = former.factor * successor.factor, former.offset * successor.factor + successor.offset
    return replace(former, now=successor.name, factor=factor, offset=offset, unit=successor.unit or former.unit)


def _replacement_sql(former: Former, step: "Step", label: str) -> Former:
    """Return a former name after a step that removes its column: with an SQL expression, or without replacement."""
    by, names = step.former_expression(former.now)
    if not by:
        return replace(former, now="", migration=label, until=None)
    parts = tuple(Former(name, name, label) for name in names)
    if former.is_converted:  # first compute the removed column, then convert it back to the former unit
        column = _computed(replace(former, name=former.now, by=by), parts, label)
        scaled = f'(CAST("{former.now}" AS DOUBLE) - {former.offset!r}) / {former.factor!r}'
        return _computed(replace(former, by=scaled, factor=1.0, offset=0.0), (column,), label)
    return _computed(replace(former, by=by), parts, label)


def _computed(former: Former, parts: tuple[Former, ...], label: str) -> Former:
    """Return a former name that is computed from others; without replacement if one of these has none."""
    if not all(part.now for part in parts):
        return replace(former, now="", migration=label, until=None, by="", parts=())
    result = replace(former, parts=parts)
    return replace(result, now=", ".join(result.columns))
