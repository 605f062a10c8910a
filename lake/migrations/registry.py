"""All migrations: their folder, their numbering, and what lint holds them to."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ranklake.lake.contracts import freeze
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Contract
from ranklake.lake.migrations.migration import Migration, hold, read_migration
from ranklake.lake.migrations.steps.resort import Resort
from ranklake.lake.migrations.steps.step import MigrationError

FOLDER: Final = Path(__file__).parent
RELEASED: Final = "released.txt"
"""One line a migration, label and SHA-256: what stands there has run somewhere and never changes."""


def load_migrations(folder: Path | None = None) -> tuple[Migration, ...]:
    """Return all migrations by number. Raises `MigrationError` for a file that is none, a gap, or a fork."""
    folder = FOLDER if folder is None else folder
    found = sorted(map(read_migration, folder.glob("*.yaml")), key=lambda one: one.number)
    for place, one in enumerate(found, 1):
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


def chain(table: str, found: int, wanted: int, folder: Path | None = None) -> tuple[Migration, ...]:
    """Return the migrations that lead a table from one version to another. Raises `MigrationError` where one lacks."""
    steps = {one.from_version: one for one in load_migrations(folder) if one.table == table}
    for version in range(found, wanted):
        if version not in steps:
            what = f"no migration leads from version {version} of {table} to {version + 1}"
            raise MigrationError(what, where=str(folder or FOLDER), mend="draft it with: ranklake migrate new")
    return tuple(steps[version] for version in range(found, wanted))


def contract_at(table: str, version: int) -> Contract:
    """Return the contract of a version: that of today, or what its snapshot keeps of an earlier one."""
    today = contract(table)
    if version == today.version:
        return today
    path = freeze.SNAPSHOTS / f"{table}.v{version}.json"
    try:
        found = freeze.thaw(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        mend = "restore the snapshot, or go on with the release that has it"
        raise MigrationError(f"version {version} of {table} has no snapshot", where=str(path), mend=mend) from None
    return replace(found, sort=_sort_at(today, found), retention=today.retention)


def _sort_at(today: Contract, found: Contract) -> tuple[str, ...]:
    """Return what files of an earlier version are sorted by: no snapshot keeps it, so the steps since are followed."""
    names = today.sort
    with suppress(MigrationError):  # contracts of a working copy, or a migration that is only being drafted
        for one in reversed(chain(today.table, found.version, today.version)):
            for step in reversed(one.steps):
                names = step.sort_before(names)
    return tuple(name for name in names if name in found)


def digest_at(table: str, version: int) -> str:
    """Return the digest of the contract of a version. Raises `MigrationError`."""
    return freeze.contract_digest(contract_at(table, version))


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
