"""All migrations: their folder, their numbering, and what lint holds them to."""

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
from ranklake.lake.migrations.migration import FIRST_OWN, Migration, hold, parse_migration, read_migration, shapes_after
from ranklake.lake.migrations.steps.computed import Computed
from ranklake.lake.migrations.steps.step import ColumnStep, MigrationError
from ranklake.operator_files import OperatorFile

if TYPE_CHECKING:
    from ranklake.lake.migrations.steps.step import Step

FOLDER: Final = Path(__file__).parent


def load_migrations(folder: Path | None = None, overlay: Overlay | None = None) -> tuple[Migration, ...]:
    """Return all migrations by number, those of an overlay last.

    Raises `MigrationError` for a file that is none, a gap, or a fork.
    """
    folder = FOLDER if folder is None else folder
    migrations = _in_order(
        (_read(path, (now := path.stat()).st_mtime_ns, now.st_size) for path in folder.glob("*.yaml")), 1
    )
    return migrations if overlay is None else (*migrations, *load_own(overlay))


@lru_cache(maxsize=256)
def _read(path: Path, _changed_ns: int, _size_bytes: int) -> Migration:
    """Read a migration's file once, as long as it stays as it is: a page of the catalog asks for all of them."""
    return read_migration(path)


@lru_cache(maxsize=64)
def load_own(overlay: Overlay) -> tuple[Migration, ...]:
    """Return the migrations of an overlay by number, each held against its contracts. Raises `MigrationError`."""
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
        hold(migration, old, new)
        if migration.is_of_added:
            _hold_added(migration, old, new)
    return migrations


def _hold_added(migration: Migration, old: Contract, new: Contract) -> None:
    """Raise `MigrationError` for steps of what an overlay adds that take our names.

    So such migrations and ours touch different columns, and come to the same in either order.
    """
    ours = _names_ever(migration.table)
    for place, step in enumerate(migration.steps, 1):
        if taken := sorted(ours.intersection(shapes_after(migration.steps[:place], old, new))):
            message = f"{step.text}: {taken[0]!r} is, or was, a column of ours"
            raise MigrationError(message, where=migration.path, hint="take another name")


@cache
def _names_ever(table: str) -> frozenset[str]:
    """Return the names that columns of a packaged table have or had."""
    today = contract(table)
    every = [contract_at(table, version) for version in range(1, today.version + 1)]
    return frozenset({name for one in every for name in one.names} | {gone.name for gone in today.retired})


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
    """Return the migrations that lead a table from one version to another. Raises `MigrationError` where one lacks.

    An operator's own table that has none follows by itself, so there is nothing to lead it; nor are columns that an
    overlay adds to a table of ours, with `is_of_added`, by versions of their own.
    """
    every = (one for one in load_migrations(folder, overlay) if one.table == table)
    steps = {one.from_version: one for one in every if one.is_of_added == is_of_added}
    if not steps and (is_of_added or table not in table_names()):
        return ()
    for version in range(current, wanted):
        if version not in steps:
            message = f"no migration leads from version {version} of {table} to {version + 1}"
            raise MigrationError(message, where=str(folder or FOLDER), hint="draft it with: ranklake migrate new")
    return tuple(steps[version] for version in range(current, wanted))


def chain_of_all(
    target: Contract, version: int, added_version: int, folder: Path | None = None, overlay: Overlay | None = None
) -> tuple[Migration, ...]:
    """Return the migrations that lead rows to a contract: first those of columns that an overlay adds to it.

    So a name that it gave up is free when a later version of ours takes it. Raises `MigrationError` where one lacks.
    """
    own = chain(target.table, added_version, target.added_version, folder, overlay, is_of_added=True)
    return (*own, *chain(target.table, version, target.version, folder, overlay))


def ends_of(migration: Migration, overlay: Overlay | None = None) -> tuple[Contract, Contract]:
    """Return the contracts that a migration leads from and to. Raises `MigrationError`."""
    at = added_at if migration.is_of_added else contract_at
    return at(migration.table, migration.from_version, overlay), at(migration.table, migration.to_version, overlay)


def contract_at(table: str, version: int, overlay: Overlay | None = None) -> Contract:
    """Return the contract of a version: that of today, or what its snapshot keeps of an earlier one.

    Of a packaged table without what an overlay adds to it.
    """
    overlay = None if table in table_names() else overlay
    return _at(contract(table, overlay), version, overlay)


