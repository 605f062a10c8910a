"""Restores a backup into an empty place, or one table of a lake in use.

A restore writes files first and the lake's marker last, so that nobody opens half a lake.

The audit log is that of the newest backup, whichever is restored: what people answered for stays on record, and legal
holds that were placed since stay in force. A row of it says who restored what.

Puts back what a table of a lake that is alive has lost: entries of its log, then data files that these name.

Nothing is written over, and nothing that was removed since comes back. Entries of a log never change, so those that are
there must be the backup's own.
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
"""File of a place into which a backup is being restored, and of which."""
_AUDIT: Final = ("tables/audit/", "audit/")
_TABLES: Final = ("tables/", "plans/")


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore did.

    Attributes
    ----------
    backup, uri
        What was restored, and where to.
    files, written_bytes
        What this call wrote.
    undone
        Removals by retention since, whose rows came back with it.
    """

    backup: Backup
    uri: str
    files: int
    written_bytes: int
    undone: tuple[str, ...]


def choose(
    place: Store, number: int | None = None, at: datetime | None = None, keep_days: int = DEFAULT.backup.keep_days
) -> Backup:
    """Return the newest backup, the one of a number, or the last one that was made at or before a time.

    Parameters
    ----------
    keep_days
        As long may what retention removed come back with an earlier backup, since a backup told of the removal.

    Raises `BackupError` where there is none, or where what was removed for good would come back with it.
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
        Only these, as a lake of its own, which takes no part in what becomes of the other; none: the whole lake.
    by
        Who restores it, for the audit log of what comes back; without a name, nothing is added to it.

    Raises `BackupError` where the place holds a lake or anything else, or where bytes are not what was backed up. Cut
    off, it leaves no lake: the same call goes on.
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
    there = {entry.path.removeprefix(f"{target.root}/"): entry.size_bytes for entry in listed(target.fs, target.root)}
    wanted = [file for file in _files(backup, newest, tables) if file.path != MARKER]
    lacking = [file for file in wanted if there.get(file.path) != file.size_bytes]
    with ThreadPoolExecutor(WORKERS) as pool:
        written = sum(pool.map(lambda file: _write(place, target, file), lacking))
    for path in set(there) - {file.path for file in wanted} - {RESTORING}:
        delete(target, target.path(path))  # what a writer left that was killed
    marker = json.dumps({"format": FORMAT, "lake": uuid.uuid4().hex}).encode()
    if not tables:
        marker = next(bytes_of(place, file) for file in backup.files if file.path == MARKER)
    if by:
        digest = hashlib.sha256(place.fs.cat_file(place.path(backup.name))).hexdigest()
        details = {**_facts(backup, tables), "manifest_sha256": digest, "undone": removals}
        # The witness is not told: it may be that of a lake that is alive, beside which this one is looked at.
        record(Lake.of(target), by, ACTION, f"backup {backup.number}", details=details)
    target.put_if_absent(MARKER, marker)
    delete(target, target.path(RESTORING))
    return RestoreResult(backup, target.uri, len(lacking), written, removals)


def _facts(backup: Backup, tables: Collection[str]) -> dict[str, Any]:
    """Return what the audit log tells of a backup that is restored."""
    states = {name: state for name, state in backup.tables.items() if not tables or name in tables}
    rows = sum(state.rows for state in states.values())
    counts = {"tables": sorted(states), "rows": rows, "files": len(backup.files), "bytes": backup.size_bytes}
    return {"backup": backup.number, "created": backup.created.isoformat(), **counts}


def _claim(place: Store, target: Store, mark: bytes) -> bool:
    """Make an empty place that of this restore; False where this restore is done but for its mark.

    Raises `BackupError` where something else is there.
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
    """Return the files to write: the audit log's are of the newest backup."""
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
    """What a repair did.

    Attributes
    ----------
    backup
        Number of the backup.
    log_entries, data_files, size_bytes
        What was put back.
    version, rows
        Of the table as it is now.
    missing
        Live files that the table lacks still, and no backup has.
    damaged
        Live files that are there and are not what was written, by path: why.
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
    """Put back what a table has lost, from the newest backup, and add a row to the audit log.

    Stop what writes to the lake first. Raises `BackupError` where the backups are another lake's, where the table has
    another log than the backup, and where something was removed since; nothing was changed then. Cut off, run it again:
    the first entry of a lost log comes last, so that nobody reads half of it.
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
    known = {file.path: file for file in backup.files}
    data_files = [known[path] for path in lost if path in known]
    there = [row for row in actions.to_pylist() if folder + row["path"] in paths]
    damaged = {f"{folder}{one.path}": one.why for one in damaged_files(lake.tables, table, there)}
    _put(place, lake, data_files)
    result = RepairResult(
        backup=backup.number,
        log_entries=len(entries),
        data_files=len(data_files),
        size_bytes=sum(file.size_bytes for file in (*entries, *data_files)),
        version=state.version,
        rows=state.rows,
        missing=tuple(path for path in lost if path not in known),
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
