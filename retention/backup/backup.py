"""Backs a lake up: takes a snapshot, copies new files, writes the manifest, and deletes outdated backups.

A backup is outdated if its restore would undo a removal for good. It is deleted with all bytes that no other backup
needs, so the next backup also erases a person from earlier ones. Rows that retention removed stay in earlier backups
for ``[backup] keep_days``. After a crash the next backup continues, since objects are written before their manifest.

A snapshot has the versions of all tables at one moment, and their files. Tables are read, all files are listed, and the
versions are read again: if none changed, no commit came in between. The snapshot includes an unfinished plan and its
commits so far; the restored lake finishes it as after a crash.
"""

import hashlib
import re
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ranklake
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.kinds import ERASURE, PURGE, RETENTION
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.store.files import ListedFile, delete, listed, remove_dead
from ranklake.lake.tables.live_files import digest_of, files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.backup.place import (
    OBJECTS,
    Backup,
    BackupError,
    BackupFile,
    TableState,
    address,
    backups_of,
    claim,
    forbidden,
    is_inside,
    numbers_of,
    object_name,
    read_backup,
    write_file,
)

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
        Path relative to the lake.
    listed
        Its entry in the store's listing.
    sha256
        The digest in its name; None if the name has none.
    is_needed
        Whether the lake cannot be read without it. Other files may be deleted before they are copied.
    """

    path: str
    listed: ListedFile
    sha256: str | None
    is_needed: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a lake at a moment; fields as in `ranklake.retention.backup.place.Backup`."""

    created: datetime
    removals: tuple[str, ...]
    tables: Mapping[str, TableState]
    files: tuple[SnapshotFile, ...]


def take_snapshot(lake: "Lake", known: Collection[str] = ()) -> Snapshot:
    """Return a consistent snapshot of a lake.

    Parameters
    ----------
    known
        Tables of an earlier backup. Tables are never deleted on purpose, so a missing one is an error.

    Raises `BackupError` if one of these tables is missing, or if there were commits during all attempts.
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
    """Whether a file of a local lake is a link. ranklake makes no links, and one could lead to secrets of others."""
    return store.is_local and Path(entry.path).is_symlink()


def _names(store: "Store") -> list[str]:
    folder = store.path("tables")
    entries = store.fs.ls(folder, detail=False) if store.fs.exists(folder) else []
    return sorted(str(path).rstrip("/").rpartition("/")[2] for path in entries)


def _tables(store: "Store") -> tuple[dict[str, TableState], dict[str, set[str]]]:
    """Return the state and the live paths of each table."""
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
    """Return kind and number of the plans that removed rows for good; empty if there is no ledger."""
    if delta_table(lake.store, LEDGER) is None:
        return []
    rows = read(lake.tables, contract(LEDGER), ["plan", "kind"]).to_pylist()
    return [f"{row['kind']} {row['plan']:010d}" for row in rows if row["kind"] in _REMOVING]


def _files(
    entries: Mapping[str, ListedFile], states: Mapping[str, TableState], live: Mapping[str, set[str]]
) -> Iterator[SnapshotFile]:
    """Yield the files of a snapshot: log entries up to its versions, and no temporary files."""
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


WORKERS: Final = 4
_IMMUTABLE: Final = ("tables/", "plans/", "artifacts/")
_STRAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class BackupResult:
    """Result of a backup.

    Attributes
    ----------
    backup
        Its manifest.
    objects, copied_bytes, manifest_bytes
        Number of copied files, their bytes, and the bytes of the manifest: the cost of this backup.
    expired
        Numbers of deleted backups, which were outdated or more than the number to keep.
    freed_bytes
        Deleted bytes.
    """

    backup: Backup
    objects: int
    copied_bytes: int
    manifest_bytes: int
    expired: tuple[int, ...]
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file of the backup, and the number of written bytes, 0 if the place had them already."""

    file: BackupFile
    written_bytes: int
    is_sound: bool = True


