"""A migration: its file, its steps, and their validation against the two contract versions."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.load import table_names
from ranklake.lake.contracts.model import Contract
from ranklake.lake.contracts.schema import problems, schema, validate
from ranklake.lake.migrations.steps.columns import Add, Convert, Drop, Rename, RenameTable, Retype
from ranklake.lake.migrations.steps.computed import Merge, Split
from ranklake.lake.migrations.steps.step import MigrationError, Names, Shapes, Step, drop_columns, shape_of
from ranklake.lake.tables.table_schema import added_version_of, version_of
from ranklake.operator_files import OperatorFile

if TYPE_CHECKING:
    from deltalake import DeltaTable


KINDS: Final[Mapping[str, Callable[..., Step]]] = {
    "add": Add,
    "rename": Rename,
    "drop": Drop,
    "retype": Retype,
    "convert": Convert,
    "split": Split,
    "merge": Merge,
    "rename_table": RenameTable,
}
"""Classes of steps by the first key of a step. ``$defs/step_<first key>`` of the contracts' schema has all keys."""


def read_steps(file: OperatorFile) -> tuple[Step, ...]:
    """Return the valid steps of a migration's file. Adds problems of the others to the file."""
    steps = []
    for index, facts in enumerate(file.content["steps"]):
        at, first = ("steps", index), str(next(iter(facts)))
        if first not in KINDS:
            file.add(at, f"{first!r} is no kind of step", did_you_mean(first, KINDS))
            continue
        faults = list(problems(facts, schema(f"step_{first}"), at))
        for fault in faults:
            file.add(fault.at, fault.message, fault.hint)
        if not faults:
            try:
                steps.append(step_of(facts))
            except ValueError:
                file.add((*at, "until"), f"there is no day {facts['until']}", "write until: 2027-06-30")
    return tuple(steps)


def step_of(facts: Mapping[str, Any]) -> Step:
    """Return the step for a validated entry of a migration's file. Raises `ValueError` for an invalid date."""
    (kind, first), *rest = facts.items()
    options = {key: _day(value) if key == "until" else _freeze(value) for key, value in rest}
    return KINDS[kind](_freeze(first), **options)


def _day(value: str | date) -> date:
    return value if isinstance(value, date) else date.fromisoformat(value)


def _freeze(value: Any) -> Any:  # noqa: ANN401 - any YAML value
    """Return a hashable value: lists and mappings as tuples."""
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value


FIRST_OWN: Final = 10001
"""Number of the first migration of an overlay."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration.

    Attributes
    ----------
    number, name
        As in the name of its file, ``0003_examples.yaml``.
    table, from_version, to_version
        The table, and the contract versions before and after; `to_version` is the next one. For columns that an overlay
        adds to a packaged table, these are versions of the added columns.
    from_digest, to_digest
        `ranklake.lake.contracts.freeze.contract_digest` of both contract versions.
    steps
        The steps in their order.
    sha256
        SHA-256 of the file's text.
    path
        Path of the file.
    """

    number: int
    name: str
    table: str
    from_version: int
    to_version: int
    from_digest: str
    to_digest: str
    steps: tuple[Step, ...]
    sha256: str
    path: str

    @property
    def is_of_added(self) -> bool:
        """Whether it migrates columns that an overlay adds to a packaged table."""
        return is_of_added(self.number, self.table)

    def version_in(self, handle: "DeltaTable") -> int:
        """Return the version of a table, or of its added columns, in the log; 1 if the log has none."""
        return added_version_of(handle) if self.is_of_added else max(version_of(handle), 1)

    def version_of(self, contract: Contract) -> int:
        """Return the version of a contract, or of its added columns."""
        return contract.added_version if self.is_of_added else contract.version

    @property
    def is_metadata_only(self) -> bool:
        """Whether applying it rewrites no data file."""
        return self.keeps_files(backwards=False)

    def keeps_files(self, *, backwards: bool) -> bool:
        """Whether applying it, or with `backwards` undoing it, rewrites no data file."""
        return all(step.keeps_files_back if backwards else step.keeps_files for step in self.steps)

    @property
    def drops(self) -> Names:
        """Columns whose values are lost."""
        return tuple(name for step in self.steps for name in step.lost)

    @property
    def label(self) -> str:
        """Number and name, as in ``0003_examples``."""
        return f"{self.number:04d}_{self.name}"

    def upgrade_rows(self, rows: pa.Table) -> pa.Table:
        """Convert rows from the earlier to the later contract. Raises an Arrow error if a value does not fit."""
        for step in self.steps:
            rows = step.rows(rows)
        return rows

    def downgrade_rows(self, rows: pa.Table) -> pa.Table:
        """Convert rows from the later to the earlier contract. Raises an Arrow error if a value does not fit.

        Dropped columns, and columns that would be computed from them, are missing in the result.
        """
        unknown: Names = ()
        for step in reversed(self.steps):
            unknown = step.unknown_before(unknown)
            rows = drop_columns(step.undone(rows), *unknown)
        return rows


