"""Delta tables of a lake: opening them, and making them from their contracts."""

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


_MARKS: Final = ("size", "ino", "mtime", "ETag", "etag", "LastModified", "last_modified", "updated")
"""What file systems say of a file that changes with it, a disk's and the stores', each under its own name."""

_T = TypeVar("_T")

_LOOKS: Final = 8
"""A listing that lacks what is there is made again, a few times."""
_GAPS: Final = ("found gap", "gap between checkpoint")
"""What delta-rs says, in small letters, of a log that lacks a commit between two others, or behind its checkpoint. Its
errors quote paths, and those may hold anything.
"""


class NewerTableError(LakeError):
    """A table that newer software made or migrated; this one must not write what it would not know to be there.

    Attributes
    ----------
    table, found, known
        Its name, its contract's version, and the highest that is known here.
    """

    def __init__(self, table: str, actual: int, known: int, where: str) -> None:
        super().__init__(
            f"table {table} has contract version {actual}, known up to {known}", where=where, hint="upgrade ranklake"
        )
        self.table, self.version, self.known = table, actual, known


@contextmanager
def reading_log(handle: DeltaTable) -> Iterator[None]:
    """Raise `LakeUnreachableError` for what delta-rs raises in the block, except for a commit that lost its race.

    A handle reads the log again for much of what it is asked, so the disk or the store can fail at each of that.
    """
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        hint = "check your rights there and run it again; restore a damaged _delta_log from a backup"
        raise unreachable(handle.table_uri, error, {}, what="its log cannot be read", hint=hint) from None


def refuse_unfit(handle: DeltaTable, contract: "Contract") -> DeltaTable:
    """Return the handle of a table that may be written by its contract here.

    Raises `NewerTableError`, and `ranklake.lake.tables.table_schema.UnmigratedTableError` for an older one that cannot
    follow by itself.
    """
    version = version_of(handle)
    if version > contract.version:
        raise NewerTableError(contract.table, version, contract.version, handle.table_uri)
    if (added := added_version_of(handle)) > contract.added_version:
        which = f"{contract.table} with columns of yours"
        raise NewerTableError(which, added, contract.added_version, handle.table_uri)
    refuse_unmigrated(handle, contract)
    return handle


def retry_listing(ask: Callable[[], _T]) -> _T:
    """Return what delta-rs answers; ask again, a few times, where it says that a log lacks a commit between two others.

    A folder is not listed at one moment: beside writers, a listing can lack a commit that came while it was made, and
    have a later one. The log itself is whole. For all that lists the log of a table to which others write. Raises what
    delta-rs raises.
    """
    for _ in range(_LOOKS - 1):
        try:
            return ask()
        except (DeltaError, OSError, ValueError) as error:
            if not any(gap in str(error).lower() for gap in _GAPS):
                raise
    return ask()


def refresh(handle: DeltaTable) -> None:
    """Bring a handle up to date. Raises `LakeUnreachableError`."""
    with reading_log(handle):
        retry_listing(handle.update_incremental)


def delta_table(store: "Store", name: str) -> DeltaTable | None:
    """Return a fresh handle on a table, or None where it was never written.

    Raises `LakeUnreachableError` if its log is there and cannot be read.
    """
    try:
        return retry_listing(lambda: DeltaTable(store.table_uri(name), storage_options=store.delta_storage))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:  # ValueError: a partition without its value
        message = f"table {name} cannot be opened"
        hint = "check your rights there; restore a damaged _delta_log from a backup"
        raise unreachable(store.uri, error, store.storage, what=message, hint=hint) from None


def at_version(store: "Store", name: str, version: int) -> DeltaTable:
    """Return a fresh handle on an old version of a table. Raises what delta-rs raises."""
    uri, options = store.table_uri(name), store.delta_storage
    return retry_listing(lambda: DeltaTable(uri, version=version, storage_options=options))


def last_table(store: "Store", name: str) -> DeltaTable | None:
    """Return a fresh handle that has every commit of before this call, or None where the table was never written.

    For who deletes what a log does not name. delta-rs goes by a listing of the log, and a listing can lack what was
    written last (a network file system's is cached): so later commits are asked for by their names. Raises
    `LakeUnreachableError`, too, where they are there and the listing goes on without them.
    """
    newest = None
    for _ in range(_LOOKS):
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
    """Return the last version, from one on, whose commit exists; each is looked up by name."""
    try:
        while store.fs.info(store.path("tables", name, "_delta_log", f"{version + 1:020}.json")):
            version += 1
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unreachable(store.uri, error, store.storage, what=f"table {name} cannot be looked at") from None
    return version


