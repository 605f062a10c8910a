"""The task of a migration: rewrites the rows of a data file to another contract version.

A note in the lake's folder `migrating/` records the new files, so that an interrupted migration can continue. A note is
only a hint: its files must exist before a plan names them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.contracts.model import Contract
from ranklake.lake.migrations import registry
from ranklake.lake.migrations.steps.columns import narrow_rows
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import DataFile, reading, refuse_damaged
from ranklake.lake.tables.parquet import write_partition

if TYPE_CHECKING:
    from ranklake.lake.contracts.overlay import Overlay
    from ranklake.lake.migrations.migration import Migration


def is_changed(target: "Contract", version: int, added_version: int) -> bool:
    """Whether rows of a segment with these contract versions must be migrated to the contract."""
    return _is_older(target, version, added_version) and bool(_steps(target, version, added_version))


def upgrade_rows(rows: pa.Table, target: "Contract", version: int, added_version: int) -> pa.Table:
    """Return rows of a segment with the names, types and units of a contract. Raises an Arrow error."""
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
    """Return the migrations between two versions that change rows; none if the chain has a gap, as in development."""
    try:
        migrations = registry.chain_of_all(target, version, added_version, folder, overlay)
    except MigrationError:
        return ()
    return tuple(migration for migration in migrations if not migration.is_metadata_only)


NOTES: Final = "migrating"
_HINT: Final = "nothing was changed; correct the migration before it is released, or go on with the release of before"
_HINT_BACK: Final = "nothing was changed; go on with this release, or take those rows out first"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A task: rewrite one data file.

    Attributes
    ----------
    lake_uri, storage
        The lake, and its storage options.
    target
        Contract of the new file.
    migration, backwards
        The migration, and whether to undo it.
    number
        Number of the plan. If another plan takes this number, a later plan uses the new file.
    file
        Row of `ranklake.lake.tables.live_files.files`: path, size_bytes, num_records, date.
    sources
        When undoing: the files from which `file` was made, as a plan lists them; empty if they do not exist any more.
    """

    lake_uri: str
    storage: dict[str, str]
    target: Contract
    migration: "Migration"
    backwards: bool
    number: int
    file: Mapping[str, Any]
    sources: tuple[Mapping[str, Any], ...] = ()

    @property
    def first(self) -> Mapping[str, Any]:
        """The first file whose rows are read."""
        return self.sources[0] if self.sources else self.file

    @property
    def day(self) -> date:
        """Date of the rows."""
        day = self.first["date"]
        return day if isinstance(day, date) else date.fromisoformat(day)

    def migrate_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows of the read files converted to the target contract. Raises an Arrow error."""
        if self.sources:
            return rows
        migration = self.migration
        return (
            narrow_rows(migration.downgrade_rows(rows), self.target) if self.backwards else migration.upgrade_rows(rows)
        )


def rewrite(task: Rewrite) -> tuple[DataFile, ...]:
    """Rewrite a file, and record the new files in a note. Raises `DamagedFileError` and `MigrationError`.

    Can be repeated. Files of an earlier try remain without a commit.
    """
    lake = Lake.open(task.lake_uri, task.storage)
    migration = task.migration
    try:
        new_files = _rewrite_file(lake.tables, task)
    except pa.ArrowException as error:
        direction = "back" if task.backwards else "along"
        message = f"{migration.label} cannot bring its rows {direction}: {str(error).splitlines()[0]}"
        hint = _HINT_BACK if task.backwards else _HINT
        raise MigrationError(
            message, where=lake.path("tables", migration.table, task.first["path"]), hint=hint
        ) from None
    facts = [{**asdict(file), "partition": file.partition.isoformat()} for file in new_files]
    lake.put_if_absent(note_of(migration, task.file["path"], backwards=task.backwards), json.dumps(facts).encode())
    return new_files


def _rewrite_file(tables: Tables, task: Rewrite) -> tuple[DataFile, ...]:
    parts = [stored_rows(tables, task.target.table, file) for file in task.sources or (task.file,)]
    rows = task.migrate_rows(parts[0] if len(parts) == 1 else concatenate(parts))
    return (write_partition(tables.store, task.target, rows, task.day, task.number),)


def stored_rows(tables: Tables, table: str, file: Mapping[str, Any]) -> pa.Table:
    """Return the rows of a data file with its own columns, and text dictionary-encoded. Raises `DamagedFileError`."""
    refuse_damaged(tables, table, [file])
    path = tables.store.path("tables", table, file["path"])
    with tables.store.open_file(path, file["size_bytes"]) as source, reading(table, file):
        footer = pq.read_metadata(source)
        return pq.ParquetFile(source, metadata=footer, read_dictionary=_dictionaries(footer)).read(use_threads=False)


def concatenate(parts: Sequence[pa.Table]) -> pa.Table:
    """Concatenate rows of files, with text as plain text, and NULL for columns that a file lacks."""
    tables = [pa.table({name: decode_dictionary(rows[name]) for name in rows.column_names}) for rows in parts]
    return pa.concat_tables(tables, promote_options="default")


def decode_dictionary(values: pa.ChunkedArray) -> pa.Array:
    """Return values as one array without a dictionary."""
    plain = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
    return plain.combine_chunks()


def earlier_result(store: Store, migration: "Migration", path: str, *, backwards: bool) -> tuple[DataFile, ...] | None:
    """Return the new files that an earlier try wrote for a file; None unless all of them exist."""
    try:
        note = json.loads(store.fs.cat_file(store.path(note_of(migration, path, backwards=backwards))))
        noted = tuple(DataFile(**{**facts, "partition": date.fromisoformat(facts["partition"])}) for facts in note)
        sizes = [store.fs.info(store.path("tables", file.table, file.path))["size"] for file in noted]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return noted if noted and sizes == [file.size_bytes for file in noted] else None


def note_of(migration: "Migration", path: str, *, backwards: bool) -> str:
    """Return the name of the note for a file."""
    return f"{folder_of(migration, backwards=backwards)}/{path.replace('/', '~')}.json"


def folder_of(migration: "Migration", *, backwards: bool) -> str:
    """Return the folder of a migration's notes."""
    return f"{NOTES}/{migration.label}~{migration.sha256[:12]}~{'back' if backwards else 'forth'}"


def _dictionaries(footer: pq.FileMetaData) -> list[str]:
    if not footer.num_row_groups:
        return []
    group = footer.row_group(0)
    columns = map(group.column, range(footer.num_columns))
    return [
        column.path_in_schema
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page
    ]
