"""Loads all migrations, validates their numbering and contracts, and returns the chain between two versions."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts import freeze
from ranklake.lake.contracts.load import contract, table_names
from ranklake.lake.contracts.model import Contract
from ranklake.lake.contracts.overlay import SNAPSHOTS, Overlay
from ranklake.lake.migrations.migration import (
    FIRST_OWN,
    Migration,
    check_target,
    parse_migration,
    read_migration,
    shapes_after,
)
from ranklake.lake.migrations.steps.computed import Computed
from ranklake.lake.migrations.steps.step import ColumnStep, MigrationError
from ranklake.operator_files import OperatorFile

if TYPE_CHECKING:
    from ranklake.lake.migrations.steps.step import Step

FOLDER: Final = Path(__file__).parent


def load_migrations(folder: Path | None = None, overlay: Overlay | None = None) -> tuple[Migration, ...]:
    """Return all migrations by number, with those of an overlay last.

    Raises `MigrationError` for an invalid file, a missing number, or two migrations with the same number.
    """
    folder = FOLDER if folder is None else folder
    migrations = _in_order(
        (_read(path, (status := path.stat()).st_mtime_ns, status.st_size) for path in folder.glob("*.yaml")), 1
    )
    return migrations if overlay is None else (*migrations, *load_own(overlay))


@lru_cache(maxsize=256)
def _read(path: Path, _changed_ns: int, _size_bytes: int) -> Migration:
    """Read a migration's file; cached while the file is unchanged, because a page of the catalog loads all files."""
    return read_migration(path)


@lru_cache(maxsize=64)
def load_own(overlay: Overlay) -> tuple[Migration, ...]:
    """Return the migrations of an overlay by number, validated against its contracts. Raises `MigrationError`."""
    read = (
        parse_migration(OperatorFile(Path(overlay.origin, name), overlay.files[name], error=MigrationError))
        for name in overlay.migrations
    )
    migrations = _in_order(read, FIRST_OWN)
    for migration in migrations:
        if migration.table not in overlay.tables:
            hint = did_you_mean(migration.table, overlay.tables) or f"write {migration.table}.yaml, its contract"
            raise MigrationError(f"{migration.table!r} is no table of the overlay", where=migration.path, hint=hint)
        old, new = ends_of(migration, overlay)
        check_target(migration, old, new)
        if migration.is_of_added:
            _check_added_names(migration, old, new)
    return migrations


def _check_added_names(migration: Migration, old: Contract, new: Contract) -> None:
    """Raise `MigrationError` if a migration of an overlay's columns uses a name of a packaged column.

    So migrations of an overlay and packaged migrations change different columns, and can be applied in any order.
    """
    packaged_names = _all_names(migration.table)
    for place, step in enumerate(migration.steps, 1):
        if taken := sorted(packaged_names.intersection(shapes_after(migration.steps[:place], old, new))):
            message = f"{step.text}: {taken[0]!r} is, or was, a column of ours"
            raise MigrationError(message, where=migration.path, hint="take another name")


@cache
def _all_names(table: str) -> frozenset[str]:
    """Return the current and former names of a packaged table's columns."""
    current = contract(table)
    versions = [contract_at(table, version) for version in range(1, current.version + 1)]
    return frozenset({name for version in versions for name in version.names} | {old.name for old in current.retired})


def _in_order(read: Iterable[Migration], first: int) -> tuple[Migration, ...]:
    migrations = sorted(read, key=lambda migration: migration.number)
    for place, migration in enumerate(migrations, first):
        if migration.number != place:
            message = (
                f"two migrations have number {migration.number}"
                if migration.number < place
                else f"migration {place} is missing"
            )
            raise MigrationError(message, where=migration.path, hint=f"give the newer one number {place}")
    ends: dict[str, int] = {}
    for migration in migrations:
        if ends.get(migration.table, migration.from_version) != migration.from_version:
            end = f"the one before ends at {ends[migration.table]}"
            message = f"it begins at version {migration.from_version} of {migration.table}, and {end}"
            raise MigrationError(message, where=migration.path, hint="one after the other; draft it again")
        ends[migration.table] = migration.to_version
    return tuple(migrations)


def chain(
    table: str,
    current: int,
    wanted: int,
    folder: Path | None = None,
    overlay: Overlay | None = None,
    *,
    is_of_added: bool = False,
) -> tuple[Migration, ...]:
    """Return the migrations of a table between two versions. Raises `MigrationError` if one is missing.

    With `is_of_added`, the versions are those of an overlay's added columns. The result is empty for an operator's
    table or added columns without any migration, because their log is updated without one.
    """
    migrations = (migration for migration in load_migrations(folder, overlay) if migration.table == table)
    by_version = {item.from_version: item for item in migrations if item.is_of_added == is_of_added}
    if not by_version and (is_of_added or table not in table_names()):
        return ()
    for version in range(current, wanted):
        if version not in by_version:
            message = f"no migration leads from version {version} of {table} to {version + 1}"
            raise MigrationError(message, where=str(folder or FOLDER), hint="draft it with: ranklake migrate new")
    return tuple(by_version[version] for version in range(current, wanted))


def chain_of_all(
    target: Contract, version: int, added_version: int, folder: Path | None = None, overlay: Overlay | None = None
) -> tuple[Migration, ...]:
    """Return the migrations from two versions to a contract: first those of added columns, then those of the table.

    In this order a packaged column may take a name that an overlay gave up. Raises `MigrationError` if one is missing.
    """
    own = chain(target.table, added_version, target.added_version, folder, overlay, is_of_added=True)
    return (*own, *chain(target.table, version, target.version, folder, overlay))


