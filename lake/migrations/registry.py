"""All migrations: their folder, their numbering, and what lint holds them to."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from ranklake.lake.contracts import freeze
from ranklake.lake.contracts.load import contract, table_names
from ranklake.lake.contracts.model import Contract
from ranklake.lake.contracts.overlay import SNAPSHOTS, Overlay
from ranklake.lake.migrations.migration import Migration, hold, parse_migration, read_migration
from ranklake.lake.migrations.steps.resort import Resort
from ranklake.lake.migrations.steps.step import MigrationError

FOLDER: Final = Path(__file__).parent
FIRST_OWN: Final = 10001
"""Number of the first migration of an overlay."""

RELEASED: Final = "released.txt"
"""One line a migration, label and SHA-256: what stands there has run somewhere and never changes."""


def load_migrations(folder: Path | None = None, overlay: Overlay | None = None) -> tuple[Migration, ...]:
    """Return all migrations by number, those of an overlay last.

    Raises `MigrationError` for a file that is none, a gap, or a fork.
    """
    folder = FOLDER if folder is None else folder
    found = _in_order(map(read_migration, folder.glob("*.yaml")), 1)
    return found if overlay is None else (*found, *load_own(overlay))


@lru_cache(maxsize=64)
def load_own(overlay: Overlay) -> tuple[Migration, ...]:
    """Return the migrations of an overlay by number, each held against its contracts. Raises `MigrationError`."""
    read = (parse_migration(overlay.files[name].encode(), Path(overlay.origin, name)) for name in overlay.migrations)
    found = _in_order(read, FIRST_OWN)
    for one in found:
        if one.table not in overlay.tables or one.table in table_names():
            what = f"{one.table!r} is no whole table of the overlay"
            raise MigrationError(what, where=one.path, mend="only those have versions of their own")
        hold(one, *(contract_at(one.table, version, overlay) for version in (one.from_version, one.to_version)))
    return found


def _in_order(read: Iterable[Migration], first: int) -> tuple[Migration, ...]:
    found = sorted(read, key=lambda one: one.number)
    for place, one in enumerate(found, first):
        if one.number != place:
            what = f"two migrations have number {one.number}" if one.number < place else f"migration {place} is missing"
            raise MigrationError(what, where=one.path, mend=f"give the one that is not released number {place}")
    ends: dict[str, int] = {}
    for one in found:
        if ends.get(one.table, one.from_version) != one.from_version:
            what = (
                f"it begins at version {one.from_version} of {one.table}, and the one before ends at {ends[one.table]}"
            )
            raise MigrationError(what, where=one.path, mend="one after the other; draft it again")
        ends[one.table] = one.to_version
    return tuple(found)


def chain(
    table: str, found: int, wanted: int, folder: Path | None = None, overlay: Overlay | None = None
) -> tuple[Migration, ...]:
    """Return the migrations that lead a table from one version to another. Raises `MigrationError` where one lacks.

    An operator's own table that has none follows by itself, so there is nothing to lead it.
    """
    steps = {one.from_version: one for one in load_migrations(folder, overlay) if one.table == table}
    if not steps and table not in table_names():
        return ()
    for version in range(found, wanted):
        if version not in steps:
            what = f"no migration leads from version {version} of {table} to {version + 1}"
            raise MigrationError(what, where=str(folder or FOLDER), mend="draft it with: ranklake migrate new")
    return tuple(steps[version] for version in range(found, wanted))


def contract_at(table: str, version: int, overlay: Overlay | None = None) -> Contract:
    """Return the contract of a version: that of today, or what its snapshot keeps of an earlier one.

    Of a packaged table without what an overlay adds to it.
    """
    overlay = None if table in table_names() else overlay
    today = contract(table, overlay)
    if version == today.version:
        return today
    path, text = _snapshot(table, version, overlay)
    if text is None:
        mend = "restore the snapshot, or go on with the release that has it"
        raise MigrationError(f"version {version} of {table} has no snapshot", where=str(path), mend=mend)
    try:
        found = freeze.thaw(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MigrationError("no snapshot of a contract", where=str(path), mend="restore the file") from None
    return replace(found, sort=_sort_at(today, found), retention=today.retention, overlay=today.overlay)


def _snapshot(table: str, version: int, overlay: Overlay | None) -> tuple[Path, str | None]:
    """Return where a snapshot is, and its text if it is there."""
    name = f"{table}.v{version}.json"
    if overlay is not None:
        own = f"{SNAPSHOTS}/{name}"
        return Path(overlay.origin, own), overlay.files.get(own)
    path = freeze.SNAPSHOTS / name
    return path, path.read_text(encoding="utf-8") if path.exists() else None


def _sort_at(today: Contract, found: Contract) -> tuple[str, ...]:
    """Return what files of an earlier version are sorted by: no snapshot keeps it, so the steps since are followed."""
    names = today.sort
    if today.overlay is None:
        with suppress(MigrationError):  # contracts of a working copy, or a migration that is only being drafted
            for one in reversed(chain(today.table, found.version, today.version)):
                for step in reversed(one.steps):
                    names = step.sort_before(names)
    return tuple(name for name in names if name in found)


def digest_at(table: str, version: int, overlay: Overlay | None = None) -> str:
    """Return the digest of the contract of a version. Raises `MigrationError`."""
    return freeze.contract_digest(contract_at(table, version, overlay))


def problems(contracts: Mapping[str, Contract], folder: Path | None = None) -> Iterator[str]:
    """Yield one line for each thing that keeps migrations from a release."""
    folder = FOLDER if folder is None else folder
    try:
        every = load_migrations(folder)
    except MigrationError as error:
        yield str(error)
        return
    there = {(one.table, one.to_version) for one in every}
    for name, one in contracts.items():
        for version in range(2, one.version + 1):
            if (name, version) not in there:
                yield f"version {version} of {name} has no migration; run: ranklake migrate new {name}"
    for migration in every:
        yield from _faults(migration)
    yield from _edited(every, folder)


def _faults(migration: Migration) -> Iterator[str]:
    table, ends = migration.table, (migration.from_version, migration.to_version)
    try:
        old, new = (contract_at(table, version) for version in ends)
        hold(migration, old, new)
    except MigrationError as error:
        yield str(error)
        return
    for step in migration.steps:
        if isinstance(step, Resort) and step.by != new.sort:
            by = ", ".join(new.sort)
            yield f"{migration.path}: {step.text}, and version {new.version} of {table} is sorted by {by}"
    for which, meant, found in (("from", migration.from_digest, old), ("to", migration.to_digest, new)):
        if meant != freeze.contract_digest(found):
            yield f"{migration.path}: digests.{which} is not that of version {found.version} of {table}; draft it again"


def _edited(every: tuple[Migration, ...], folder: Path) -> Iterator[str]:
    released = _released(folder)
    for one in every:
        if one.label not in released:
            yield f"{one.path} is not in {RELEASED}; run: python -m ranklake.lake.migrations"
        elif released[one.label] != one.sha256:
            yield f"{one.path} was edited after its release; restore it, and write another migration"
    for label in sorted(released.keys() - {one.label for one in every}):
        yield f"migration {label} is released and its file is gone; restore it"


def _released(folder: Path) -> dict[str, str]:
    path = folder / RELEASED
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {label: sha256 for label, _, sha256 in (line.partition(" ") for line in lines)}


def release(folder: Path | None = None) -> list[str]:
    """Add migrations that are not listed as released; return their labels. Lines that are there stay."""
    folder = FOLDER if folder is None else folder
    released = _released(folder)
    new = {one.label: one.sha256 for one in load_migrations(folder) if one.label not in released}
    if new:
        lines = [f"{label} {sha256}\n" for label, sha256 in {**released, **new}.items()]
        (folder / RELEASED).write_text("".join(lines), encoding="utf-8")
    return list(new)
