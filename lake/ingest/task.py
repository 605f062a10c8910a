"""One Dask task of ingest: reads some segments of one table, writes sorted Parquet files, and accounts for every row.

segments ─▶ batches.py, segment_reading.py: digest, types, owner ─▶ a piece: some hundred megabytes of rows
                                                                      │
       deduplication.py: drop repeats ─▶ contracts/edge.py: checked ──┼─▶ tables/parquet.py: one sorted file a date
                                                                      └─▶ refused.py ─▶ rejects

A task keeps one piece in memory at a time, for any number and size of segments. Of earlier pieces it keeps only the
slots of the last slot file.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.edge import reject_reasons
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.batches import BATCH_SHARE, Loader, Rows
from ranklake.lake.ingest.deduplication import KEY, Mask, SlotFile, Slots, first_of_key, seen_before, slot_texts
from ranklake.lake.ingest.refused import REJECTED_ROWS, reject_rows
from ranklake.lake.ingest.segment_reading import (
    IncomingSegment,
    Intake,
    check_size,
    into_quarantine,
    recorded_table,
    segment_name,
    unreadable,
)
from ranklake.lake.ingest.spool.gate import GONE, UnreadError
from ranklake.lake.ingest.spool.local_folder import spool_files
from ranklake.lake.ingest.spool.packs import Reader
from ranklake.lake.store.governance import sealer
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig, SubjectsSection
from ranklake.lake.store.limits import DEFAULT, Limits
from ranklake.lake.store.overlays import stored_overlay
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.store.store import Store
from ranklake.lake.store.writers import NO_SIGNERS, Authenticator
from ranklake.lake.tables.live_files import DataFile
from ranklake.lake.tables.parquet import append_files, write_days
from ranklake.segments.envelope import EncryptionError
from ranklake.segments.segment import REFUSED, REFUSED_ROW

PIECE_BYTES: Final = 256 * 2**20
"""Bytes of decoded rows in a piece. With a sorted row group, the writer's pages and the libraries, a worker needs less
than 1 GiB."""


@dataclass(frozen=True, slots=True)
class Group:
    """A task: segments of one table that are compacted together.

    Attributes
    ----------
    lake_uri, spool_uri, storage
        Addresses of lake and spool, and storage options.
    table
        Name of the segments' folder in the spool.
    segments
        The segments' entries in the plan.
    plan, created
        Number and time of the plan, for rejected rows.
    store_rows, store_rejects
        False if an earlier try of the plan committed the table. Rows are then counted, but not written.
    authenticator
        Checks the signatures of segments.
    piece_bytes
        Bytes of decoded rows in a piece.
    limits
        Limits on a segment's size and content.
    contracts
        Number of the overlay in the lake with the contracts of the rows; 0 for none.
    subjects
        Which columns are stored under keys of persons, and references to these keys, never a key itself. None if the
        table has no such columns and never had.
    """

    lake_uri: str
    spool_uri: str
    storage: dict[str, str]
    table: str
    segments: list[PlannedSegment]
    plan: int
    created: datetime
    store_rows: bool = True
    store_rejects: bool = True
    authenticator: Authenticator = NO_SIGNERS
    piece_bytes: int = PIECE_BYTES
    limits: Limits = DEFAULT
    contracts: int = 0
    subjects: SubjectsSection | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task.

    Attributes
    ----------
    files, rejects
        New data files of the table and of ``rejects``, not committed yet.
    outcomes
        For each segment its row of the table ``segments``, as a dict, without plan and date.
    """

    files: list[DataFile]
    rejects: list[DataFile]
    outcomes: list[dict[str, Any]]


def merge_results(results: Sequence[TaskResult]) -> TaskResult:
    """Merge the results of tasks, in their order."""
    return TaskResult(
        [file for result in results for file in result.files],
        [file for result in results for file in result.rejects],
        [row for result in results for row in result.outcomes],
    )


FUTURE: Final = "ts_future: ts lies after the time that it was taken in, by more than [ingest] future_hours"

_SLICE_ROWS: Final = 8192
"""From this average length on, slices of rows are concatenated, not copied row by row."""


