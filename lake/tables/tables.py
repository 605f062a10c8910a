"""Opens the Delta tables of a lake, and creates them from their contracts."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from ranklake.lake.contracts.arrow import table_configuration
from ranklake.lake.contracts.load import table_names
from ranklake.lake.store.reachability import LakeError, LakeUnreachableError, unreachable
from ranklake.lake.tables.table_schema import added_version_of, follow, refuse_unmigrated, version_of, versioned_schema

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables


_STATE_KEYS: Final = ("size", "ino", "mtime", "ETag", "etag", "LastModified", "last_modified", "updated")
"""Keys under which the file systems of disks and stores report facts that change when a file is replaced."""

_T = TypeVar("_T")

_TRIES: Final = 8
"""Number of tries to get a complete listing of a log."""
_GAPS: Final = ("found gap", "gap between checkpoint")
"""Lower-case parts of delta-rs's messages for a log that lacks a commit. The complete messages also quote paths."""


class NewerTableError(LakeError):
    """Newer software created or migrated the table. This software must not write to it.

    Attributes
    ----------
    table, version, known
        The table, its contract version, and the highest version that this software supports.
    """

    def __init__(self, table: str, actual: int, known: int, where: str) -> None:
        super().__init__(
            f"table {table} has contract version {actual}, known up to {known}", where=where, hint="upgrade ranklake"
        )
        self.table, self.version, self.known = table, actual, known


@contextmanager
def reading_log(handle: DeltaTable) -> Iterator[None]:
    """Translate errors of delta-rs in the block to `LakeUnreachableError`, except for a commit that lost a race.

    Many methods of a handle read the log again, so each of them can fail.
    """
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        hint = "check your rights there and run it again; restore a damaged _delta_log from a backup"
        raise unreachable(handle.table_uri, error, {}, what="its log cannot be read", hint=hint) from None


def refuse_unfit(handle: DeltaTable, contract: "Contract") -> DeltaTable:
    """Return the handle if the table may be written with this contract.

    Raises `NewerTableError`, and `ranklake.lake.tables.table_schema.UnmigratedTableError` for an older table that needs
    a migration.
    """
    version = version_of(handle)
    if version > contract.version:
        raise NewerTableError(contract.table, version, contract.version, handle.table_uri)
    if (added := added_version_of(handle)) > contract.added_version:
        name = f"{contract.table} with columns of yours"
        raise NewerTableError(name, added, contract.added_version, handle.table_uri)
    refuse_unmigrated(handle, contract)
    return handle


def retry_listing(call: Callable[[], _T]) -> _T:
    """Return the result of a call of delta-rs that lists a log; repeat it if the listing lacks a commit.

    Listing a folder is not atomic. While other processes write, a listing may contain a commit and lack an earlier one
    that was written at the same time. Raises the errors of delta-rs.
    """
    for _ in range(_TRIES - 1):
        try:
            return call()
        except (DeltaError, OSError, ValueError) as error:
            if not any(gap in str(error).lower() for gap in _GAPS):
                raise
    return call()


def refresh(handle: DeltaTable) -> None:
    """Update a handle to the newest version. Raises `LakeUnreachableError`."""
    with reading_log(handle):
        retry_listing(handle.update_incremental)


def delta_table(store: "Store", name: str) -> DeltaTable | None:
    """Return a new handle on a table; None if the table does not exist.

    Raises `LakeUnreachableError` if its log exists and cannot be read.
    """
    try:
        return retry_listing(lambda: DeltaTable(store.table_uri(name), storage_options=store.delta_storage))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:  # ValueError: a partition column without a value
        message = f"table {name} cannot be opened"
        hint = "check your rights there; restore a damaged _delta_log from a backup"
        raise unreachable(store.uri, error, store.storage, what=message, hint=hint) from None


def at_version(store: "Store", name: str, version: int) -> DeltaTable:
    """Return a new handle on an earlier version of a table. Raises the errors of delta-rs."""
    uri, options = store.table_uri(name), store.delta_storage
    return retry_listing(lambda: DeltaTable(uri, version=version, storage_options=options))


def last_table(store: "Store", name: str) -> DeltaTable | None:
    """Return a new handle that includes every commit made before this call; None if the table does not exist.

    Use it before deleting files that the log does not name. delta-rs lists the log, and a listing may lack the newest
    commits, as on network file systems with a cache. Therefore later commits are looked up by name. Raises
    `LakeUnreachableError`, also if such commits exist and listings still lack them.
    """
    newest = None
    for _ in range(_TRIES):
        handle = delta_table(store, name)
        if handle is None:
            return None
        if newest is None or handle.version() < newest:
            newest = _newest_by_name(store, name, handle.version())
        if handle.version() >= newest:
            return handle
    message = "a listing of its log lacks the newest commits"
    raise LakeUnreachableError(message, where=store.table_uri(name), hint="run it again later")


def _newest_by_name(store: "Store", name: str, version: int) -> int:
    """Return the newest version of a table, at least `version`. Looks up the following commits by name."""
    try:
        while store.fs.info(store.path("tables", name, "_delta_log", f"{version + 1:020}.json")):
            version += 1
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unreachable(store.uri, error, store.storage, what=f"table {name} cannot be looked at") from None
    return version


