"""The task that copies rows of some files as a role sees them; a worker carries it out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import row_bytes
from ranklake.lake.plans.workers import PIECE_SHARE
from ranklake.lake.query.admission import pseudonyms_for
from ranklake.lake.query.roles import Role
from ranklake.lake.query.sight import rows_as_role, runs_in
from ranklake.lake.query.sql import plain_text_columns
from ranklake.lake.tables.live_files import DataFile, refuse_damaged
from ranklake.lake.tables.order import sort_order
from ranklake.lake.tables.parquet import write_partition
from ranklake.retention.shares.definition import is_sorted_anew
from ranklake.retention.shares.place import ShareError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.workers import Room
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

FILE_BYTES: Final = 256 * 2**20
"""Rows of one file of a share, as they lie in memory; sorting and writing take some three times that. A worker with
little memory takes less at a time."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Rows of one date to copy.

    Attributes
    ----------
    lake, place
        Where from, and where to.
    contracts
        By which the table and those behind it are read.
    copied
        Contract of the copy.
    files, behind
        As for `ranklake.lake.query.sight.rows_as_role`.
    number
        Of the share's commit that is to bring them.
    file_rows
        Rows of one file, see `file_rows`.
    tells_runs
        Whether to tell which runs the rows are of.
    """

    lake: "Lake"
    place: "Store"
    role: Role
    contracts: Mapping[str, "Contract"]
    copied: "Contract"
    files: pa.Table
    behind: Mapping[str, pa.Table]
    day: date
    number: int
    file_rows: int
    tells_runs: bool = False


class CopyResult(NamedTuple):
    """Files that hold copied rows, and the runs of all that were read, if that was asked for."""

    files: list[DataFile]
    runs: tuple[str, ...]


def file_rows(copied: "Contract", room: "Room") -> int:
    """Return how many rows of a copy fit into one file, by what a worker has room for."""
    return max(1, min(FILE_BYTES, room.bytes_each // PIECE_SHARE) // row_bytes(copied))


def copy(task: CopyTask) -> CopyResult:
    """Copy rows; return the files that hold them, named by no commit yet.

    Raises `ShareError` where the role's conditions or masks fail, in words without values; `DamagedFileError`, and what
    the stores raise. Then files that no commit names stay behind.
    """
    table = task.copied.table
    refuse_damaged(task.lake.tables, table, task.files)
    runs = runs_in(task.lake.store, task.contracts[table], task.files) if task.tells_runs else ()
    return CopyResult(
        [write_partition(task.place, task.copied, rows, task.day, task.number) for rows in _chunks(task)], runs
    )


def _chunks(task: CopyTask) -> Iterator[pa.Table]:
    """Yield rows of one file after the other.

    Rows that lie in the order of a column which the role does not see as it is are put into another order first, as a
    whole: which of them share a file would reveal the column.
    """
    most = task.file_rows
    if is_sorted_anew(task.contracts[task.copied.table], task.copied):
        yield from _split_rows(_sort_batches(list(_batches(task)), task.copied.sort), most)
        return
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in _batches(task):
        held.append(batch)
        count += batch.num_rows
        if count >= most:
            *whole, rest = _split_rows(pa.Table.from_batches(held), most)
            yield from whole if rest.num_rows < most else (*whole, rest)
            held = rest.to_batches() if rest.num_rows < most else []
            count = sum(one.num_rows for one in held)
    if count:
        yield pa.Table.from_batches(held)


def _split_rows(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    for first in range(0, rows.num_rows, most):
        yield rows.slice(first, most)


def _sort_batches(batches: list[pa.RecordBatch], keys: Sequence[str]) -> pa.Table:
    if not batches:
        return pa.table({})
    rows = plain_text_columns(pa.Table.from_batches(batches))
    order, _ = sort_order(rows, keys)
    return rows if order is None else rows.take(order)


def _batches(task: CopyTask) -> Iterator[pa.RecordBatch]:
    table = task.copied.table
    pseudonyms = pseudonyms_for(task.role, [task.contracts[table]], task.lake.config.masking.key)
    try:
        ctx, frame = rows_as_role(
            task.lake.store, task.role, task.contracts, task.files, task.behind, table, pseudonyms
        )
        for batch in frame.execute_stream():
            if batch.to_pyarrow().num_rows:
                yield batch.to_pyarrow()
        del ctx
    except (RanklakeError, OSError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - DataFusion's errors may quote rows
        message = f"{table} {task.day}: a condition or mask of role {task.role.name} fails on a row"
        raise ShareError(
            message, where=task.role.name, hint=f"ranklake roles explain {task.role.name} {table}"
        ) from None
