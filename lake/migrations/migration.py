"""A migration: its file, the kinds of its steps, held against the two contracts that it leads from and to."""

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
"""Classes of steps by first key; what else stands in one is ``$defs/step_<first key>`` of the contracts' schema."""


def read_steps(file: OperatorFile) -> tuple[Step, ...]:
    """Return the steps of a migration's file as far as they are sound; what is not is noted with the file."""
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
    """Return the step that a sound line of a migration's file says. Raises `ValueError` for a day that is none."""
    (_, first), *rest = facts.items()
    make = KINDS[next(iter(facts))]
    return make(_freeze(first), **{key: _day(value) if key == "until" else _freeze(value) for key, value in rest})


def _day(value: str | date) -> date:
    return value if isinstance(value, date) else date.fromisoformat(value)


def _freeze(value: Any) -> Any:  # noqa: ANN401 - whatever YAML gives
    """Return a value that a frozen step may hold: lists and mappings as tuples."""
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
        As in its file's name, ``0003_examples.yaml``.
    table, from_version, to_version
        Which table's contract, and from which version to which; the second is the next. Of columns that an overlay adds
        to a table of ours: versions of these alone.
    from_digest, to_digest
        What `ranklake.lake.contracts.freeze.contract_digest` says of both contracts.
    steps
        In their order.
    sha256
        Of the file's text.
    path
        The file.
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
        """Whether it is of columns that an overlay adds to a table of ours."""
        return is_of_added(self.number, self.table)

    def version_in(self, handle: "DeltaTable") -> int:
        """Return at which of its versions a table is; the first where the log says none."""
        return added_version_of(handle) if self.is_of_added else max(version_of(handle), 1)

    def version_of(self, contract: Contract) -> int:
        """Return at which of its versions a contract is."""
        return contract.added_version if self.is_of_added else contract.version

    @property
    def is_metadata_only(self) -> bool:
        """Whether no stored file has to be rewritten."""
        return self.keeps_files(backwards=False)

    def keeps_files(self, *, backwards: bool) -> bool:
        """Whether no stored file has to be rewritten, to apply it or to undo it."""
        return all(step.keeps_files_back if backwards else step.keeps_files for step in self.steps)

    @property
    def drops(self) -> Names:
        """Columns whose values go for good."""
        return tuple(name for step in self.steps for name in step.lost)

    @property
    def label(self) -> str:
        """Number and name."""
        return f"{self.number:04d}_{self.name}"

    def upgrade_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows of the earlier contract as those of the later. Raises an Arrow error if a value does not fit."""
        for step in self.steps:
            rows = step.rows(rows)
        return rows

    def downgrade_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows of the later contract as rows of the earlier. Raises likewise.

        Dropped columns stay away, and so does what would be computed back from one.
        """
        unknown: Names = ()
        for step in reversed(self.steps):
            unknown = step.unknown_before(unknown)
            rows = drop_columns(step.undone(rows), *unknown)
        return rows


def is_of_added(number: int, table: str) -> bool:
    """Whether a migration of a number is of columns that an overlay adds to a table of ours."""
    return number >= FIRST_OWN and table in table_names()


def read_migration(path: Path) -> Migration:
    """Read a migration's file. Raises as `parse_migration`."""
    return parse_migration(OperatorFile(path, error=MigrationError, noun="migration"))


def parse_migration(file: OperatorFile) -> Migration:
    """Return the migration that a file says. Raises `MigrationError` for all that is wrong with it."""
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
    """Return the columns that steps make of a contract's. Raises `MigrationError` where a step cannot be."""
    shapes = {column.name: shape_of(column) for column in old.columns}
    after = {column.name: shape_of(column) for column in new.columns}
    for step in steps:
        shapes = step.shapes(shapes, after)
    return shapes


def grain_after(steps: Sequence[Step], old: Contract) -> Names:
    """Return the key that steps make of a contract's. Raises `MigrationError` where a step cannot be."""
    grain = old.grain
    for step in steps:
        grain = step.grain(grain)
    return grain


def name_after(steps: Sequence[Step], old: Contract) -> str:
    """Return what queries call a table after steps. Raises `MigrationError` where a step cannot be."""
    name = old.name
    for step in steps:
        if isinstance(step, RenameTable):
            if step.earlier != name:
                raise MigrationError(f"{step.text}: it is called {name}", hint=f"write {{rename_table: {name}, to: …}}")
            name = step.to
    return name


def hold(migration: Migration, old: Contract, new: Contract) -> None:
    """Raise `MigrationError` where a migration does not lead from one contract to the other."""
    meant = {column.id: shape_of(column) for column in new.columns}
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
    for id_ in sorted(meant.keys() | shapes.keys()):
        if meant.get(id_) != shapes.get(id_):
            shape = meant.get(id_) or shapes[id_]
            message = (
                f"its steps do not lead to version {migration.to_version} of {migration.table}: column {shape.name}"
            )
            raise MigrationError(message, where=migration.path, hint="draft it again with: ranklake migrate new")