def added_at(table: str, version: int, overlay: Overlay | None = None) -> Contract:
    """Return what an overlay adds to a packaged table under a version of it: these columns alone."""
    return _at(contract(table, overlay).added, version, overlay)


def _at(today: Contract, version: int, overlay: Overlay | None) -> Contract:
    table = today.table
    if version == today.version:
        return today
    path, text = _snapshot(table, version, overlay)
    if text is None:
        hint = "restore the snapshot, or go on with the release that has it"
        raise MigrationError(f"version {version} of {table} has no snapshot", where=str(path), hint=hint)
    try:
        contract = freeze.thaw(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MigrationError("no snapshot of a contract", where=str(path), hint="restore the file") from None
    thawed = replace(contract, overlay=today.overlay, extended=today.extended)
    return replace(thawed, sort=_sort_at(today, contract), retention=today.retention)


def _snapshot(table: str, version: int, overlay: Overlay | None) -> tuple[Path, str | None]:
    """Return where a snapshot is, and its text if it is there."""
    name = f"{table}.v{version}.json"
    if overlay is not None:
        own = f"{SNAPSHOTS}/{name}"
        return Path(overlay.origin, own), overlay.files.get(own)
    path = freeze.SNAPSHOTS / name
    return path, path.read_text(encoding="utf-8") if path.exists() else None


def _sort_at(today: Contract, former: Contract) -> tuple[str, ...]:
    """Return what files of an earlier version are sorted by: no snapshot keeps it, so the steps since are followed."""
    names = today.sort
    if names and today.overlay is None:
        with suppress(MigrationError):  # contracts of a working copy, or a migration that is only being drafted
            for migration in reversed(chain(today.table, former.version, today.version)):
                for step in reversed(migration.steps):
                    names = step.sort_before(names)
    return tuple(name for name in names if name in former)


def digests_of(migration: Migration, overlay: Overlay | None = None) -> tuple[str, str]:
    """Return the digests of the contracts that a migration leads from and to. Raises `MigrationError`."""
    old, new = ends_of(migration, overlay)
    return freeze.contract_digest(old), freeze.contract_digest(new)


def problems(contracts: Mapping[str, Contract], folder: Path | None = None, today: date | None = None) -> Iterator[str]:
    """Yield one line for each thing that keeps migrations from a release."""
    folder = FOLDER if folder is None else folder
    try:
        every = load_migrations(folder)
    except MigrationError as error:
        yield str(error)
        return
    there = {(one.table, one.to_version) for one in every}
    for name, own in contracts.items():
        for version in range(2, own.version + 1):
            if (name, version) not in there:
                yield f"version {version} of {name} has no migration; run: ranklake migrate new {name}"
        yield from _overdue(own, (today or datetime.now(UTC).date()).isoformat())
    for migration in every:
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
        hold(migration, old, new)
    except MigrationError as error:
        yield str(error)
        return
    for which, meant, end in (("from", migration.from_digest, old), ("to", migration.to_digest, new)):
        if meant != freeze.contract_digest(end):
            yield f"{migration.path}: digests.{which} is not that of version {end.version} of {table}; draft it again"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A step of a migration.

    Attributes
    ----------
    version
        The first that has it.
    is_of_added
        Whether that is a version of the columns that an overlay adds to a table of ours.
    columns
        Those that it is about, as they are called before and after it; none where it is about the table.
    what
        The step, in a clause.
    migration
        Its label.
    """

    version: int
    is_of_added: bool
    columns: tuple[str, ...]
    what: str
    migration: str

    @property
    def since(self) -> str:
        """The version, for people."""
        return f"{self.version} of added columns" if self.is_of_added else str(self.version)


def column_changes(table: str, overlay: "Overlay | None" = None) -> tuple[ColumnChange, ...]:
    """Return the changes of a table, oldest first. Raises `MigrationError` where migrations cannot be read."""
    return tuple(
        ColumnChange(one.to_version, one.is_of_added, _columns(step), step.text, one.label)
        for one in load_migrations(overlay=overlay)
        if one.table == table
        for step in one.steps
    )


def _columns(step: "Step") -> tuple[str, ...]:
    if isinstance(step, Computed):
        return (*step.sources, *step.came)
    if not isinstance(step, ColumnStep):
        return ()
    lead = step.successor(step.column) if step.touched else None
    return tuple(dict.fromkeys((step.column, lead.name if lead is not None else step.column)))
