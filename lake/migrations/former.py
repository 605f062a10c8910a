"""The names that columns of a table had before its migrations, and what each stands for now."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ranklake.lake.migrations import registry
from ranklake.lake.query.former import Former

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.migrations.steps.step import Step


def former_names(contract: "Contract") -> Mapping[str, Former]:
    """Return the names that columns had before the version of a contract, by name.

    A name that a column has now is no former one, whatever it meant. Of two columns that had a name, it stands for the
    later one. Raises `ranklake.lake.migrations.steps.step.MigrationError` where migrations cannot be read.
    """
    found = _up_to(contract.table, contract.version, registry.FOLDER)
    return {name: one for name, one in found.items() if name not in contract}


def taken(one: "Migration") -> Mapping[str, Former]:
    """Return the names that one migration takes away, by name; columns between two of its steps among them."""
    return _after({}, one)


@lru_cache(maxsize=256)
def _up_to(table: str, version: int, folder: Path) -> Mapping[str, Former]:
    found: dict[str, Former] = {}
    for one in registry.load_migrations(folder):
        if one.table == table and one.to_version <= version:
            found = _after(found, one)
    return MappingProxyType(found)


def _after(found: Mapping[str, Former], one: "Migration") -> dict[str, Former]:
    """Return former names as a migration leaves them, with those that it makes."""
    names = dict(found)
    for step in one.steps:
        names = {name: _moved(former, step, one.label) for name, former in names.items()}
        for name in step.touched:
            former = _moved(Former(name, name, one.label, step.until), step, one.label)
            if former.now != name:
                names[name] = former
    return names


def _moved(former: Former, step: "Step", label: str) -> Former:
    """Return what a former name stands for after a step."""
    lead = step.lead(former.now) if former.now else None
    if lead is None:
        return former if not former.now else replace(former, now="", migration=label, until=None)
    factor, offset = former.factor * lead.factor, former.offset * lead.factor + lead.offset
    return replace(former, now=lead.name, factor=factor, offset=offset, unit=lead.unit or former.unit)
