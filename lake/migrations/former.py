"""The names that columns of a table had before its migrations, and what each stands for now."""

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
    """Return the names that columns had before the version of a contract, by name.

    A name that a column has now is no former one, whatever it meant. Of two columns that had a name, it stands for the
    later one. Raises `ranklake.lake.migrations.steps.step.MigrationError` where migrations cannot be read.
    """
    names = _up_to(contract, registry.FOLDER, contract.operators)
    return {name: one for name, one in names.items() if name not in contract}


def former_tables(contracts: "Mapping[str, Contract]") -> dict[str, FormerTable]:
    """Return the names that tables had, by name; until they say otherwise, those of their folders answer.

    Raises `ranklake.lake.migrations.steps.step.MigrationError` where migrations cannot be read.
    """
    renamed = {name: one for name, one in contracts.items() if one.called}
    renamed_tables = {name: FormerTable(name, name, one.called) for name, one in renamed.items()}
    overlay = next((one.overlay for one in renamed.values() if one.overlay is not None), None)
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
    """Return the names that one migration takes away, by name; columns between two of its steps among them."""
    return _after({}, migration)


@lru_cache(maxsize=256)
def _up_to(contract: "Contract", folder: Path, overlay: "Overlay | None") -> Mapping[str, Former]:
    names: dict[str, Former] = {}
    for migration in registry.load_migrations(folder, overlay):
        if migration.table == contract.table and migration.to_version <= migration.version_of(contract):
            names = _after(names, migration)
    return MappingProxyType(names)


def _after(known: Mapping[str, Former], migration: "Migration") -> dict[str, Former]:
    """Return former names as a migration leaves them, with those that it makes."""
    names = dict(known)
    for step in migration.steps:
        names = {name: follow_step(former, step, migration.label) for name, former in names.items()}
        for name in step.touched:
            former = follow_step(Former(name, name, migration.label, step.until), step, migration.label)
            if former.now != name:
                names[name] = former
    return names


def follow_step(former: Former, step: "Step", label: str) -> Former:
    """Return what a former name stands for after a step."""
    if former.by:
        return _computed(former, tuple(follow_step(part, step, label) for part in former.parts), label)
    lead = step.successor(former.now) if former.now else None
    if lead is None:
        return former if not former.now else _replacement_sql(former, step, label)
    factor, offset = former.factor * lead.factor, former.offset * lead.factor + lead.offset
    return replace(former, now=lead.name, factor=factor, offset=offset, unit=lead.unit or former.unit)


def _replacement_sql(former: Former, step: "Step", label: str) -> Former:
    """Return what a former name stands for after a step that takes its column away: SQL over others, or nothing."""
    by, names = step.former_expression(former.now)
    if not by:
        return replace(former, now="", migration=label, until=None)
    if former.is_converted:  # first what the column was, then what the former name was of that
        whole = _computed(
            replace(former, name=former.now, by=by), tuple(Former(one, one, label) for one in names), label
        )
        scaled = f'(CAST("{former.now}" AS DOUBLE) - {former.offset!r}) / {former.factor!r}'
        return _computed(replace(former, by=scaled, factor=1.0, offset=0.0), (whole,), label)
    return _computed(replace(former, by=by), tuple(Former(one, one, label) for one in names), label)


def _computed(former: Former, parts: tuple[Former, ...], label: str) -> Former:
    """Return a former name that is computed of others; it stands for nothing where one of these is gone."""
    if not all(part.now for part in parts):
        return replace(former, now="", migration=label, until=None, by="", parts=())
    result = replace(former, parts=parts)
    return replace(result, now=", ".join(result.columns))