class Piece:
    """The rows that a task has in memory. A full piece is deduplicated, checked, counted and written."""

    def __init__(self, store: Store, group: Group, target: Contract) -> None:
        self.files: list[DataFile] = []
        self.rejects: list[DataFile] = []
        self._store, self._group, self._target = store, group, target
        self._sealed = None if group.subjects is None else sealer(_lake(store, group), target)
        self._parts: list[Rows] = []
        self._bytes = self._rows = self._most_rows = 0
        self._seen: dict[SlotFile, Slots] = {}
        self._before = seen_before(group.segments)
        self._last_us = group.limits.latest_us(group.created)

    def add(self, rows: Rows) -> None:
        """Add rows; write the piece if it is full."""
        count, size = rows.table.num_rows, _decoded_bytes(rows.table)
        if not self._most_rows:  # pieces of equal size give files of equal size
            expected = sum(row["rows"] for row in self._group.segments)
            pieces = max(1, math.ceil(expected * size / count / self._group.piece_bytes))
            self._most_rows = max(1, math.ceil(expected / pieces))
        self._parts.append(rows)
        self._bytes += size
        self._rows += count
        if self._bytes >= self._group.piece_bytes or self._rows >= self._most_rows:
            self.finish()

    def finish(self) -> None:
        """Write the rows in memory."""
        parts, self._parts = self._parts, []
        self._bytes = self._rows = 0
        if parts:
            self._write(parts)

    def _write(self, parts: list[Rows]) -> None:
        owners = [owner for part in parts for owner in part.owners]
        counts = np.array([count for part in parts for count in part.counts])
        rows = _one_table([part.table for part in parts], self._target)
        parts.clear()  # frees the parts: the joined table has a copy
        starts = np.cumsum(counts) - counts
        unique = self._unique(owners, rows, starts)
        reasons = _with_future(reject_reasons(self._target, rows), rows, self._last_us)
        refused: Mask | None = None
        if reasons.null_count < len(reasons):
            refused = reasons.is_valid().to_numpy(zero_copy_only=False)
            refused = refused if unique is None else refused & unique
        self._account(owners, counts, starts, unique, refused)
        good = unique
        if refused is not None:
            good = ~refused if good is None else good & ~refused
        group = self._group
        if group.store_rejects and refused is not None and refused.any():
            self._reject(rows, reasons, refused, owners, starts)
        if group.store_rows and (good is None or good.any()):
            rows = rows if good is None else _filter_rows(rows, good)
            rows = rows.drop_columns([REFUSED, REFUSED_ROW]) if REFUSED in rows.column_names else rows
            rows = rows if self._sealed is None else self._sealed(rows)
            self.files += write_days(self._store, self._target, rows, group.plan)

    def _reject(
        self, rows: pa.Table, reasons: pa.Array, refused: Mask, owners: list[IncomingSegment], starts: Slots
    ) -> None:
        """Write the refused rows to ``rejects``, in batches, since each row becomes JSON text in memory."""
        group = self._group
        indexes = np.flatnonzero(refused)
        owner = np.searchsorted(starts, indexes, side="right") - 1
        for at in range(0, len(indexes), REJECTED_ROWS):
            batch = pa.array(indexes[at : at + REJECTED_ROWS])
            digests = [owners[index].sha256 for index in owner[at : at + REJECTED_ROWS]]
            batch_rows = rows.take(batch) if self._sealed is None else self._sealed(rows.take(batch))
            table = reject_rows(
                batch_rows, reasons.take(batch), digests, "ingest", self._target, group.plan, group.created
            )
            self.rejects += append_files(self._store, contract("rejects"), table, group.plan)

    def _unique(self, owners: list[IncomingSegment], rows: pa.Table, starts: Slots) -> Mask | None:
        """Return a mask of the rows that repeat no earlier row's key; None if no row does.

        Also records the slots of each segment in its `slots`.
        """
        slot_files = [owner.slot_file for owner in owners]
        seen = dict(self._before)
        for slot_file, slots in self._seen.items():
            seen[slot_file] = np.concatenate([seen.get(slot_file, slots[:0]), slots])
        keyed: Mask | None = None
        for name in KEY:
            if rows[name].null_count:
                valid = rows[name].is_valid().to_numpy()
                keyed = valid if keyed is None else keyed & valid
        slots = (rows["slot"].fill_null(0) if rows["slot"].null_count else rows["slot"]).to_numpy()
        for owner, text in zip(owners, slot_texts(slots, keyed, starts), strict=True):
            owner.slots = f"{owner.slots} {text}" if owner.slots and text else owner.slots or text
        last = slot_files[-1]
        last_rows = slice(int(starts[slot_files.index(last)]), None)
        newest = slots[last_rows] if keyed is None else slots[last_rows][keyed[last_rows]]
        self._seen = {last: np.concatenate([self._seen.get(last, newest[:0]), newest])}
        return first_of_key(slots, keyed, starts, slot_files, seen)

    def _account(
        self,
        owners: list[IncomingSegment],
        counts: Slots,
        starts: Slots,
        unique: Mask | None,
        refused: Mask | None,
    ) -> None:
        """Add the numbers of stored, rejected and repeated rows to each segment."""
        unique_counts = counts if unique is None else np.add.reduceat(unique, starts, dtype=np.int64)
        refused_counts = (
            np.zeros(len(counts), np.int64) if refused is None else np.add.reduceat(refused, starts, dtype=np.int64)
        )
        for owner, rows, unique_rows, rejected in zip(owners, counts, unique_counts, refused_counts, strict=True):
            owner.rows_stored += int(unique_rows - rejected)
            owner.rows_rejected += int(rejected)
            owner.rows_duplicate += int(rows - unique_rows)


