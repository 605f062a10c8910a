"""Brings rows of segments of older writers to the contract here, by the steps of the migrations in between."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.lake.migrations import registry
from ranklake.lake.migrations.steps.step import MigrationError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.contracts.overlay import Overlay
    from ranklake.lake.migrations.migration import Migration


def is_changed(version: int, target: "Contract") -> bool:
    """Say whether rows of a segment of an older contract are not yet rows of this one."""
    return version < target.version and bool(_between(target, version, registry.FOLDER, target.overlay))


def upgraded(rows: pa.Table, version: int, target: "Contract") -> pa.Table:
    """Return rows of a segment under the names, types and units of a contract. Raises an Arrow error."""
    if version < target.version:
        for migration in _between(target, version, registry.FOLDER, target.overlay):
            rows = migration.forward(rows)
    return rows


@lru_cache(maxsize=256)
def _between(target: "Contract", version: int, folder: Path, overlay: "Overlay | None") -> "tuple[Migration, ...]":
    """Return the migrations that change rows; what none leads to (contracts of a working copy) is taken as it is."""
    try:
        every = registry.chain(target.table, version, target.version, folder, overlay)
    except MigrationError:
        return ()
    return tuple(one for one in every if not one.is_metadata_only)
