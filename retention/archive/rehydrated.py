"""Rows that were brought back from archives: copies in the lake beside its tables, until a day.

    <lake>/rehydrated/<name>/rehydrated.json             what is there, and until when; written last
    <lake>/rehydrated/<name>/tables/<table>/date=…       data files, under the contract of the day they came back

They are no rows of tables: books, checks and rollups do not know them. Whoever asks for them sees them in their tables.
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
    """Rows that came back under another version of their contract than the table has now."""


@dataclass(frozen=True, slots=True)
class RehydratedArchive:
    """Rows that are back.

    Attributes
    ----------
    name
        Of the rehydration.
    until
        The first day on which they are gone.
    versions
        Version of each table's contract that the files have.
    files
        By table: path relative to its folder, size_bytes, num_records, date (ISO).
    """

    name: str
    until: date
    versions: Mapping[str, int]
    files: Mapping[str, "Sequence[Mapping[str, Any]]"]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(one["num_records"] for some in self.files.values() for one in some)

    def of(self, table: str) -> pa.Table:
        """Return a table's files as rows of `ranklake.lake.tables.live_files.files`, paths relative to the lake."""
        rows = [
            {
                **{name: one[name] for name in ("size_bytes", "num_records")},
                "path": f"{REHYDRATED}/{self.name}/tables/{table}/{one['path']}",
                "date": date.fromisoformat(one["date"]),
            }
            for one in self.files.get(table, ())
        ]
        return pa.Table.from_pylist(rows, schema=FILE_SCHEMA)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "until": self.until.isoformat(), "rows": self.rows}


def place_of(store: Store, name: str) -> Store:
    """Return where the copies of a rehydration are, laid out as a lake's tables."""
    return Store.at(f"{store.uri}/{REHYDRATED}/{name}", store.storage)


def write_down(
    store: Store, name: str, until: date, versions: Mapping[str, int], stored_files: "Sequence[DataFile]"
) -> RehydratedArchive:
    """Write down what is back, which from then on can be asked for."""
    files: dict[str, list[dict[str, Any]]] = {}
    for data_file in stored_files:
        row = {
            "path": data_file.path,
            "size_bytes": data_file.size_bytes,
            "num_records": data_file.rows,
            "date": str(data_file.partition),
        }
        files.setdefault(data_file.table, []).append(row)
    made = RehydratedArchive(name, until, versions, files)
    body = {name: value for name, value in made.plain().items() if name != "rows"}
    store.put_if_absent(f"{REHYDRATED}/{name}/{_RECORD}", json.dumps(body, sort_keys=True).encode())
    return made


def rehydrated_archives(store: Store) -> list[RehydratedArchive]:
    """Return what is back, by name; what is over by its day among it, as long as nobody deleted it."""
    there = [one.path for one in listed(store.fs, store.path(REHYDRATED)) if one.path.endswith(f"/{_RECORD}")]
    result = []
    for path in there:
        record = json.loads(store.fs.cat_file(path))
        result.append(RehydratedArchive(**{**record, "until": date.fromisoformat(record["until"])}))
    return sorted(result, key=lambda entry: entry.name)


def files_back(store: Store, today: date, versions: Mapping[str, int]) -> dict[str, list[pa.Table]]:
    """Return the files that are back on a day, by table.

    Parameters
    ----------
    versions
        Of the tables that are asked for: version of the contract that the table is read by.

    Raises `StaleRowsError` where a table was migrated since.
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
    """Delete what came back, its record first; return how many files went."""
    record = store.path(REHYDRATED, name, _RECORD)
    gone = int(delete(store, record))
    return gone + sum(delete(store, one.path) for one in listed(store.fs, store.path(REHYDRATED, name)))


def remove_expired(store: Store, today: date) -> list[str]:
    """Delete what is over by its day, and what no record names; return the names."""
    over = [one.name for one in rehydrated_archives(store) if one.until <= today]
    for name in over:
        remove(store, name)
    return over