def _with_future(reasons: pa.Array, rows: pa.Table, last_us: int) -> pa.Array:
    """Add a reason for rows with a time in the future. Usually there are none."""
    moments = rows["ts"].cast(pa.int64())
    latest = pc.max(moments).as_py()
    if latest is None or latest <= last_us:
        return reasons
    is_future = pc.and_(pc.fill_null(pc.greater(moments, last_us), fill_value=False), pc.is_null(reasons))
    return pc.if_else(is_future, pa.scalar(FUTURE), reasons).combine_chunks()


def _one_table(parts: list[pa.Table], target: Contract) -> pa.Table:
    """Concatenate parts to one table of the contract's columns, without ``date``.

    A text column gets one dictionary for all parts, or none if it has none in some part. A column without values is of
    Arrow's type null, which takes no memory.
    """
    present: dict[str, set[bool]] = {}
    for part in parts:
        for name, type_ in zip(part.column_names, part.schema.types, strict=True):
            present.setdefault(name, set()).add(pa.types.is_dictionary(type_))
    mixed = [name for name, kinds in present.items() if len(kinds) > 1]
    if mixed:
        parts = [_plain(part, mixed) for part in parts]
    same_schema = all(part.schema.equals(parts[0].schema) for part in parts)  # including nullability
    joined = pa.concat_tables(parts, promote_options="none" if same_schema else "default")
    columns = {}
    for name in arrow_schema(target, segment=True).names:
        if name not in present:
            columns[name] = pa.chunked_array([pa.nulls(joined.num_rows, pa.null())])
        else:
            column = joined[name]
            columns[name] = column.combine_chunks() if pa.types.is_dictionary(column.type) else column
    columns |= {name: _as_text(joined[name]) for name in (REFUSED, REFUSED_ROW) if name in present}
    return pa.table(columns)


