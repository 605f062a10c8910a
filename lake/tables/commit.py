"""The compare-and-swap by which every mutator changes a table.

A commit carries ``Transaction("lake", number)`` and is made on the handle on which a lower number was read. delta-rs
refuses it if another commit of the same application landed since that handle was read; the number alone would not be
checked, so the handle's own number is looked at first. Numbers of fact and system tables are plan numbers; derived
tables, and system tables that are also written outside of plans (results of checks, retention plans, the audit trail),
count their own; a plan that changes such a table says so under a second application, see `swap_plan`.
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
"""More than any lake will count, and room for the next number in 64 bits."""


class LostRaceError(RanklakeError):
    """Another process committed to the table first; nothing was changed by this one."""


def number_of(table: DeltaTable) -> int:
    """Return the table's transaction number on this handle; 0 before the first.

    Raises `LakeUnreachableError`, and `DamagedLogError` for a number that cannot be.
    """
    number = transaction_number(table, APP_ID)
    return 0 if number is None else number


def transaction_number(table: DeltaTable, application: str) -> int | None:
    """Return the number that an application committed last, see `swap`; None if it never did. Raises likewise."""
    with reading_log(table):
        number = table.transaction_version(application)
    if number is not None and not is_possible(number):
        raise damaged_log(table, "the number of its last transaction cannot be")
    return None if number is None else int(number)


def is_possible(number: int) -> bool:
    """Whether a table can have counted so many commits."""
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
    """Commit files to a table under a number, once.

    Parameters
    ----------
    table
        The handle that was read before the work whose result this is.
    number
        Must be above the handle's own number, else nothing is done.
    add, remove
        New files; files to drop, as rows of `files`.
    metadata
        Goes into the commit's own record, for people and for recovery.
    data_change
        False where the table holds the same rows before and after; those who follow the log then pass the commit over.
    also
        Numbers under further applications, which stand or fall with the commit; `transaction_number` reads them.
    tidy
        Whether to look for old commits that may go: it lists the log, and upkeep does it anyway.

    Returns whether this call committed; False means that the number is there already. Raises `LostRaceError` if another
    process won; the new files then stay behind, named by no commit. Raises `LakeUnreachableError` where the store
    refuses the commit and shows none that won.
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
    """Commit files under a number that is above the handle's own; the rest as for `swap`."""
    actions: list[AddAction | RemoveAction] = [file.add_action(data_change=data_change) for file in add]
    actions += [] if remove is None else _remove_actions(remove, data_change=data_change)
    numbers = {APP_ID: number, **(also or {})}
    gone = set() if remove is None else set(remove["path"].to_pylist())
    with _racing(table, numbers, {file.path for file in add}, gone):
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
def _racing(table: DeltaTable, numbers: Mapping[str, int], add: set[str], gone: set[str]) -> Iterator[None]:
    """Turn what delta-rs raises of a commit in the block into `LostRaceError` or `LakeUnreachableError`.

    A commit can be carried out and not be confirmed: the store lost its answer, or delta-rs failed to list the log
    behind it. Asked for again, it is refused by itself; so one that was refused is looked up before it is called lost.
    """
    try:
        yield
    except CommitFailedError as error:
        before = table.version()
        refresh(table)
        if table.version() <= before:  # who tries again until he wins would never end
            message, hint = "the commit was refused, and no other is to be seen", "run it again later"
            raise unreachable(table.table_uri, error, {}, what=message, hint=hint) from None
        if not _is_carried_out(table, numbers, add, gone):
            message = f"another process committed {numbers[APP_ID]} first"
            raise LostRaceError(message, where=table.table_uri, hint=AGAIN) from error
    except (DeltaError, OSError) as error:
        message, hint = "the commit was not confirmed", "check space and rights there; run it again"
        raise unreachable(table.table_uri, error, {}, what=message, hint=hint) from None


def _is_carried_out(table: DeltaTable, numbers: Mapping[str, int], add: set[str], gone: set[str]) -> bool:
    """Whether the numbers are said, files to add live, those to remove gone; False where no file tells it."""
    if any((transaction_number(table, name) or 0) < number for name, number in numbers.items()):
        return False
    there = live_paths(table)
    return bool(add or gone) and there.issuperset(add) and there.isdisjoint(gone)


def change_contract(
    table: DeltaTable, contract: "Contract", plan: int, new: Sequence[DataFile], metadata: Mapping[str, str]
) -> None:
    """Give a table the columns and the version of a contract, and new files in place of all that it has, once.

    Without new files those that are there stay, and columns can only be added. Whoever read the table before loses his
    race. Raises as `swap`.
    """
    numbers = {APP_ID: max(plan, number_of(table) + 1), PLAN_ID: plan}
    old = live_paths(table)
    with _racing(table, numbers, {file.path for file in new}, old if new else set()):
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
    """Commit what a plan spells out for a table, once, whether the table counts plans or its own commits.

    The plan's number stands in the log as a transaction of its own, since a table that counts its own commits may be
    past that number without having seen the plan. Arguments, result and errors otherwise as for `swap`.
    """
    done = transaction_number(table, PLAN_ID)
    if done is not None and done >= plan:
        return False
    number = max(plan, number_of(table) + 1)
    _commit(table, number, add, remove, metadata, data_change=data_change, also={PLAN_ID: plan})
    return True


def fence(table: DeltaTable, plan: int) -> None:
    """Have every commit fail that was computed from what was there before a plan; no row comes or goes.

    Whoever computes a table from others notes the lake's last finished plan first, and gives it to `replace_files`.
    Again for the same plan, or an earlier one, changes nothing. Raises `LakeUnreachableError`.
    """
    while (transaction_number(table, FENCE_ID) or 0) < plan:
        try:
            _commit(table, number_of(table) + 1, (), None, {"ranklake.plan": str(plan)}, also={FENCE_ID: plan})
        except LostRaceError:  # a commit that came before it
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
    """Write rows and replace whole date partitions of a derived table by them; otherwise as `replace_files`."""
    table = ensure_table(tables, contract)
    _refuse_other(tables.store, table, contract, expected_version)
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
    """Replace date partitions of a derived table by new files, in one commit, except for files whose paths are `kept`.

    Files must all be of `partitions`; a partition without files becomes empty. Raises `LostRaceError` if the table
    moved on since `expected_version`, or while committing, or if a plan after `since_plan` put up a `fence`; nothing is
    changed then, and the files stay behind, named by no commit. Returns the new Delta version.
    """
    table = ensure_table(tables, contract)
    _refuse_other(tables.store, table, contract, expected_version)
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
    refresh(table)  # a write transaction leaves its handle at the version that was read
    keep_handle(tables, contract.table, table)
    return table.version()


def _refuse_other(store: "Store", table: DeltaTable, contract: "Contract", expected_version: int | None) -> None:
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
