"""Brings rows of segments of older writers to the contract here, by the steps of the migrations in between."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.lake.migrations import registry
from ranklake.lake.migrations.steps.step import MigrationError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.migrations.migration import Migration


def is_changed(version: int, target: "Contract") -> bool:
    """Say whether rows of a segment of an older contract are not yet rows of this one."""
    return version < target.version and bool(_between(target.table, version, target.version, registry.FOLDER))


def upgraded(rows: pa.Table, version: int, target: "Contract") -> pa.Table:
    """Return rows of a segment under the names, types and units of a contract. Raises an Arrow error."""
    if version < target.version:
        for migration in _between(target.table, version, target.version, registry.FOLDER):
            rows = migration.forward(rows)
    return rows


@lru_cache(maxsize=256)
def _between(table: str, version: int, wanted: int, folder: Path) -> "tuple[Migration, ...]":
    """Return the migrations that change rows; what none leads to (contracts of a working copy) is taken as it is."""
    try:
        return tuple(one for one in registry.chain(table, version, wanted, folder) if not one.is_metadata_only)
    except MigrationError:
        return ()
