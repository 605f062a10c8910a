"""The compare-and-swap with which every commit changes a table.

A commit contains ``Transaction("lake", number)`` and is made with a handle on which a lower number was read. delta-rs
refuses it if another commit with a transaction of the same application was made since the handle was read. delta-rs
does not compare numbers, so `swap` compares them first.

For fact and system tables the number is the plan's. Derived tables, and system tables that are also written outside of
plans (results of checks, retention plans, the audit log), count their own commits. A plan that changes such a table
adds a second transaction with its own number; see `swap_plan`.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from ranklake.errors import RanklakeError
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.tables.live_files import DataFile, damaged_log, files, live_paths
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.table_schema import add_columns, set_versions, versioned_schema
from ranklake.lake.tables.tables import ensure_table, keep_handle, reading_log, refresh, retry_listing

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

APP_ID: Final = "lake"
PLAN_ID: Final = "plan"
FENCE_ID: Final = "fence"
AGAIN: Final = "run it again"

_MOST_COMMITS: Final = 2**62
"""Upper limit of transaction numbers; the next number still fits into 64 bits."""


class LostRaceError(RanklakeError):
    """Another process committed to the table first. Nothing was changed."""


def number_of(table: DeltaTable) -> int:
    """Return the table's last transaction number, as of this handle; 0 if there is none.

    Raises `LakeUnreachableError`, and `DamagedLogError` for an impossible number.
    """
    number = transaction_number(table, APP_ID)
    return 0 if number is None else number


def transaction_number(table: DeltaTable, application: str) -> int | None:
    """Return the last transaction number of an application; None if there is none. Raises as `number_of`."""
    with reading_log(table):
        number = table.transaction_version(application)
    if number is not None and not is_possible(number):
        raise damaged_log(table, "the number of its last transaction cannot be")
    return None if number is None else int(number)


def is_possible(number: int) -> bool:
    """Whether a transaction number is in the valid range."""
    return 0 <= number < _MOST_COMMITS


def swap(
    table: DeltaTable,
    number: int,
    *,
    add: Sequence[DataFile] = (),
    remove: pa.Table | None = None,
    metadata: Mapping[str, str] | None = None,
    data_change: bool = True,
    also: Mapping[str, int] | None = None,
    tidy: bool = True,
) -> bool:
    """Commit added and removed files to a table with a number, unless the table has the number already.

    Returns whether this call committed. Raises `LostRaceError` if another process committed first; the new files then
    remain without a commit. Raises `LakeUnreachableError` if the store refuses the commit although no other commit is
    visible.

    Parameters
    ----------
    table
        A handle that was read before the work whose result is committed.
    number
        Transaction number of the commit. If it is not above the handle's number, nothing is committed.
    add, remove
        New files; files to remove, as rows of `files`.
    metadata
        Stored in the commit's `commitInfo`, for people and for recovery.
    data_change
        False if the table has the same rows before and after. Readers that follow the log then skip the commit.
    also
        Transaction numbers of further applications; `transaction_number` reads them.
    tidy
        Whether to delete expired commits of the log. It takes a listing, and upkeep does it, too.
    """
    if number_of(table) >= number:
        return False
    _commit(table, number, add, remove, metadata, data_change=data_change, also=also, tidy=tidy)
    return True


def _commit(
    table: DeltaTable,
    number: int,
    add: Sequence[DataFile],
    remove: pa.Table | None,
    metadata: Mapping[str, str] | None,
    *,
    data_change: bool = True,
    also: Mapping[str, int] | None = None,
    tidy: bool = True,
) -> None:
    """Commit files with a number above the handle's number; otherwise as `swap`."""
    actions: list[AddAction | RemoveAction] = [file.add_action(data_change=data_change) for file in add]
    actions += [] if remove is None else _remove_actions(remove, data_change=data_change)
    numbers = {APP_ID: number, **(also or {})}
    removed = set() if remove is None else set(remove["path"].to_pylist())
    with _commit_errors(table, numbers, {file.path for file in add}, removed):
        _write(table, actions, "append", table.schema(), numbers, metadata, tidy=tidy)


def _write(
    table: DeltaTable,
    actions: "list[AddAction | RemoveAction]",
    mode: str,
    schema: Schema,
    numbers: Mapping[str, int],
    metadata: Mapping[str, str] | None,
    *,
    tidy: bool = True,
) -> None:
    hooks = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=None if tidy else False)
    transactions = [Transaction(name, value) for name, value in numbers.items()]
    properties = CommitProperties(custom_metadata=dict(metadata or {}), app_transactions=transactions)
    retry_listing(
        lambda: table.create_write_transaction(
            actions,
            mode=mode,
            schema=schema,
            partition_by=list(table.metadata().partition_columns),
            commit_properties=properties,
            post_commithook_properties=hooks,
        )
    )


@contextmanager
def _commit_errors(table: DeltaTable, numbers: Mapping[str, int], add: set[str], removed: set[str]) -> Iterator[None]:
    """Translate delta-rs's errors of a commit in the block to `LostRaceError` or `LakeUnreachableError`.

    A commit may succeed without a confirmation, if the store's response is lost or delta-rs cannot list the log
    afterwards. Its retry then conflicts with itself. So after a conflict the log is checked for the own commit first.
    """
    try:
        yield
    except CommitFailedError as error:
        before = table.version()
        refresh(table)
        if table.version() <= before:  # not a lost race: retries would never end
            message, hint = "the commit was refused, and no other is to be seen", "run it again later"
            raise unreachable(table.table_uri, error, {}, what=message, hint=hint) from None
        if not _is_committed(table, numbers, add, removed):
            message = f"another process committed {numbers[APP_ID]} first"
            raise LostRaceError(message, where=table.table_uri, hint=AGAIN) from error
    except (DeltaError, OSError) as error:
        message, hint = "the commit was not confirmed", "check space and rights there; run it again"
        raise unreachable(table.table_uri, error, {}, what=message, hint=hint) from None


