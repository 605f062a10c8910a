"""Puts back what a table of a lake that is alive has lost: entries of its log, then data files that these name.

Nothing is written over, and nothing that was removed since comes back. Entries of a log never change, so those that are
there must be the backup's own.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranklake.errors import did_you_mean
from ranklake.lake.audit.trail import record
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.store.files import listed
from ranklake.lake.tables.live_files import damaged_files, files
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.backup.place import Backup, BackupError, BackupFile, TableState, bytes_of, lake_of
from ranklake.retention.backup.restore import choose
from ranklake.retention.backup.snapshot import removals_of
from ranklake.retention.proposals.identities import owner

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

ACTION: Final = "backup.repair"
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
    record(lake, by, ACTION, table, None, {**counts, "version": result.version, "rows": result.rows})
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