def _filter_rows(rows: pa.Table, mask: Mask) -> pa.Table:
    """Return the rows of a mask. A few long slices, as when a whole segment is a repeat, are not copied."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    if len(edges) > len(mask) // _SLICE_ROWS:
        return rows.filter(pa.array(mask))
    begins = [0, *edges.tolist()]
    ends = [*begins[1:], len(mask)]
    slices = [rows.slice(begin, end - begin) for begin, end in zip(begins, ends, strict=True) if mask[begin]]
    return pa.concat_tables(slices)


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _decoded_bytes(rows: pa.Table) -> int:
    """Estimate the bytes of rows in memory: 8 for each value, and the actual size of text without a dictionary."""
    total = 0
    for type_, column in zip(rows.schema.types, rows.columns, strict=True):
        total += rows.num_rows * 8 if pa.types.is_primitive(type_) or pa.types.is_dictionary(type_) else column.nbytes
    return total


def _plain(part: pa.Table, names: list[str]) -> pa.Table:
    for place, field in enumerate(part.schema):
        if field.name in names and pa.types.is_dictionary(field.type):
            part = part.set_column(place, field.name, part[field.name].cast(field.type.value_type))
    return part


def compact(group: Group) -> TaskResult:
    """Carry out one task. It can be repeated: vacuum deletes the files of an earlier try, since no commit names them.

    Segments that cause an error are set aside with a reason, and the others are ingested. Errors that segments cannot
    cause are raised: an unreachable store, lack of memory, a missing key.
    """
    try:
        return _compact(group)
    except Exception as error:
        if not _can_segments_cause(error):
            raise
        return _compact_parts(group, error)


def _compact(group: Group) -> TaskResult:
    store = _open_store(group)
    contracts = load_contracts(stored_overlay(store, group.contracts) if group.contracts else None)
    target = recorded_table(contracts, group.table)
    paths = (path for row in group.segments for path in (row["path"], *row["others"]))
    fs, root = spool_files(group.spool_uri, group.storage, group.limits.segment_bytes)
    reader = Reader(fs, paths, root)
    intake = Intake(store, target, group.authenticator, group.limits, is_known=group.table in contracts)
    loader = Loader(intake, reader, group.piece_bytes // BATCH_SHARE)
    segments: list[IncomingSegment] = []
    piece = Piece(store, group, target) if target is not None else None
    for loaded in loader.load(group.segments):
        segments += loaded.segments
        for rows in loaded.rows:
            assert piece is not None, "rows of no table"
            piece.add(rows)
    if piece is not None:
        piece.finish()
    files, rejects = (piece.files, piece.rejects) if piece is not None else ([], [])
    return TaskResult(files, rejects, [segment.outcome(group.table) for segment in segments])


def _open_store(group: Group) -> Store:
    """Open the lake's store. Raises an error if its marker is missing, for example where a worker lacks a mount."""
    store = Store.at(group.lake_uri, group.storage)
    store.marker()
    return store


def _lake(store: Store, group: Group) -> Lake:
    """Return the lake with the settings that encrypting columns needs."""
    return Lake.of(store, LakeConfig(subjects=group.subjects or SubjectsSection())).at_number(group.contracts)


def _can_segments_cause(error: Exception) -> bool:
    """Whether the content of segments can cause an error. Arrow's errors about content have no errno."""
    if isinstance(error, OSError):
        return error.errno is None
    return not isinstance(error, (MemoryError, ImportError, LakeError, EncryptionError))


def _compact_parts(group: Group, error: Exception) -> TaskResult:
    """Carry out a failed task in smaller and smaller parts, and set aside the segments that cause the error."""
    files = slot_files(group.segments)
    if len(files) > 1:
        middle = len(files) // 2
        halves = [[row for file in half for row in file] for half in (files[:middle], files[middle:])]
        return merge_results([compact(replace(group, segments=half)) for half in halves])
    if len(group.segments) == 1:
        return set_aside(group, unreadable(error))
    # Segments of one slot file repeat rows of each other, so the good ones are ingested in one task.
    bad = [row for row in group.segments if compact(replace(group, segments=[row])).outcomes[0]["unreadable"]]
    good = [row for row in group.segments if row not in bad]
    if not bad or not good:
        return set_aside(group, unreadable(error))
    bad_results = [set_aside(replace(group, segments=[row]), unreadable(error)) for row in bad]
    return merge_results([compact(replace(group, segments=good)), *bad_results])


def slot_files(segments: Sequence[PlannedSegment]) -> list[list[PlannedSegment]]:
    """Group the segments of a plan by slot file, in the plan's order."""
    return [list(rows) for _, rows in groupby(segments, key=_slot_file)]


def _slot_file(row: PlannedSegment) -> tuple[Any, ...]:
    name = segment_name(row["path"])
    return (row["path"],) if name is None else (name.incarnation, name.segment)


def set_aside(group: Group, reason: str) -> TaskResult:
    """Put all segments of a task into quarantine with a reason, like damaged ones. Raises what the store raises."""
    store = _open_store(group)
    fs, root = spool_files(group.spool_uri, group.storage, group.limits.segment_bytes)
    outcomes = []
    for row in group.segments:
        name = segment_name(row["path"])
        segment = IncomingSegment(row["path"], row["sha256"], row["bytes"], name, unreadable=reason)
        reader = Reader(fs, [row["path"]], root)
        try:
            raw = reader.read(check_size(row, group.limits))
        except FileNotFoundError:
            segment.unreadable = GONE
        except UnreadError as error:
            segment.unreadable = error.what
        else:
            into_quarantine(store, segment, raw)
        outcomes.append(segment.outcome(group.table))
    return TaskResult([], [], outcomes)