def _is_committed(table: DeltaTable, numbers: Mapping[str, int], add: set[str], removed: set[str]) -> bool:
    """Whether the log has the numbers, and its live files show the additions and removals. False without any file."""
    if any((transaction_number(table, name) or 0) < number for name, number in numbers.items()):
        return False
    live = live_paths(table)
    return bool(add or removed) and live.issuperset(add) and live.isdisjoint(removed)


def change_contract(
    table: DeltaTable, contract: "Contract", plan: int, new: Sequence[DataFile], metadata: Mapping[str, str]
) -> None:
    """Change a table to the columns and version of a contract, and replace all its files by new ones, in one commit.

    Without new files, the existing files are kept and columns can only be added. Commits of processes that read the
    table before will fail. Raises as `swap`.
    """
    numbers = {APP_ID: max(plan, number_of(table) + 1), PLAN_ID: plan}
    old = live_paths(table)
    with _commit_errors(table, numbers, {file.path for file in new}, old if new else set()):
        if new or not old:
            actions: list[AddAction | RemoveAction] = [file.add_action() for file in new]
            _write(table, actions, "overwrite", versioned_schema(contract), numbers, metadata)
        else:
            add_columns(table, contract)
            set_versions(table, contract, numbers)


def swap_plan(
    table: DeltaTable,
    plan: int,
    *,
    add: Sequence[DataFile] = (),
    remove: pa.Table | None = None,
    metadata: Mapping[str, str] | None = None,
    data_change: bool = True,
) -> bool:
    """Commit an action plan's files to a table, unless the table has the plan's commit already.

    The commit contains the plan's number as a second transaction. A table that counts its own commits may have a higher
    number without having this plan. Arguments, result and errors otherwise as for `swap`.
    """
    committed = transaction_number(table, PLAN_ID)
    if committed is not None and committed >= plan:
        return False
    number = max(plan, number_of(table) + 1)
    _commit(table, number, add, remove, metadata, data_change=data_change, also={PLAN_ID: plan})
    return True


def fence(table: DeltaTable, plan: int) -> None:
    """Make commits to a derived table fail whose rows were computed from tables before a plan. Changes no row.

    Rollups read the number of the last finished plan before they start, and pass it to `replace_files`. Repeating the
    fence for the same or an earlier plan changes nothing. Raises `LakeUnreachableError`.
    """
    while (transaction_number(table, FENCE_ID) or 0) < plan:
        try:
            _commit(table, number_of(table) + 1, (), None, {"ranklake.plan": str(plan)}, also={FENCE_ID: plan})
        except LostRaceError:  # another commit was first; try again
            continue
        refresh(table)


def replace_partitions(
    tables: "Tables",
    contract: "Contract",
    rows: pa.Table,
    partitions: Sequence[date],
    *,
    metadata: Mapping[str, str] | None = None,
    expected_version: int | None = None,
) -> int:
    """Write rows as new files and replace date partitions of a derived table by them; otherwise as `replace_files`."""
    table = ensure_table(tables, contract)
    _check_version(tables.store, table, contract, expected_version)
    new = append_files(tables.store, contract, rows, number_of(table) + 1)
    return replace_files(tables, contract, new, partitions, metadata=metadata, expected_version=table.version())


def replace_files(
    tables: "Tables",
    contract: "Contract",
    new: Sequence[DataFile],
    partitions: Sequence[date],
    *,
    kept: Collection[str] = (),
    metadata: Mapping[str, str] | None = None,
    expected_version: int | None = None,
    since_plan: int | None = None,
) -> int:
    """Replace date partitions of a derived table by new files, in one commit. Returns the new Delta version.

    All new files must belong to `partitions`. Old files whose paths are in `kept` are not removed. A partition without
    files becomes empty. Raises `LostRaceError` if the table changed since `expected_version`, or if a plan after
    `since_plan` set a `fence`. Nothing is changed then; the files remain without a commit.
    """
    table = ensure_table(tables, contract)
    _check_version(tables.store, table, contract, expected_version)
    if since_plan is not None and (transaction_number(table, FENCE_ID) or 0) > since_plan:
        raise LostRaceError(
            f"rows that {contract.table} was computed from were erased", where=tables.store.uri, hint=AGAIN
        )
    outside = {file.partition for file in new} - set(partitions)
    if outside:
        raise ValueError(f"rows outside the partitions to replace: {sorted(outside)}")
    old = files(table, partitions)
    old = old.filter(pc.invert(pc.is_in(old["path"], value_set=pa.array(sorted(kept), pa.string()))))
    _commit(table, number_of(table) + 1, new, old, metadata)
    refresh(table)  # a write transaction does not update its handle
    keep_handle(tables, contract.table, table)
    return table.version()


def _check_version(store: "Store", table: DeltaTable, contract: "Contract", expected_version: int | None) -> None:
    if expected_version is not None and table.version() != expected_version:
        raise LostRaceError(f"{contract.table} moved on", where=store.uri, hint=AGAIN)


def _remove_actions(remove: pa.Table, *, data_change: bool) -> list[AddAction | RemoveAction]:
    now = int(time.time() * 1000)
    rows: list[dict[str, Any]] = remove.select(["path", "size_bytes", "date"]).to_pylist()
    return [
        RemoveAction(
            row["path"],
            data_change=data_change,
            deletion_timestamp=now,
            size=row["size_bytes"],
            partition_values={"date": row["date"].isoformat()},
        )
        for row in rows
    ]
