"""Refresh: brings a share up to date with the lake and with the role, at the cost of what changed.

    live files of a table ──pieces.settle──▶ what holds, what is due ──copying──▶ files of the share, on workers
        ──▶ one commit for some dates ──▶ pieces written down ──▶ bytes that nothing names are deleted

Killed anywhere, the next call goes on: a commit that was not written down is made again, and what no commit names goes.
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
from ranklake.retention.shares.definition import CopyInputs, conditions_digest, copy_contract, definition, is_resorted
from ranklake.retention.shares.pieces import DueDate, Piece, Source, settle, split_by_rows
from ranklake.retention.shares.place import ShareError, open_place, refuse_other
from ranklake.retention.shares.register import Share
from ranklake.retention.shares.shared_table import SharedTable, erase_table, tables_there

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.plans.workers import Room, Workers
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
        As for `ranklake.lake.query.admission.rows_as_role`.
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
    if is_resorted(task.contracts[task.copied.table], task.copied):
        yield from _split_rows(_sort_batches(list(_rows_of(task)), task.copied.sort), most)
        return
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in _rows_of(task):
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
"""Pieces that are committed together: what a kill costs at most."""
TASK_CPU_S: Final = 0.05
ROW_CPU_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class TableRefreshResult:
    """What was done about one table: its pieces, rows and files that came, files that went, sources that were read."""

    table: str
    pieces: int
    rows_added: int
    files_added: int
    files_removed: int
    sources_read: int

    @property
    def is_changed(self) -> bool:
        """Whether the share is another afterwards."""
        return bool(self.files_added or self.files_removed)


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What a refresh did: the share, its tables, and tables that the role sees no more."""

    share: Share
    tables: tuple[TableRefreshResult, ...]
    taken_back: tuple[str, ...]

    @property
    def is_changed(self) -> bool:
        """Whether the share is another afterwards."""
        return bool(self.taken_back) or any(table.is_changed for table in self.tables)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        names = ("pieces", "rows_added", "files_added", "files_removed", "sources_read")
        tables = {table.table: {name: getattr(table, name) for name in names} for table in self.tables}
        place = {"share": self.share.name, "role": self.share.role, "uri": self.share.uri}
        return {**place, "changed": self.is_changed, "tables": tables, "taken_back": list(self.taken_back)}


def refuse_unshareable(lake: "Lake", role: Role) -> None:
    """Raise `ShareError` or `RoleError` where a role's sight of any of its tables cannot be copied."""
    role.refuse_ended(datetime.now(UTC).date())
    every = lake.contracts()
    seen = [every[name] for name in sorted(role.tables & every.keys())]
    for table in seen:
        copy_contract(role, table)
    pseudonyms_for(role, seen, lake.config.masking.key)


def refresh(
    lake: "Lake", share: Share, role: Role, workers: "Workers", progress: "Progress | None" = None
) -> RefreshResult:
    """Bring a share up to date.

    Raises `ShareError` where the place is not this lake's or the role cannot be copied, `RoleError` without a key,
    `ranklake.lake.tables.commit.LostRaceError` where another does the same at the same time, and what the stores raise.
    """
    place = open_place(lake.store, share.uri)
    refuse_other(lake.store, place, share.role)
    refuse_unshareable(lake, role)
    every = lake.contracts()
    wanted = sorted(role.tables & every.keys())
    unseen = sorted(tables_there(place) - set(wanted))
    for table in unseen:
        erase_table(place, table)
    pseudonyms = pseudonyms_for(role, [every[name] for name in wanted], lake.config.masking.key)
    done = []
    for at, table in enumerate(wanted, 1):
        done.append(_Table(lake, share, place, role, table, every, pseudonyms).refresh(workers))
        if progress is not None:
            progress(at, len(wanted))
    return RefreshResult(share, tuple(done), tuple(unseen))


