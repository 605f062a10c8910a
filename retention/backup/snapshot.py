"""A consistent look at a whole lake: versions of all tables that were there at one moment, and the files of those.

Tables are read, then all files are listed, then the tables are looked at again: where none has another version, no
commit came between. A plan that is half carried out is part of the look, its file and what it has committed so far;
whoever opens the restored lake carries it out to its end, as after a crash.
"""

import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.kinds import ERASURE, PURGE, RETENTION
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.store.files import ListedFile, listed
from ranklake.lake.tables.live_files import digest_of, files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.backup.place import BackupError, TableState, is_inside

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

TRIES: Final = 40
_WAIT_S: Final = 0.25
_LOG: Final = re.compile(r"(?P<version>\d{20})\..*")
_REMOVING: Final = (RETENTION.name, ERASURE.name, PURGE.name)
_FORGOTTEN: Final = ("forgotten/", "forgotten-unread/")
_LEFT_OUT: Final = frozenset({"restoring.json"})


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file to copy.

    Attributes
    ----------
    path
        Relative to the lake.
    listed
        As the store lists it.
    sha256
        The digest that its name says; None where it says none.
    is_needed
        Whether the lake cannot be read without it; others may be gone before they are copied.
    """

    path: str
    listed: ListedFile
    sha256: str | None
    is_needed: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a lake consisted of at a moment: see `ranklake.retention.backup.place.Backup`."""

    created: datetime
    removals: tuple[str, ...]
    tables: Mapping[str, TableState]
    files: tuple[SnapshotFile, ...]


def take_snapshot(lake: "Lake", known: Collection[str] = ()) -> Snapshot:
    """Return a consistent look at a lake.

    Parameters
    ----------
    known
        Tables that an earlier backup has: none of them goes but by a loss, of which no backup is made.

    Raises `BackupError` where one of them is gone, or where the lake is committed to all the time.
    """
    for _ in range(TRIES):
        created = datetime.now(UTC)
        states, live = _tables(lake.store)
        for name in sorted(set(known) - set(states)):
            hint = f"stop what writes to the lake, and put it back: 'ranklake repair {name} URI'"
            raise BackupError("the table, or its log, is gone, and the last backup has it", where=name, hint=hint)
        removals = removals_of(lake)
        entries = [entry for entry in listed(lake.store.fs, lake.store.root) if not _is_link(lake.store, entry)]
        if _versions(lake.store) == {name: state.version for name, state in states.items()}:
            paths = [entry.path.removeprefix(f"{lake.store.root}/") for entry in entries]
            forgotten = [path for path in paths if path.startswith(_FORGOTTEN)]
            _refuse_missing(set(paths), live)
            chosen = tuple(_files(dict(zip(paths, entries, strict=True)), states, live))
            return Snapshot(created, tuple(sorted((*removals, *forgotten))), states, chosen)
        time.sleep(_WAIT_S)
    message = f"tables were committed to during each of {TRIES} looks"
    raise BackupError(message, where=lake.uri, hint="run it again when less is written")


def _is_link(store: "Store", entry: ListedFile) -> bool:
    """Whether a file of a local lake is a link: ranklake makes none, and one could lead to anybody's secrets."""
    return store.is_local and Path(entry.path).is_symlink()


def _names(store: "Store") -> list[str]:
    folder = store.path("tables")
    entries = store.fs.ls(folder, detail=False) if store.fs.exists(folder) else []
    return sorted(str(path).rstrip("/").rpartition("/")[2] for path in entries)


def _tables(store: "Store") -> tuple[dict[str, TableState], dict[str, set[str]]]:
    """Return state and live paths of each table."""
    states, live = {}, {}
    for name in _names(store):
        handle = delta_table(store, name)
        if handle is not None:
            actions = files(handle)
            live[name] = set(actions["path"].to_pylist())
            states[name] = TableState.of(handle, actions)
    return states, live


def _versions(store: "Store") -> dict[str, int]:
    handles = {name: delta_table(store, name) for name in _names(store)}
    return {name: handle.version() for name, handle in handles.items() if handle is not None}


def removals_of(lake: "Lake") -> list[str]:
    """Return the plans that removed rows for good, by kind and number; none where the ledger is not there."""
    if delta_table(lake.store, LEDGER) is None:
        return []
    rows = read(lake.tables, contract(LEDGER), ["plan", "kind"]).to_pylist()
    return [f"{row['kind']} {row['plan']:010d}" for row in rows if row["kind"] in _REMOVING]


def _files(
    entries: Mapping[str, ListedFile], states: Mapping[str, TableState], live: Mapping[str, set[str]]
) -> Iterator[SnapshotFile]:
    """Yield the files that a look consists of: of logs up to its versions; nothing half-written."""
    for path, entry in sorted(entries.items()):
        room, _, rest = path.partition("/")
        table, _, inner = rest.partition("/")
        if path.endswith(".tmp") or path in _LEFT_OUT or not is_inside(path):
            continue
        if room != "tables":
            yield SnapshotFile(path, entry, None, is_needed=False)
        elif table in states and inner.startswith("_delta_log/"):
            match = _LOG.fullmatch(inner.removeprefix("_delta_log/"))
            if match and int(match["version"]) <= states[table].version:
                yield SnapshotFile(path, entry, None, is_needed=True)
        elif table in states:
            is_live, digest = inner in live[table], digest_of(inner)
            if is_live or digest:
                yield SnapshotFile(path, entry, digest, is_needed=is_live)


def _refuse_missing(paths: set[str], live: Mapping[str, set[str]]) -> None:
    for table, inner_paths in live.items():
        for inner in inner_paths:
            if f"tables/{table}/{inner}" not in paths:
                hint = "find it with 'ranklake status', and rebuild the date with 'ranklake replay'"
                raise BackupError("a live file is missing", where=f"tables/{table}/{inner}", hint=hint)