def latest(tables: "Tables", name: str) -> DeltaTable | None:
    """Return the handle that this process keeps on a table, brought up to date, or None where it was never written.

    For who looks at once and lets go: the next who asks moves it on. Who commits by what he read needs a handle of his
    own. Opening a table costs more the more files it has, news of it do not. Raises as `delta_table`.
    """
    opened: tuple[DeltaTable | None, tuple[object, ...] | None] = tables.opened.pop(name, (None, None))
    handle, mark = opened
    version = None if handle is None else handle.version()
    if handle is not None:
        try:
            # News of a table that was lost, or made again, are none, and no error.
            if mark is not None and mark_of(tables.store, name, handle.version()) == mark:
                handle.update_incremental()
            else:
                handle = None
        except (DeltaError, OSError, ValueError):  # whatever it is, opening it again meets it, and says so
            handle = None
    if handle is None:
        handle, version = delta_table(tables.store, name), None
    if handle is not None:
        tables.opened[name] = (
            handle,
            mark if handle.version() == version else mark_of(tables.store, name, handle.version()),
        )
    return handle


def keep_handle(tables: "Tables", name: str, handle: DeltaTable) -> None:
    """Give `latest` a handle that is up to date, and that nobody uses any more."""
    tables.opened[name] = (handle, mark_of(tables.store, name, handle.version()))


def take_handle(tables: "Tables", contract: "Contract") -> DeltaTable:
    """Return the handle that this process keeps on a table, up to date, and the caller's alone until `keep_handle`.

    For who commits to a table again and again. Otherwise as `ensure_table`.
    """
    handle = latest(tables, contract.table)
    tables.opened.pop(contract.table, None)
    is_fit = handle is not None and refuse_unmigrated(refuse_unfit(handle, contract), contract) is None
    return handle if handle is not None and is_fit else ensure_table(tables, contract)


def mark_of(store: "Store", name: str, version: int) -> tuple[object, ...] | None:
    """Return what tells a commit's file from one of the same name in a table made again; None where it is gone."""
    try:
        info = store.fs.info(store.path("tables", name, "_delta_log", f"{version:020}.json"))
    except OSError:
        return None
    return tuple(str(info.get(key)) for key in _MARKS)


def ensure_table(tables: "Tables", contract: "Contract") -> DeltaTable:
    """Return a fresh handle on a table, made from its contract where it was never written.

    A table of an older contract follows the one here first, if it can by itself. Two that make it at once get the same
    table. Raises `LakeUnreachableError` where it cannot be made; nothing is left behind then but perhaps an empty
    folder, `NewerTableError`, and `ranklake.lake.tables.table_schema.UnmigratedTableError`.
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
        handle = delta_table(
            tables.store, contract.table
        )  # another process may have made it between our look and our try
        if handle is not None:
            return handle
        message = f"table {contract.table} cannot be made"
        raise unreachable(
            tables.store.uri, error, tables.store.storage, what=message, hint="check space and rights there"
        ) from None


def commit_info(store: "Store", table: str, version: int) -> dict[str, Any]:
    """Return what a commit says of itself.

    Raises `FileNotFoundError` where the log no longer has it, what the store raises, and `ValueError`, `TypeError`,
    `StopIteration` or `RecursionError` where it is damaged.
    """
    info: dict[str, Any] = next(one["commitInfo"] for one in actions_of(store, table, version) if "commitInfo" in one)
    return info


def actions_of(store: "Store", table: str, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit. Raises as `commit_info` does, except for one that it has not."""
    raw = store.fs.cat_file(store.path("tables", table, "_delta_log", f"{version:020}.json"))
    return [json.loads(line) for line in raw.splitlines() if line.strip()]


def keep_overlay(lake: "Lake") -> int:
    """Keep the configured overlay in a lake, for who writes rows; return the number of what the lake goes by.

    A table that waits for a migration is left out: it is as the lake knows it until the migration is applied, and so
    whoever undid one may restore the folder, whatever ran meanwhile. Raises as `ranklake.lake.store.overlays.keep`.
    """
    waiting = {}
    for table, version in lake.catalog.unapplied_versions().items():
        handle = latest(lake.tables, table)
        written = 0 if handle is None else (added_version_of if table in table_names() else version_of)(handle)
        if handle is not None and max(written, 1) <= version:
            waiting[table] = version
    return lake.catalog.keep(waiting)