class _Table:
    """One table of a share being brought up to date."""

    def __init__(
        self,
        lake: "Lake",
        share: Share,
        place: "Store",
        role: Role,
        table: str,
        every: Mapping[str, "Contract"],
        pseudonyms: Pseudonyms | None,
    ) -> None:
        self.lake, self.place, self.role, self.table = lake, place, role, table
        behind = tables_behind(role, every[table], every)
        handles = {name: delta_table(lake.store, name) for name in {table, *behind}}
        self.contracts = {name: read_by(handle, every[name]) for name, handle in handles.items()}
        live = {name: live_files(handle) for name, handle in handles.items()}
        self.live, self.behind = live[table], {name: live[name] for name in behind}
        self.copied = copy_contract(role, self.contracts[table])
        self.shared = SharedTable(lake.store, share, place, table)
        moment = "" if is_settled(role, every[table]) else datetime.now(UTC).isoformat()
        asked = {name: self.behind[name] for name in tables_asked(role, every[table], every)}
        by_run = bool(role.teams) and "run" in every[table]
        theirs = runs_of_teams(lake.store, role, self.contracts["runs"], self.behind["runs"]) if by_run else None
        self.depends = CopyInputs(conditions_digest(asked, moment), theirs)
        self.definition = definition(role, self.contracts[table], () if pseudonyms is None else pseudonyms.key_ids)
        self.rows = self.added = self.removed = self.read = 0
        self._file_rows = 0
        self._there: frozenset[str] = frozenset()
        self._stray: frozenset[str] = frozenset()

    def refresh(self, workers: "Workers") -> TableRefreshResult:
        """Do all that is due."""
        self.shared.define(self.definition, self.copied)
        self._there = there = self._shared_files()
        pieces = self.shared.known.pieces
        held, due = settle(pieces, sources_of(self.live), there, self.depends)
        self._stray = there - {path for piece in pieces for path in piece.files}
        crew = workers.fitting(sum(map(_cpu_s, due)))
        if due:
            self._file_rows = file_rows(self.copied, crew.room())
        if is_resorted(self.contracts[self.table], self.copied):  # a group is sorted as a whole
            due = [split_by_rows(day, self._file_rows) for day in due]
        batches = list(_batches(due))
        self._commit((), self._stray_of(None, due), held, due)
        for at, batch in enumerate(batches):
            left = [day for later in batches[at + 1 :] for day in later]
            detail = f"{counted(sum(len(day.groups) for day in batch), 'piece')} for {self.role.name}"
            unit = Unit("share", self.table, tuple(day.day for day in batch), detail, reads=(self.table,))
            held = carry_out(unit, partial(self._bring, crew, batch, held, left))
        self.shared.sweep()
        return TableRefreshResult(self.table, len(held), self.rows, self.added, self.removed, self.read)

    def _bring(
        self, crew: "Workers", batch: Sequence[DueDate], held: list[Piece], left: Sequence[DueDate]
    ) -> list[Piece]:
        """Copy some dates and commit them; return the pieces that hold then."""
        handle = self.shared.opened()
        assert handle is not None
        number = number_of(handle) + 1
        groups = [(day, group) for day in batch for group in day.groups]
        made = crew.run(copy, [self._task(day.day, group, number) for day, group in groups])
        add: list[DataFile] = []
        removed = self._stray_of(batch, batch)
        for day in batch:
            mine = [(group, made[at]) for at, (one, group) in enumerate(groups) if one is day]
            old = [path for piece in day.replaced for path in piece.files]
            new = [file for _, some in mine for file in some.files]
            kept = self._match_unchanged(old, new)
            if kept is None:
                add += new
                removed |= set(old)
            names = kept or {}
            held = held + [self._piece(day.day, group, some, names) for group, some in mine]
            self.read += sum(len(group) for group, _ in mine)
        self.rows += sum(file.rows for file in add)
        same_rows = self.table not in self.role.groups and all(day.is_regrouped for day in batch)
        self._commit(add, removed, held, left, handle=handle, same_rows=same_rows)
        return held

    def _match_unchanged(self, old: Sequence[str], new: Sequence[DataFile]) -> dict[str, str] | None:
        """Return which old file each new one is to the byte, if they all are; the new ones are deleted then.

        So nothing in a share tells that rows changed that the role does not see.
        """
        if not old or sorted(str(digest_of(path)) for path in old) != sorted(str(digest_of(one.path)) for one in new):
            return None
        left = {digest_of(path): path for path in old}
        if len(left) < len(old) or not self._there.issuperset(old):
            return None
        for file in new:
            delete(self.place, self.place.path("tables", self.table, file.path))
        return {one.path: left[digest_of(one.path)] for one in new}

    def _piece(self, day: date, group: Sequence[Source], made: CopyResult, names: Mapping[str, str]) -> Piece:
        files = tuple(names.get(file.path, file.path) for file in made.files)
        size, sources = sum(one.size_bytes for one in made.files), tuple(one.path for one in group)
        return Piece(day, sources, files, size, self.depends.digest(made.runs), made.runs)

    def _task(self, day: date, group: Sequence[Source], number: int) -> CopyTask:
        paths = pa.array([one.path for one in group], pa.string())
        files = self.live.filter(pc.is_in(self.live["path"], value_set=paths))
        tells = self.depends.theirs is not None
        facts = self.lake, self.place, self.role, self.contracts, self.copied, files, self.behind, day, number
        return CopyTask(*facts, self._file_rows, tells_runs=tells)

    def _commit(
        self,
        add: Sequence[DataFile],
        removed: Collection[str],
        held: Sequence[Piece],
        left: Sequence[DueDate],
        *,
        handle: "DeltaTable | None" = None,
        same_rows: bool = False,
    ) -> None:
        handle = handle or self.shared.opened()
        assert handle is not None
        pieces = [*held, *(piece for day in left for piece in day.replaced)]
        if self.shared.commit(handle, add, removed, pieces, same_rows=same_rows):
            self.added += len(add)
            self.removed += len(removed)

    def _stray_of(self, batch: Sequence[DueDate] | None, due: Sequence[DueDate]) -> set[str]:
        """Return files of the share that no piece names: of dates in a batch, or else of dates where nothing is due."""
        days = {f"date={day.day.isoformat()}" for day in due}
        return {path for path in self._stray if (path.partition("/")[0] in days) == (batch is not None)}

    def _shared_files(self) -> frozenset[str]:
        handle = self.shared.opened()
        return frozenset() if handle is None else frozenset(live_paths(handle))


def sources_of(live: pa.Table) -> list[Source]:
    """Return live files, rows of `ranklake.lake.query.scan.live_files`, as sources."""
    columns = [live[name].to_pylist() for name in ("path", "date", "num_records", "size_bytes")]
    return [Source(*facts) for facts in zip(*columns, strict=True)]


def _cpu_s(day: DueDate) -> float:
    rows = sum(one.rows for group in day.groups for one in group)
    return len(day.groups) * TASK_CPU_S + rows * ROW_CPU_S


def _batches(due: Sequence[DueDate]) -> Iterator[list[DueDate]]:
    """Yield dates that are committed together: of about `BATCH_TASKS` pieces."""
    batch: list[DueDate] = []
    for day in due:
        batch.append(day)
        if sum(len(one.groups) for one in batch) >= BATCH_TASKS:
            yield batch
            batch = []
    if batch:
        yield batch
