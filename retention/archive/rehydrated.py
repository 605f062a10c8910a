"""Rows that were brought back from archives: copies in the lake beside its tables, until a day.

    <lake>/rehydrated/<name>/rehydrated.json             the list of files and the end; written last
    <lake>/rehydrated/<name>/tables/<table>/date=…       data files, under the contract of the day of rehydration

These rows are not part of the tables: accounting, checks and rollups ignore them. A query that asks for them sees them
together with the rows of the table.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.lake.store.files import delete, listed
from ranklake.lake.store.governance import REHYDRATED
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.store.store import Store
from ranklake.lake.tables.live_files import FILE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranklake.lake.tables.live_files import DataFile

_RECORD: Final = "rehydrated.json"


class StaleRowsError(LakeError):
    """Rehydrated rows have another contract version than their table."""


@dataclass(frozen=True, slots=True)
class RehydratedArchive:
    """The copies of one rehydration.

    Attributes
    ----------
    name
        Name of the rehydration.
    until
        First day on which the rows are no longer visible.
    versions
        Contract version of the files, by table.
    files
        Files by table: path relative to the table's folder, size_bytes, num_records, date (ISO).
    """

    name: str
    until: date
    versions: Mapping[str, int]
    files: Mapping[str, "Sequence[Mapping[str, Any]]"]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file["num_records"] for files in self.files.values() for file in files)

    def of(self, table: str) -> pa.Table:
        """Return a table's files as rows of `ranklake.lake.tables.live_files.files`, paths relative to the lake."""
        rows = [
            {
                **{name: file[name] for name in ("size_bytes", "num_records")},
                "path": f"{REHYDRATED}/{self.name}/tables/{table}/{file['path']}",
                "date": date.fromisoformat(file["date"]),
            }
            for file in self.files.get(table, ())
        ]
        return pa.Table.from_pylist(rows, schema=FILE_SCHEMA)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "until": self.until.isoformat(), "rows": self.rows}


def place_of(store: Store, name: str) -> Store:
    """Return the place of a rehydration's copies, which has the layout of a lake's tables."""
    return Store.at(f"{store.uri}/{REHYDRATED}/{name}", store.storage)


def write_record(
    store: Store, name: str, until: date, versions: Mapping[str, int], stored_files: "Sequence[DataFile]"
) -> RehydratedArchive:
    """Write the record of a rehydration's copies, which makes them visible to queries."""
    files: dict[str, list[dict[str, Any]]] = {}
    for data_file in stored_files:
        row = {
            "path": data_file.path,
            "size_bytes": data_file.size_bytes,
            "num_records": data_file.rows,
            "date": str(data_file.partition),
        }
        files.setdefault(data_file.table, []).append(row)
    copies = RehydratedArchive(name, until, versions, files)
    body = {key: value for key, value in copies.plain().items() if key != "rows"}
    store.put_if_absent(f"{REHYDRATED}/{name}/{_RECORD}", json.dumps(body, sort_keys=True).encode())
    return copies


def rehydrated_archives(store: Store) -> list[RehydratedArchive]:
    """Return the copies of all rehydrations, by name, including expired ones that are not deleted yet."""
    paths = [file.path for file in listed(store.fs, store.path(REHYDRATED)) if file.path.endswith(f"/{_RECORD}")]
    result = []
    for path in paths:
        record = json.loads(store.fs.cat_file(path))
        result.append(RehydratedArchive(**{**record, "until": date.fromisoformat(record["until"])}))
    return sorted(result, key=lambda entry: entry.name)


def files_back(store: Store, today: date, versions: Mapping[str, int]) -> dict[str, list[pa.Table]]:
    """Return the rehydrated files that are visible on a day, by table.

    Parameters
    ----------
    versions
        The requested tables, with the contract version by which each is read.

    Raises `StaleRowsError` if a table was migrated after the rehydration.
    """
    tables: dict[str, list[pa.Table]] = {}
    for entry in rehydrated_archives(store):
        for table in entry.files if today < entry.until else ():
            if table not in versions:
                continue
            if entry.versions[table] != versions[table]:
                message = f"rows of {table} came back under version {entry.versions[table]} of its contract"
                hint = f"bring them back anew: ranklake retain rehydrate apply {entry.name}"
                raise StaleRowsError(f"{message}, and it has version {versions[table]}", where=entry.name, hint=hint)
            tables.setdefault(table, []).append(entry.of(table))
    return tables


def remove(store: Store, name: str) -> int:
    """Delete the copies of a rehydration, the record first; return the number of deleted files."""
    record = store.path(REHYDRATED, name, _RECORD)
    deleted = int(delete(store, record))
    return deleted + sum(delete(store, file.path) for file in listed(store.fs, store.path(REHYDRATED, name)))


def remove_expired(store: Store, today: date) -> list[str]:
    """Delete the copies of expired rehydrations; return their names."""
    names = [copies.name for copies in rehydrated_archives(store) if copies.until <= today]
    for name in names:
        remove(store, name)
    return names
