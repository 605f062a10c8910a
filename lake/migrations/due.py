"""Finds the due migrations of a lake and estimates their work. Declares how derived tables are computed. Read-only."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow.compute as pc

from ranklake.lake.migrations.migration import shapes_after
from ranklake.lake.migrations.register import history
from ranklake.lake.migrations.registry import chain_of_all, digests_of, ends_of
from ranklake.lake.migrations.steps.computed import Computed
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.store.governance import columns_in_clear, migration_proposals, sealed_columns, unfit_to_seal
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.table_schema import added_version_of, version_of
from ranklake.lake.tables.tables import latest, refuse_unfit

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.tables.live_files import DataFile

ROW_CPU_S: Final = 3e-6
"""Estimated CPU seconds to rewrite a row of the widest fact table. Narrow tables need less."""


@dataclass(frozen=True, slots=True)
class DueMigration:
    """A due migration, with an estimate of its work.

    Attributes
    ----------
    migration
        The migration.
    files, rows, bytes
        Files to rewrite, with their rows and bytes; 0 if only metadata changes.
    cpu_s
        Estimated CPU seconds.
    proposal
        Name of the proposal to approve, if the migration drops values; else empty.
    is_computed
        Whether dates are computed from their inputs, if available, instead of rewritten.
    sealed
        New names of columns under keys of people that the migration renames, by old name; None for dropped columns.
    """

    migration: "Migration"
    files: int
    rows: int
    bytes: int
    cpu_s: float
    proposal: str = ""
    is_computed: bool = False
    sealed: Mapping[str, str | None] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        migration = self.migration
        return {
            "migration": migration.label,
            "table": migration.table,
            "from_version": migration.from_version,
            "to_version": migration.to_version,
            "steps": [step.text for step in migration.steps],
            "metadata_only": migration.is_metadata_only,
            "drops": list(migration.drops),
            "proposal": self.proposal or None,
            "is_computed": self.is_computed,
            "under_keys": [{"column": name, "becomes": after} for name, after in self.sealed.items()],
            "files": self.files,
            "rows": self.rows,
            "bytes": self.bytes,
            "cpu_s": round(self.cpu_s, 3),
        }


def due(lake: "Lake", table: str | None = None) -> Iterator[DueMigration]:
    """Yield the due migrations of a table (default: of all tables), in order.

    Raises `MigrationError` if one is missing, was edited, or would compute with columns under keys of people; and
    `NewerTableError`.
    """
    history(lake)
    proposals = {proposal.label: proposal for proposal in migration_proposals(lake).values()}
    pairs: list[tuple[Migration, DeltaTable]] = []
    contracts = lake.contracts()
    for name in contracts if table is None else [lake.contract(table).table]:
        handle = latest(lake.tables, name)
        if handle is None:
            continue
        wanted = contracts[name]
        version, added = max(version_of(handle), 1), added_version_of(handle)
        if version > wanted.version or added > wanted.added_version:
            refuse_unfit(handle, wanted)
        migrations = chain_of_all(wanted, version, added, overlay=lake.catalog.overlay)
        pairs += [(migration, handle) for migration in migrations]
    for migration, handle in sorted(pairs, key=lambda pair: (not pair[0].is_of_added, pair[0].number)):
        _hold_digests(migration, lake.catalog)
        refuse_sealed(lake, migration)
        live = files(handle)
        if migration.is_metadata_only:
            live = live.slice(0, 0)
        rows, size = (int(pc.sum(live[name]).as_py() or 0) for name in ("num_records", "size_bytes"))
        proposal = proposals[migration.label].name if migration.drops else ""
        contract = contracts[migration.table]
        is_current = contract.kind == "derived" and migration.to_version == contract.version
        is_computed = is_current and not migration.is_metadata_only
        yield DueMigration(
            migration,
            live.num_rows,
            rows,
            size,
            rows * ROW_CPU_S,
            proposal,
            is_computed,
            renamed_or_dropped(lake, migration),
        )


def _hold_digests(migration: "Migration", catalog: "Catalog") -> None:
    versions, meant = (migration.from_version, migration.to_version), (migration.from_digest, migration.to_digest)
    for version, digest, actual in zip(versions, meant, digests_of(migration, catalog.overlay), strict=True):
        if actual != digest:
            message = f"version {version} of {migration.table} is not the contract that the migration was written for"
            raise MigrationError(
                message, where=migration.path, hint="restore the contract, or draft the migration again"
            )


_COMPUTED = "and nothing can be computed of what keys sealed"
_HINT = "rename it, or drop it and add the others"
_HINT_BACK = "go on with this release; nothing was changed"


def refuse_sealed(lake: "Lake", migration: "Migration", *, backwards: bool = False) -> None:
    """Raise `MigrationError` if a migration, or its undo, cannot handle columns under keys of people.

    It must not compute with a column that was ever stored under keys, because its values are encrypted. And its target
    contract must allow such columns to be stored under keys, unless ``[subjects] clear`` lists them.
    """
    contract = lake.contract(migration.table)
    stored = sealed_columns(lake.store, contract)
    if not stored:
        return
    for id_, name in _computed(lake.catalog, migration, backwards=backwards):
        if id_ in stored:
            message = f"{migration.table}.{name} is stored under keys of people, {_COMPUTED}"
            raise MigrationError(message, where=migration.label, hint=_HINT_BACK if backwards else _HINT)
    if backwards:
        return
    _, new = ends_of(migration, lake.catalog.overlay)
    wanted = stored.keys() - columns_in_clear(lake, contract)
    for column in new.columns:
        reason = unfit_to_seal(new, column) if column.id in wanted and not migration.is_of_added else ""
        if reason:
            message = f"{migration.table}.{column.name} is stored under keys of people, and afterwards {reason}"
            hint = "write another contract, or name it in clear under [subjects] if it is to be so from now on"
            raise MigrationError(message, where=migration.label, hint=hint)


def renamed_or_dropped(lake: "Lake", migration: "Migration") -> "Mapping[str, str | None]":
    """Return new names of columns under keys of people that a migration renames, by old name; None if it drops them."""
    contract = lake.contract(migration.table)
    stored = sealed_columns(lake.store, contract).keys() - columns_in_clear(lake, contract)
    if not stored:
        return {}
    old, new = ends_of(migration, lake.catalog.overlay)
    after = {column.id: column.name for column in new.columns}
    names = {column.name: after.get(column.id) for column in old.columns if column.id in stored}
    return {before: now for before, now in names.items() if before != now}


def _computed(catalog: "Catalog", migration: "Migration", *, backwards: bool) -> "Iterator[tuple[int, str]]":
    """Yield id and name of the columns from which a migration, or its undo, computes others."""
    old, new = ends_of(migration, catalog.overlay)
    names: Mapping[int, str] = {column.id: column.name for column in (new if backwards else old).columns}
    for place, step in enumerate(migration.steps):
        if isinstance(step, Computed):
            shapes = shapes_after(migration.steps[: place + backwards], old, new)
            for name in step.came if backwards else step.sources:
                yield shapes[name].id, names.get(shapes[name].id, name)


@dataclass(frozen=True, slots=True)
class ComputedDate:
    """A date of a derived table that was computed from its inputs.

    Attributes
    ----------
    files
        New files, not committed yet.
    inputs
        Digest of the inputs.
    """

    files: "tuple[DataFile, ...]"
    inputs: str


class Computing(Protocol):
    """Computes dates of derived tables."""

    def place(self, lake: "Lake", table: str) -> int:
        """Return the position of a table in the order of computation, after its inputs; 0 for other tables."""

    def anew(
        self, lake: "Lake", target: "Contract", days: Collection[date], workers: "Workers"
    ) -> dict[date, ComputedDate]:
        """Compute dates of a table under a contract, and write their rows as files without a commit.

        Leaves out dates that cannot be computed: their inputs were removed, are damaged or are held; this release does
        not compute the table under this contract; or an input table waits for a migration.
        """

    def standing(self, lake: "Lake", target: "Contract", days: Mapping[date, str]) -> dict[date, bool]:
        """Compute dates again. Returns for each date whether the table has the same rows.

        Parameters
        ----------
        days
            Dates, each with the digest of its inputs. Dates whose inputs changed or do not exist are left out.
        """


def in_order(lake: "Lake", items: "Iterable[DueMigration]", computing: Computing | None) -> "list[DueMigration]":
    """Sort due migrations so that derived tables come last, each after its inputs."""
    if computing is None:
        return list(items)
    return sorted(items, key=lambda item: (computing.place(lake, item.migration.table), item.migration.number))