def ends_of(migration: Migration, overlay: Overlay | None = None) -> tuple[Contract, Contract]:
    """Return the contracts before and after a migration. Raises `MigrationError`."""
    at = added_at if migration.is_of_added else contract_at
    return at(migration.table, migration.from_version, overlay), at(migration.table, migration.to_version, overlay)


def contract_at(table: str, version: int, overlay: Overlay | None = None) -> Contract:
    """Return a contract at a version: the current one, or an earlier one from its snapshot.

    For a packaged table, the contract is without columns that an overlay adds.
    """
    overlay = None if table in table_names() else overlay
    return _at(contract(table, overlay), version, overlay)


def added_at(table: str, version: int, overlay: Overlay | None = None) -> Contract:
    """Return a contract of only the columns that an overlay adds to a packaged table, at one of their versions."""
    return _at(contract(table, overlay).added, version, overlay)


def _at(current: Contract, version: int, overlay: Overlay | None) -> Contract:
    table = current.table
    if version == current.version:
        return current
    path, text = _snapshot(table, version, overlay)
    if text is None:
        hint = "restore the snapshot, or go on with the release that has it"
        raise MigrationError(f"version {version} of {table} has no snapshot", where=str(path), hint=hint)
    try:
        contract = freeze.thaw(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MigrationError("no snapshot of a contract", where=str(path), hint="restore the file") from None
    thawed = replace(contract, overlay=current.overlay, extended=current.extended)
    return replace(thawed, sort=_sort_at(current, contract), retention=current.retention)


def _snapshot(table: str, version: int, overlay: Overlay | None) -> tuple[Path, str | None]:
    """Return the path of a snapshot and its text; None for a missing text."""
    name = f"{table}.v{version}.json"
    if overlay is not None:
        own = f"{SNAPSHOTS}/{name}"
        return Path(overlay.origin, own), overlay.files.get(own)
    path = freeze.SNAPSHOTS / name
    return path, path.read_text(encoding="utf-8") if path.exists() else None


def _sort_at(current: Contract, former: Contract) -> tuple[str, ...]:
    """Return the sort columns of an earlier version, from the current ones. Snapshots do not contain them."""
    names = current.sort
    if names and current.overlay is None:
        with suppress(MigrationError):  # in development, or while a migration is drafted
            for migration in reversed(chain(current.table, former.version, current.version)):
                for step in reversed(migration.steps):
                    names = step.sort_before(names)
    return tuple(name for name in names if name in former)


def digests_of(migration: Migration, overlay: Overlay | None = None) -> tuple[str, str]:
    """Return the digests of the contracts before and after a migration. Raises `MigrationError`."""
    old, new = ends_of(migration, overlay)
    return freeze.contract_digest(old), freeze.contract_digest(new)


def problems(contracts: Mapping[str, Contract], folder: Path | None = None, today: date | None = None) -> Iterator[str]:
    """Yield the problems that must be fixed before a release, one line each."""
    folder = FOLDER if folder is None else folder
    try:
        migrations = load_migrations(folder)
    except MigrationError as error:
        yield str(error)
        return
    versions = {(migration.table, migration.to_version) for migration in migrations}
    for name, current in contracts.items():
        for version in range(2, current.version + 1):
            if (name, version) not in versions:
                yield f"version {version} of {name} has no migration; run: ranklake migrate new {name}"
        yield from _overdue(current, (today or datetime.now(UTC).date()).isoformat())
    for migration in migrations:
        yield from _faults(migration)


def _overdue(contract: Contract, today: str) -> Iterator[str]:
    for column in contract.columns:
        if column.sunset is not None and column.sunset < today:
            hint = f"write the version of {contract.table} without it, and its migration"
            yield f"{contract.table}.{column.name} was to go after {column.sunset}; {hint}"


def _faults(migration: Migration) -> Iterator[str]:
    table, ends = migration.table, (migration.from_version, migration.to_version)
    try:
        old, new = (contract_at(table, version) for version in ends)
        check_target(migration, old, new)
    except MigrationError as error:
        yield str(error)
        return
    for key, digest, end in (("from", migration.from_digest, old), ("to", migration.to_digest, new)):
        if digest != freeze.contract_digest(end):
            yield f"{migration.path}: digests.{key} is not that of version {end.version} of {table}; draft it again"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A change of a table's columns by a step of a migration.

    Attributes
    ----------
    version
        First version with the change.
    is_of_added
        Whether it is a version of the columns that an overlay adds to a packaged table.
    columns
        Names of the changed columns before and after; empty if the step changes the table's name.
    what
        The step, as a clause.
    migration
        Label of the migration.
    """

    version: int
    is_of_added: bool
    columns: tuple[str, ...]
    what: str
    migration: str

    @property
    def since(self) -> str:
        """The version as text."""
        return f"{self.version} of added columns" if self.is_of_added else str(self.version)


def column_changes(table: str, overlay: "Overlay | None" = None) -> tuple[ColumnChange, ...]:
    """Return the changes of a table, oldest first. Raises `MigrationError` if migrations cannot be read."""
    return tuple(
        ColumnChange(migration.to_version, migration.is_of_added, _columns(step), step.text, migration.label)
        for migration in load_migrations(overlay=overlay)
        if migration.table == table
        for step in migration.steps
    )


def _columns(step: "Step") -> tuple[str, ...]:
    if isinstance(step, Computed):
        return (*step.sources, *step.came)
    if not isinstance(step, ColumnStep):
        return ()
    successor = step.successor(step.column) if step.touched else None
    return tuple(dict.fromkeys((step.column, successor.name if successor is not None else step.column)))
