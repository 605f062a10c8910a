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


def is_changed(target: "Contract", version: int, added_version: int) -> bool:
    """Whether rows of a segment of an older contract are not yet rows of this one."""
    return _is_older(target, version, added_version) and bool(_steps(target, version, added_version))


def upgrade_rows(rows: pa.Table, target: "Contract", version: int, added_version: int) -> pa.Table:
    """Return rows of a segment under the names, types and units of a contract. Raises an Arrow error."""
    if _is_older(target, version, added_version):
        for migration in _steps(target, version, added_version):
            rows = migration.upgrade_rows(rows)
    return rows


def _is_older(target: "Contract", version: int, added_version: int) -> bool:
    return version < target.version or added_version < target.added_version


def _steps(target: "Contract", version: int, added_version: int) -> "tuple[Migration, ...]":
    return _migrations_between(target, version, added_version, registry.FOLDER, target.operators)


@lru_cache(maxsize=256)
def _migrations_between(
    target: "Contract", version: int, added_version: int, folder: Path, overlay: "Overlay | None"
) -> "tuple[Migration, ...]":
    """Return the migrations that change rows; what none leads to (contracts of a working copy) is taken as it is."""
    try:
        every = registry.chain_of_all(target, version, added_version, folder, overlay)
    except MigrationError:
        return ()
    return tuple(one for one in every if not one.is_metadata_only)
