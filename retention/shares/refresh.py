"""Refreshes a share: copies only what changed in the lake or in the role's definition.

    live files of a table ──split_pieces──▶ valid pieces, due dates ──copy──▶ files of the share, on workers
        ──▶ one commit for some dates ──▶ record of the pieces ──▶ unused files are deleted

After a crash the next call continues: a commit that was not recorded is repeated, and unused files are deleted.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import row_bytes
from ranklake.lake.plans.driver import Unit, carry_out
from ranklake.lake.plans.workers import PIECE_SHARE
from ranklake.lake.query.admission import (
    is_settled,
    pseudonyms_for,
    read_by,
    rows_as_role,
    runs_in,
    runs_of_teams,
    tables_asked,
    tables_behind,
)
from ranklake.lake.query.roles import Role
from ranklake.lake.query.scan import live_files
from ranklake.lake.query.sql import plain_text_columns
from ranklake.lake.store.files import delete
from ranklake.lake.tables.commit import number_of
from ranklake.lake.tables.live_files import DataFile, digest_of, live_paths, refuse_damaged
from ranklake.lake.tables.order import sort_order
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.tables import delta_table
from ranklake.masking.masks import Pseudonyms
from ranklake.printable import counted
from ranklake.retention.shares.copies import (
    CopyInputs,
    DueDate,
    Piece,
    Source,
    conditions_digest,
    copy_contract,
    definition,
    is_resorted,
    split_by_rows,
    split_pieces,
)
from ranklake.retention.shares.place import ShareError, open_place, refuse_other
from ranklake.retention.shares.register import Share
from ranklake.retention.shares.shared_table import SharedTable, erase_table, shared_table_names

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Room, Workers
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store


FILE_BYTES: Final = 256 * 2**20
"""Most bytes in memory of the rows of one file. Sorting and writing take about three times that. A worker with little
memory writes smaller files."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """A task for a worker: copy rows of one date.

    Attributes
    ----------
    lake, place
        The source lake and the place of the share.
    contracts
        Contracts of the table and of the tables that the role's conditions read, by table.
    copied
        Contract of the copy.
    files, behind
        As for `ranklake.lake.query.admission.rows_as_role`.
    number
        Number of the share's commit that will add the files.
    file_rows
        Most rows of one file (`file_rows`).
    tells_runs
        Whether to return the runs of the rows.
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
    """The written files, and the runs of all rows that were read if the task asks for them."""

    files: list[DataFile]
    runs: tuple[str, ...]