def backup(lake: "Lake", uri: str, keep: int = 0) -> BackupResult:
    """Back a lake up.

    Parameters
    ----------
    keep
        Number of backups to keep, including this one; 0 keeps all.

    Raises `BackupError` and the errors of stores. A crash leaves objects that the next backup uses.
    """
    place = claim(lake, uri)
    started, own = datetime.now(UTC), set[str]()
    for _ in range(TRIES):
        last = next((read_backup(place, number) for number in numbers_of(place)[-1:]), None)
        snapshot = take_snapshot(lake, last.tables if last else ())
        existing = _objects(place).keys()
        last_files = {file.path: file for file in last.files} if last else {}
        copy = partial(_copy_file, lake.store, place, last_files, existing, own)
        try:
            with ThreadPoolExecutor(WORKERS) as pool:
                copies = list(pool.map(copy, snapshot.files))
        except FileNotFoundError:  # upkeep or a removal deleted a file of the snapshot
            continue
        copied = [item for item in copies if item is not None]
        new = Backup(
            number=last.number + 1 if last else 1,
            created=snapshot.created,
            ranklake=ranklake.__version__,
            removals=snapshot.removals,
            tables=snapshot.tables,
            files=tuple(item.file for item in copied if item.is_sound),
            damaged=tuple(item.file.path for item in copied if not item.is_sound),
        )
        raw = new.to_json()
        if not {address(place, file.sha256) for file in new.files} <= _objects(place).keys():
            continue  # another backup deleted objects that this one needs
        if manifest_bytes := write_file(place, new.name, raw):
            expired, freed_bytes = _expire(place, new, keep, lake.config.backup.keep_days, started, own)
            written = [item.written_bytes for item in copied if item.written_bytes]
            return BackupResult(new, len(written), sum(written), manifest_bytes, expired, freed_bytes)
    raise BackupError("the lake or its backups changed all the time", where=uri, hint="run it again")


def _copy_file(
    store: "Store",
    place: "Store",
    last_files: Mapping[str, BackupFile],
    existing: Collection[str],
    own: set[str],
    file: SnapshotFile,
) -> _Copy | None:
    """Copy a file unless the place has its bytes. Return None for a file that is missing or damaged and not needed."""
    modified = file.listed.modified.isoformat() if file.listed.modified else ""
    size, digest, before = file.listed.size_bytes, file.sha256, last_files.get(file.path)
    if digest is None and modified and before and (before.size_bytes, before.modified) == (size, modified):
        digest = before.sha256 if file.path.startswith(_IMMUTABLE) else None
    if digest and address(place, digest) in existing:
        return _Copy(BackupFile(file.path, size, digest, modified), 0)
    try:
        raw = bytes(store.fs.cat_file(file.listed.path))
    except FileNotFoundError:
        if file.is_needed:
            raise
        return None
    actual = hashlib.sha256(raw).hexdigest()
    record = BackupFile(file.path, len(raw), actual, modified)
    if file.sha256 not in {None, actual}:
        return _Copy(record, 0, is_sound=False) if file.is_needed else None
    name = address(place, actual)
    if name in existing:
        return _Copy(record, 0)
    own.add(name)
    return _Copy(record, write_file(place, object_name(name), raw))


def _expire(
    place: "Store", newest: Backup, keep: int, keep_days: int, started: datetime, own: Collection[str]
) -> tuple[tuple[int, ...], int]:
    """Delete outdated backups, those beyond the number to keep, and all objects that no backup needs.

    Objects without a backup may be of an interrupted backup and contain removed rows. Objects that others wrote after
    this backup started are kept, since another backup may be running.
    """
    earlier = [item for item in backups_of(place) if item.number < newest.number]
    outdated_numbers = forbidden([*earlier, newest], keep_days, datetime.now(UTC))
    outdated = [item for item in earlier if item.number in outdated_numbers]
    if keep:
        outdated += [item for item in earlier[: max(0, len(earlier) + 1 - keep)] if item not in outdated]
    kept = [item for item in (*earlier, newest) if item not in outdated]
    needed = {address(place, file.sha256) for item in kept for file in item.files}
    unneeded = {
        name: entry
        for name, entry in _objects(place).items()
        if name not in needed and (name in own or entry.modified is None or entry.modified < started)
    }
    paths = [entry.path for entry in unneeded.values()]
    names = [place.path(item.name) for item in outdated]
    for path in (*paths, *names):  # manifests last, so that the next call finds the outdated backups again
        delete(place, path)
    remove_dead(place.fs, (*paths, *names))
    for path in _strays(place):
        delete(place, path)
    return tuple(item.number for item in outdated), sum(entry.size_bytes for entry in unneeded.values())


def _objects(place: "Store") -> dict[str, ListedFile]:
    """Return the objects of a place by name."""
    entries = listed(place.fs, place.path(OBJECTS))
    return {entry.path.rpartition("/")[2]: entry for entry in entries if not entry.path.endswith(".tmp")}


def _strays(place: "Store") -> Iterator[str]:
    """Yield temporary files that crashed writers left more than a day ago."""
    before = datetime.now(UTC) - _STRAY
    for entry in listed(place.fs, place.root):
        if entry.path.endswith(".tmp") and entry.modified and entry.modified < before:
            yield entry.path
