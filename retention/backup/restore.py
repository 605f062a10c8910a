"""Restores a backup into an empty place, or repairs one table of a lake in use.

A restore writes the files first and the lake's marker last, so that an incomplete lake cannot be opened. The audit log
always comes from the newest backup: approvals stay on record, and later legal holds stay in force. A row of it records
the restore.

A repair writes the lost entries of a table's log, then lost data files. It overwrites nothing and restores no removed
rows. Log entries never change, so the existing ones must equal those of the backup.
"""

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.audit.trail import record
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.store.files import delete, listed, overwrite
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import DEFAULT
from ranklake.lake.store.store import FORMAT, MARKER, Store
from ranklake.lake.tables.live_files import damaged_files, files
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.backup.backup import WORKERS, removals_of
from ranklake.retention.backup.place import (
    Backup,
    BackupError,
    BackupFile,
    TableState,
    backups_of,
    bytes_of,
    forbidden,
    lake_of,
    numbers_of,
    read_backup,
    undone,
)
from ranklake.retention.proposals.identities import owner

ACTION: Final = "backup.restore"
RESTORING: Final = "restoring.json"
"""Mark of a place with an unfinished restore; it names the backup."""
_AUDIT: Final = ("tables/audit/", "audit/")
_TABLES: Final = ("tables/", "plans/")


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of a restore.

    Attributes
    ----------
    backup, uri
        The backup and the target.
    files, written_bytes
        Number and bytes of the files that this call wrote.
    undone
        Later removals by retention, whose rows the restore brought back.
    """

    backup: Backup
    uri: str
    files: int
    written_bytes: int
    undone: tuple[str, ...]


def choose(
    place: Store, number: int | None = None, at: datetime | None = None, keep_days: int = DEFAULT.backup.keep_days
) -> Backup:
    """Return the newest backup, the one with a number, or the last one made at or before a time.

    Parameters
    ----------
    keep_days
        Days after a removal by retention during which an earlier backup may bring the rows back; see `forbidden`.

    Raises `BackupError` if there is none, or if it would bring back rows that were removed for good.
    """
    lake_of(place)
    backups = backups_of(place)
    if not backups:
        hint = "make one with 'ranklake backup'"
        raise BackupError("no backup is there; one that was cut off is none", where=place.uri, hint=hint)
    if number is None and at is None:
        return backups[-1]
    if number is not None:
        backup = read_backup(place, number)
    else:
        before = [item for item in backups if at is not None and item.created <= at]
        if not before:
            hint = f"the oldest that is left is of {backups[0].created:%Y-%m-%d %H:%M:%S} UTC"
            raise BackupError(f"no backup at or before {at:%Y-%m-%d %H:%M:%S} UTC", where=place.uri, hint=hint)
        backup = before[-1]
    removals = forbidden(backups, keep_days, datetime.now(UTC)).get(backup.number)
    if removals:
        message = f"backup {backup.number} would bring back what was removed later ({', '.join(removals[:3])})"
        raise BackupError(message, where=place.uri, hint=f"restore backup {backups[-1].number}")
    return backup


def restore(place: Store, backup: Backup, target: Store, tables: Collection[str] = (), by: str = "") -> RestoreResult:
    """Write a backup into an empty place.

    Parameters
    ----------
    tables
        Tables to restore as a new lake with its own identity; empty for the whole lake.
    by
        Name of the person for the restored audit log; without a name no row is added.

    Raises `BackupError` if the place is not empty or if bytes are damaged. A crash leaves no lake; the same call
    continues.
    """
    unknown = sorted(set(tables) - set(backup.tables))
    if unknown:
        message = f"backup {backup.number} has no table {unknown[0]!r}"
        raise BackupError(message, where=place.uri, hint=did_you_mean(unknown[0], backup.tables))
    newest = read_backup(place, numbers_of(place)[-1])
    removals = tuple(undone(backup, newest))
    mark = json.dumps({"lake": lake_of(place), "backup": backup.number, "tables": sorted(tables)}).encode()
    if not _claim(place, target, mark):
        return RestoreResult(backup, target.uri, 0, 0, removals)
    existing = {
        entry.path.removeprefix(f"{target.root}/"): entry.size_bytes for entry in listed(target.fs, target.root)
    }
    needed = [file for file in _files(backup, newest, tables) if file.path != MARKER]
    lacking = [file for file in needed if existing.get(file.path) != file.size_bytes]
    with ThreadPoolExecutor(WORKERS) as pool:
        written = sum(pool.map(lambda file: _write(place, target, file), lacking))
    for path in set(existing) - {file.path for file in needed} - {RESTORING}:
        delete(target, target.path(path))  # temporary files of a crashed writer
    marker = json.dumps({"format": FORMAT, "lake": uuid.uuid4().hex}).encode()
    if not tables:
        marker = next(bytes_of(place, file) for file in backup.files if file.path == MARKER)
    if by:
        digest = hashlib.sha256(place.fs.cat_file(place.path(backup.name))).hexdigest()
        details = {**_facts(backup, tables), "manifest_sha256": digest, "undone": removals}
        # Without the witness, which may belong to the original lake in use.
        record(Lake.of(target), by, ACTION, f"backup {backup.number}", details=details)
    target.put_if_absent(MARKER, marker)
    delete(target, target.path(RESTORING))
    return RestoreResult(backup, target.uri, len(lacking), written, removals)


def _facts(backup: Backup, tables: Collection[str]) -> dict[str, Any]:
    """Return the audit details of a restored backup."""
    states = {name: state for name, state in backup.tables.items() if not tables or name in tables}
    rows = sum(state.rows for state in states.values())
    counts = {"tables": sorted(states), "rows": rows, "files": len(backup.files), "bytes": backup.size_bytes}
    return {"backup": backup.number, "created": backup.created.isoformat(), **counts}


def _claim(place: Store, target: Store, mark: bytes) -> bool:
    """Mark an empty place for this restore; return False if the restore is finished already.

    Raises `BackupError` if the place has other files.
    """
    inside = f"{target.root}/".startswith(f"{place.root}/") or f"{place.root}/".startswith(f"{target.root}/")
    if place.is_local == target.is_local and inside:
        raise BackupError("the place lies in that of the backups, or around it", where=target.uri, hint=_EMPTY)
    try:
        is_ours = bytes(target.fs.cat_file(target.path(RESTORING))) == mark
    except FileNotFoundError:
        is_ours = False
    if target.fs.exists(target.path(MARKER)):
        if not is_ours:
            raise BackupError("a lake is there, and nothing is restored over one", where=target.uri, hint=_EMPTY)
        delete(target, target.path(RESTORING))
        return False
    if is_ours:
        return True
    if target.fs.exists(target.path(RESTORING)):
        hint = "run that restore again, or empty the place"
        raise BackupError("another backup is being restored there", where=target.uri, hint=hint)
    if any(not entry.path.endswith(".tmp") for entry in listed(target.fs, target.root)):
        raise BackupError("the place is not empty", where=target.uri, hint=_EMPTY)
    target.put_if_absent(RESTORING, mark)
    return True


_EMPTY: Final = "name an empty place by --to"


def _files(backup: Backup, newest: Backup, tables: Collection[str]) -> Sequence[BackupFile]:
    """Return the files to write. Those of the audit log come from the newest backup."""
    audit = [file for file in newest.files if file.path.startswith(_AUDIT)]
    others = [file for file in backup.files if not file.path.startswith(_AUDIT)]
    if tables:
        own = tuple(f"tables/{name}/" for name in tables)
        others = [file for file in others if file.path.startswith(own) or not file.path.startswith(_TABLES)]
    return [*audit, *others]


def _write(place: Store, target: Store, file: BackupFile) -> int:
    raw = bytes_of(place, file)
    path = target.path(file.path)
    if target.is_local:
        target.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    overwrite(target.fs, path, raw, local=target.is_local)
    return len(raw)


REPAIR_ACTION: Final = "backup.repair"
_WHOLE: Final = "restore the whole lake into an empty place, and ingest what the spool has"


@dataclass(frozen=True, slots=True)
class RepairResult:
    """Result of a repair.

    Attributes
    ----------
    backup
        Number of the backup.
    log_entries, data_files, size_bytes
        Numbers and bytes of the files that were written.
    version, rows
        Version and rows of the repaired table.
    missing
        Live files that are still missing, since the backup has none of them.
    damaged
        The reason for each damaged live file, by path.
    """

    backup: int
    log_entries: int
    data_files: int
    size_bytes: int
    version: int
    rows: int
    missing: tuple[str, ...]
    damaged: Mapping[str, str]


def repair(place: "Store", lake: "Lake", table: str, by: str) -> RepairResult:
    """Write the lost files of a table from the newest backup, and add a row to the audit log.

    Stop all writers of the lake first. Raises `BackupError` if the backups are another lake's, if the table's log
    differs from the backup's, or if rows were removed for good after the backup; nothing was changed then. After a
    crash call it again. The first entry of a lost log is written last, so that no reader sees part of the log.
    """
    backup = choose(place)
    _refuse_unfit(place, lake, backup, table)
    folder = f"tables/{table}/"
    log = {file.path: file for file in backup.files if file.path.startswith(f"{folder}_delta_log/")}
    paths = _paths(lake, folder)
    for path in sorted(paths & log.keys()):
        if hashlib.sha256(lake.fs.cat_file(lake.path(path))).hexdigest() != log[path].sha256:
            raise BackupError("the table has another log than the backup", where=path, hint=_WHOLE)
    entries = [log[path] for path in sorted(log.keys() - paths, reverse=True)]
    _put(place, lake, entries)
    handle = delta_table(lake.store, table)
    if handle is None:
        raise BackupError("the table has no log still", where=table, hint=_WHOLE)
    actions = files(handle)
    state = TableState.of(handle, actions)
    lost = sorted({folder + path for path in actions["path"].to_pylist()} - paths)
    by_path = {file.path: file for file in backup.files}
    data_files = [by_path[path] for path in lost if path in by_path]
    existing = [row for row in actions.to_pylist() if folder + row["path"] in paths]
    damaged = {f"{folder}{file.path}": file.why for file in damaged_files(lake.tables, table, existing)}
    _put(place, lake, data_files)
    result = RepairResult(
        backup=backup.number,
        log_entries=len(entries),
        data_files=len(data_files),
        size_bytes=sum(file.size_bytes for file in (*entries, *data_files)),
        version=state.version,
        rows=state.rows,
        missing=tuple(path for path in lost if path not in by_path),
        damaged=damaged,
    )
    counts = {"backup": result.backup, "log_entries": result.log_entries, "data_files": result.data_files}
    record(lake, by, REPAIR_ACTION, table, None, {**counts, "version": result.version, "rows": result.rows})
    return result


def _refuse_unfit(place: "Store", lake: "Lake", backup: Backup, table: str) -> None:
    if lake_of(place) != owner(lake.store):
        raise BackupError("backups of another lake are there", where=place.uri, hint="name the place of this lake's")
    if table not in backup.tables:
        message = f"backup {backup.number} has no table {table!r}"
        raise BackupError(message, where=place.uri, hint=did_you_mean(table, backup.tables))
    if table == LEDGER or delta_table(lake.store, LEDGER) is None:
        raise BackupError("without its ledger nobody knows what was removed from the lake", where=LEDGER, hint=_WHOLE)
    since = sorted(set(removals_of(lake)) - set(backup.removals))
    if since:
        message = f"what was removed since backup {backup.number} could come back ({', '.join(since[:3])})"
        raise BackupError(message, where=table, hint=_WHOLE)


def _paths(lake: "Lake", folder: str) -> set[str]:
    root = f"{lake.store.root}/"
    return {entry.path.removeprefix(root) for entry in listed(lake.fs, lake.path(folder))}


def _put(place: "Store", lake: "Lake", lacking: list[BackupFile]) -> None:
    for file in lacking:
        if not lake.put_if_absent(file.path, bytes_of(place, file)):
            raise BackupError("something else writes to the table", where=file.path, hint="stop it, and run it again")