def is_of_added(number: int, table: str) -> bool:
    """Whether a migration with this number migrates columns that an overlay adds to a packaged table."""
    return number >= FIRST_OWN and table in table_names()


def read_migration(path: Path) -> Migration:
    """Read a migration's file. Raises as `parse_migration`."""
    return parse_migration(OperatorFile(path, error=MigrationError, noun="migration"))


def parse_migration(file: OperatorFile) -> Migration:
    """Return the migration of a file. Raises `MigrationError` with all problems."""
    validate(file, "migration")
    facts = file.content
    migration = Migration(
        facts["number"],
        facts["name"],
        facts["table"],
        facts["from"],
        facts["to"],
        facts["digests"]["from"],
        facts["digests"]["to"],
        read_steps(file),
        hashlib.sha256(file.text.encode()).hexdigest(),
        str(file.path),
    )
    if file.path.stem != migration.label:
        file.add(("name",), f"the file is not named {migration.label}{file.path.suffix}", "rename it")
    if migration.to_version != migration.from_version + 1:
        file.add(("to",), "a migration leads to the next version", "write one for each version")
    file.raise_errors()
    return migration


def shapes_after(steps: Sequence[Step], old: Contract, new: Contract) -> Shapes:
    """Return the shapes of a contract's columns after some steps. Raises `MigrationError` for an invalid step."""
    shapes = {column.name: shape_of(column) for column in old.columns}
    after = {column.name: shape_of(column) for column in new.columns}
    for step in steps:
        shapes = step.shapes(shapes, after)
    return shapes


def grain_after(steps: Sequence[Step], old: Contract) -> Names:
    """Return the unique key of a contract after some steps. Raises `MigrationError` for an invalid step."""
    grain = old.grain
    for step in steps:
        grain = step.grain(grain)
    return grain


def name_after(steps: Sequence[Step], old: Contract) -> str:
    """Return the name of a table in queries after some steps. Raises `MigrationError` for an invalid step."""
    name = old.name
    for step in steps:
        if isinstance(step, RenameTable):
            if step.earlier != name:
                raise MigrationError(f"{step.text}: it is called {name}", hint=f"write {{rename_table: {name}, to: …}}")
            name = step.to
    return name


def check_target(migration: Migration, old: Contract, new: Contract) -> None:
    """Raise `MigrationError` if a migration's steps do not convert one contract to the other."""
    expected = {column.id: shape_of(column) for column in new.columns}
    try:
        shapes = {shape.id: shape for shape in shapes_after(migration.steps, old, new).values()}
        grain = grain_after(migration.steps, old)
        name = name_after(migration.steps, old)
    except MigrationError as error:
        raise MigrationError(error.what, where=migration.path, hint=error.hint) from None
    if name != new.name:
        message = f"its steps leave the table called {name}, and its contract calls it {new.name}"
        raise MigrationError(message, where=migration.path, hint=f"write {{rename_table: {old.name}, to: {new.name}}}")
    if grain != new.grain:
        message = f"its steps lead to the key {', '.join(grain)} and not to {', '.join(new.grain)}"
        raise MigrationError(message, where=migration.path, hint="a table keeps its key; restore its grain")
    for id_ in sorted(expected.keys() | shapes.keys()):
        if expected.get(id_) != shapes.get(id_):
            shape = expected.get(id_) or shapes[id_]
            message = (
                f"its steps do not lead to version {migration.to_version} of {migration.table}: column {shape.name}"
            )
            raise MigrationError(message, where=migration.path, hint="draft it again with: ranklake migrate new")