def latest(tables: "Tables", name: str) -> DeltaTable | None:
    """Return this process' cached handle on a table, updated to the newest version; None if the table does not exist.

    Use the result immediately and do not keep it: the next call updates the same handle. To commit, get your own handle
    from `ensure_table` or `take_handle`. Opening a table takes longer the more files it has; updating a handle does
    not. Raises as `delta_table`.
    """
    opened: tuple[DeltaTable | None, tuple[object, ...] | None] = tables.opened.pop(name, (None, None))
    handle, state = opened
    version = None if handle is None else handle.version()
    if handle is not None:
        try:
            # Updating a handle raises no error if the table was deleted or created again; the commit's file tells.
            if state is not None and _commit_state(tables.store, name, handle.version()) == state:
                handle.update_incremental()
            else:
                handle = None
        except (DeltaError, OSError, ValueError):  # opening the table again raises the error with a hint
            handle = None
    if handle is None:
        handle, version = delta_table(tables.store, name), None
    if handle is not None:
        if handle.version() != version:
            state = _commit_state(tables.store, name, handle.version())
        tables.opened[name] = (handle, state)
    return handle


def keep_handle(tables: "Tables", name: str, handle: DeltaTable) -> None:
    """Put a handle into the cache of `latest`. It must be current, and the caller must not use it any more."""
    tables.opened[name] = (handle, _commit_state(tables.store, name, handle.version()))


def take_handle(tables: "Tables", contract: "Contract") -> DeltaTable:
    """Take the cached handle on a table out of the cache, updated. The caller may return it with `keep_handle`.

    For repeated commits to a table. Otherwise as `ensure_table`.
    """
    handle = latest(tables, contract.table)
    tables.opened.pop(contract.table, None)
    is_fit = handle is not None and refuse_unmigrated(refuse_unfit(handle, contract), contract) is None
    return handle if handle is not None and is_fit else ensure_table(tables, contract)


def _commit_state(store: "Store", name: str, version: int) -> tuple[object, ...] | None:
    """Return the state of a commit's file, which differs if the table was created again; None if it does not exist."""
    try:
        info = store.fs.info(store.path("tables", name, "_delta_log", f"{version:020}.json"))
    except OSError:
        return None
    return tuple(str(info.get(key)) for key in _STATE_KEYS)


def ensure_table(tables: "Tables", contract: "Contract") -> DeltaTable:
    """Return a new handle on a table. Creates the table if it does not exist, and updates its schema to the contract.

    Concurrent calls are safe. Raises `LakeUnreachableError` if the table cannot be created (an empty folder may
    remain), `NewerTableError`, and `ranklake.lake.tables.table_schema.UnmigratedTableError`.
    """
    while (handle := delta_table(tables.store, contract.table)) is not None:
        with reading_log(handle):
            if follow(refuse_unfit(handle, contract), contract):
                return handle
    tables.opened.pop(contract.table, None)
    try:
        return DeltaTable.create(
            tables.store.table_uri(contract.table),
            schema=versioned_schema(contract),
            mode="ignore",
            partition_by=list(contract.partition),
            name=contract.table,
            description=contract.summary,
            configuration=table_configuration(contract),
            storage_options=tables.store.delta_storage,
        )
    except (DeltaError, OSError) as error:
        handle = delta_table(tables.store, contract.table)
        if handle is not None:  # another process created it at the same time
            return handle
        message = f"table {contract.table} cannot be made"
        raise unreachable(
            tables.store.uri, error, tables.store.storage, what=message, hint="check space and rights there"
        ) from None


def commit_info(store: "Store", table: str, version: int) -> dict[str, Any]:
    """Return the `commitInfo` action of a commit.

    Raises `FileNotFoundError` if the log does not contain the commit any more, the store's errors, and `ValueError`,
    `TypeError`, `StopIteration` or `RecursionError` if the commit is damaged.
    """
    actions = actions_of(store, table, version)
    info: dict[str, Any] = next(action["commitInfo"] for action in actions if "commitInfo" in action)
    return info


def actions_of(store: "Store", table: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit. Raises the errors of `commit_info`, except `StopIteration`."""
    raw = store.fs.cat_file(store.path("tables", table, "_delta_log", f"{version:020}.json"))
    return [json.loads(line) for line in raw.splitlines() if line.strip()]


def keep_overlay(lake: "Lake") -> int:
    """Store the configured overlay in a lake before rows are written. Returns the number of the valid overlay.

    Tables that wait for a migration are left out; the lake keeps their earlier version until the migration is applied.
    So the operator's folder can be restored after an undo, whatever ran meanwhile. Raises as
    `ranklake.lake.store.overlays.keep`.
    """
    waiting = {}
    for table, version in lake.catalog.unapplied_versions().items():
        handle = latest(lake.tables, table)
        written = 0 if handle is None else (added_version_of if table in table_names() else version_of)(handle)
        if handle is not None and max(written, 1) <= version:
            waiting[table] = version
    return lake.catalog.keep(waiting)