def file_rows(copied: "Contract", room: "Room") -> int:
    """Return the most rows of one file of a copy, by the memory of a worker."""
    return max(1, min(FILE_BYTES, room.bytes_each // PIECE_SHARE) // row_bytes(copied))


def copy(task: CopyTask) -> CopyResult:
    """Copy rows into new files, without a commit.

    Raises `ShareError` without values in its message if the role's conditions or masks fail, `DamagedFileError`, and
    the errors of the stores. The next sweep deletes files that were written by then.
    """
    table = task.copied.table
    refuse_damaged(task.lake.tables, table, task.files)
    runs = runs_in(task.lake.store, task.contracts[table], task.files) if task.tells_runs else ()
    return CopyResult(
        [write_partition(task.place, task.copied, rows, task.day, task.number) for rows in _chunks(task)], runs
    )


def _chunks(task: CopyTask) -> Iterator[pa.Table]:
    """Yield the rows of each file.

    If the source is sorted by a column that the role does not see unmasked, all rows are sorted again before they are
    split. Otherwise the split into files would reveal the column.
    """
    most = task.file_rows
    if is_resorted(task.contracts[task.copied.table], task.copied):
        yield from _split_rows(_sort_batches(list(_rows_of(task)), task.copied.sort), most)
        return
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in _rows_of(task):
        pending.append(batch)
        count += batch.num_rows
        if count >= most:
            *full, rest = _split_rows(pa.Table.from_batches(pending), most)
            yield from full if rest.num_rows < most else (*full, rest)
            pending = rest.to_batches() if rest.num_rows < most else []
            count = sum(item.num_rows for item in pending)
    if count:
        yield pa.Table.from_batches(pending)


def _split_rows(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    for first in range(0, rows.num_rows, most):
        yield rows.slice(first, most)


def _sort_batches(batches: list[pa.RecordBatch], keys: Sequence[str]) -> pa.Table:
    if not batches:
        return pa.table({})
    rows = plain_text_columns(pa.Table.from_batches(batches))
    order, _ = sort_order(rows, keys)
    return rows if order is None else rows.take(order)


def _rows_of(task: CopyTask) -> Iterator[pa.RecordBatch]:
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


BATCH_TASKS: Final = 16
"""Pieces per commit, which is the most work that a crash can cost."""
TASK_CPU_S: Final = 0.05
ROW_CPU_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class TableRefreshResult:
    """Result for one table: its pieces, added rows and files, removed files, and source files that were read."""

    table: str
    pieces: int
    rows_added: int
    files_added: int
    files_removed: int
    sources_read: int

    @property
    def is_changed(self) -> bool:
        """Whether the table of the share changed."""
        return bool(self.files_added or self.files_removed)


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """Result of a refresh: the share, its tables, and deleted tables that the role no longer sees."""

    share: Share
    tables: tuple[TableRefreshResult, ...]
    taken_back: tuple[str, ...]

    @property
    def is_changed(self) -> bool:
        """Whether the share changed."""
        return bool(self.taken_back) or any(table.is_changed for table in self.tables)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        names = ("pieces", "rows_added", "files_added", "files_removed", "sources_read")
        tables = {table.table: {name: getattr(table, name) for name in names} for table in self.tables}
        place = {"share": self.share.name, "role": self.share.role, "uri": self.share.uri}
        return {**place, "changed": self.is_changed, "tables": tables, "taken_back": list(self.taken_back)}


def refuse_unshareable(lake: "Lake", role: Role) -> None:
    """Raise `ShareError` or `RoleError` if a role has expired or one of its tables cannot be copied."""
    role.refuse_ended(datetime.now(UTC).date())
    contracts = lake.contracts()
    visible = [contracts[name] for name in sorted(role.tables & contracts.keys())]
    for table in visible:
        copy_contract(role, table)
    pseudonyms_for(role, visible, lake.config.masking.key)


def refresh(
    lake: "Lake", share: Share, role: Role, workers: "Workers", progress: "Progress | None" = None
) -> RefreshResult:
    """Refresh a share.

    Raises `ShareError` if the place belongs to another lake or the role cannot be copied, `RoleError` if a key is
    missing, `ranklake.lake.tables.commit.LostRaceError` if another process refreshes it at the same time, and the
    errors of the stores.
    """
    place = open_place(lake.store, share.uri)
    refuse_other(lake.store, place, share.role)
    refuse_unshareable(lake, role)
    contracts = lake.contracts()
    visible = sorted(role.tables & contracts.keys())
    hidden = sorted(shared_table_names(place) - set(visible))
    for table in hidden:
        erase_table(place, table)
    pseudonyms = pseudonyms_for(role, [contracts[name] for name in visible], lake.config.masking.key)
    results = []
    for number, table in enumerate(visible, 1):
        results.append(_Table(lake, share, place, role, table, contracts, pseudonyms).refresh(workers))
        if progress is not None:
            progress(number, len(visible))
    return RefreshResult(share, tuple(results), tuple(hidden))


class _Table:
    """The refresh of one table of a share."""

    def __init__(
        self,
        lake: "Lake",
        share: Share,
        place: "Store",
        role: Role,
        table: str,
        contracts: Mapping[str, "Contract"],
        pseudonyms: Pseudonyms | None,
    ) -> None:
        self.lake, self.place, self.role, self.table = lake, place, role, table
        behind = tables_behind(role, contracts[table], contracts)
        handles = {name: delta_table(lake.store, name) for name in {table, *behind}}
        self.contracts = {name: read_by(handle, contracts[name]) for name, handle in handles.items()}
        live = {name: live_files(handle) for name, handle in handles.items()}
        self.live, self.behind = live[table], {name: live[name] for name in behind}
        self.copied = copy_contract(role, self.contracts[table])
        self.shared = SharedTable(lake.store, share, place, table)
        moment = "" if is_settled(role, contracts[table]) else datetime.now(UTC).isoformat()
        conditions = {name: self.behind[name] for name in tables_asked(role, contracts[table], contracts)}
        by_run = bool(role.teams) and "run" in contracts[table]
        team_runs = runs_of_teams(lake.store, role, self.contracts["runs"], self.behind["runs"]) if by_run else None
        self.inputs = CopyInputs(conditions_digest(conditions, moment), team_runs)
        self.definition = definition(role, self.contracts[table], () if pseudonyms is None else pseudonyms.key_ids)
        self.rows = self.added = self.removed = self.read = 0
        self._file_rows = 0
        self._paths: frozenset[str] = frozenset()
        self._stray: frozenset[str] = frozenset()

    def refresh(self, workers: "Workers") -> TableRefreshResult:
        """Copy and commit everything that is due."""
        self.shared.define(self.definition, self.copied)
        self._paths = paths = self._shared_files()
        pieces = self.shared.record.pieces
        valid, due = split_pieces(pieces, sources_of(self.live), paths, self.inputs)
        self._stray = paths - {path for piece in pieces for path in piece.files}
        workers = workers.fitting(sum(map(_cpu_s, due)))
        if due:
            self._file_rows = file_rows(self.copied, workers.room())
        if is_resorted(self.contracts[self.table], self.copied):  # a group is sorted as a whole
            due = [split_by_rows(day, self._file_rows) for day in due]
        batches = list(_batches(due))
        self._commit((), self._stray_of(None, due), valid, due)
        for index, batch in enumerate(batches):
            left = [day for later in batches[index + 1 :] for day in later]
            detail = f"{counted(sum(len(day.groups) for day in batch), 'piece')} for {self.role.name}"
            unit = Unit("share", self.table, tuple(day.day for day in batch), detail, reads=(self.table,))
            valid = carry_out(unit, partial(self._copy_batch, workers, batch, valid, left))
        self.shared.sweep()
        return TableRefreshResult(self.table, len(valid), self.rows, self.added, self.removed, self.read)

    def _copy_batch(
        self, workers: "Workers", batch: Sequence[DueDate], valid: list[Piece], left: Sequence[DueDate]
    ) -> list[Piece]:
        """Copy some dates and commit them; return the valid pieces. `left` are the dates of later batches."""
        handle = self.shared.open()
        assert handle is not None
        number = number_of(handle) + 1
        groups = [(day, group) for day in batch for group in day.groups]
        results = workers.run(copy, [self._task(day.day, group, number) for day, group in groups])
        add: list[DataFile] = []
        removed = self._stray_of(batch, batch)
        for day in batch:
            day_results = [(group, results[n]) for n, (due, group) in enumerate(groups) if due is day]
            old = [path for piece in day.replaced for path in piece.files]
            new = [file for _, result in day_results for file in result.files]
            kept = self._match_unchanged(old, new)
            if kept is None:
                add += new
                removed |= set(old)
            names = kept or {}
            valid = valid + [self._piece(day.day, group, result, names) for group, result in day_results]
            self.read += sum(len(group) for group, _ in day_results)
        self.rows += sum(file.rows for file in add)
        same_rows = self.table not in self.role.groups and all(day.is_regrouped for day in batch)
        self._commit(add, removed, valid, left, handle=handle, same_rows=same_rows)
        return valid

    def _match_unchanged(self, old: Sequence[str], new: Sequence[DataFile]) -> dict[str, str] | None:
        """Return the equal old file of each new file, and delete the new files; None unless all files are equal.

        So a change of rows that the role does not see leaves no trace in the share.
        """
        new_digests = sorted(str(digest_of(file.path)) for file in new)
        if not old or sorted(str(digest_of(path)) for path in old) != new_digests:
            return None
        old_by_digest = {digest_of(path): path for path in old}
        if len(old_by_digest) < len(old) or not self._paths.issuperset(old):
            return None
        for file in new:
            delete(self.place, self.place.path("tables", self.table, file.path))
        return {file.path: old_by_digest[digest_of(file.path)] for file in new}

    def _piece(self, day: date, group: Sequence[Source], result: CopyResult, names: Mapping[str, str]) -> Piece:
        files = tuple(names.get(file.path, file.path) for file in result.files)
        size, sources = sum(file.size_bytes for file in result.files), tuple(source.path for source in group)
        return Piece(day, sources, files, size, self.inputs.digest(result.runs), result.runs)

    def _task(self, day: date, group: Sequence[Source], number: int) -> CopyTask:
        paths = pa.array([source.path for source in group], pa.string())
        files = self.live.filter(pc.is_in(self.live["path"], value_set=paths))
        tells = self.inputs.theirs is not None
        facts = self.lake, self.place, self.role, self.contracts, self.copied, files, self.behind, day, number
        return CopyTask(*facts, self._file_rows, tells_runs=tells)

    def _commit(
        self,
        add: Sequence[DataFile],
        removed: Collection[str],
        valid: Sequence[Piece],
        left: Sequence[DueDate],
        *,
        handle: "DeltaTable | None" = None,
        same_rows: bool = False,
    ) -> None:
        handle = handle or self.shared.open()
        assert handle is not None
        pieces = [*valid, *(piece for day in left for piece in day.replaced)]
        if self.shared.commit(handle, add, removed, pieces, same_rows=same_rows):
            self.added += len(add)
            self.removed += len(removed)

    def _stray_of(self, batch: Sequence[DueDate] | None, due: Sequence[DueDate]) -> set[str]:
        """Return files of the share without a piece: those on the dates of a batch, or on dates without due work."""
        days = {f"date={day.day.isoformat()}" for day in due}
        return {path for path in self._stray if (path.partition("/")[0] in days) == (batch is not None)}

    def _shared_files(self) -> frozenset[str]:
        handle = self.shared.open()
        return frozenset() if handle is None else frozenset(live_paths(handle))


def sources_of(live: pa.Table) -> list[Source]:
    """Return live files, rows of `ranklake.lake.query.scan.live_files`, as sources."""
    columns = [live[name].to_pylist() for name in ("path", "date", "num_records", "size_bytes")]
    return [Source(*facts) for facts in zip(*columns, strict=True)]


def _cpu_s(day: DueDate) -> float:
    rows = sum(source.rows for group in day.groups for source in group)
    return len(day.groups) * TASK_CPU_S + rows * ROW_CPU_S


def _batches(due: Sequence[DueDate]) -> Iterator[list[DueDate]]:
    """Yield the dates of each commit, with about `BATCH_TASKS` pieces."""
    batch: list[DueDate] = []
    for day in due:
        batch.append(day)
        if sum(len(due_date.groups) for due_date in batch) >= BATCH_TASKS:
            yield batch
            batch = []
    if batch:
        yield batch
