"""The rows that an ingest task holds at a time: deduplicated, checked, counted, and written."""

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.edge import judge
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.batches import Rows
from ranklake.lake.ingest.deduplication import KEY, Mask, SlotFile, Slots, first_of_key, seen_before, slot_texts
from ranklake.lake.ingest.group import Group
from ranklake.lake.ingest.incoming import IncomingSegment
from ranklake.lake.ingest.rejects import REJECTED_ROWS, reject_rows
from ranklake.lake.migrations.sealed import ids_ever
from ranklake.lake.store.governance import sealer
from ranklake.lake.store.store import Lake
from ranklake.lake.tables.parquet import append_files, write_days
from ranklake.segments.segment import REFUSED, REFUSED_ROW

if TYPE_CHECKING:
    from ranklake.lake.tables.data_file import DataFile

FUTURE: Final = "ts_future: ts lies after the time that it was taken in, by more than [ingest] future_hours"

_STRETCH_ROWS: Final = 8192
"""Stretches of rows of this length and longer are worth keeping where they lie."""


class Piece:
    """The rows that a task holds, and what it made of those before."""

    def __init__(self, lake: Lake, group: Group, target: Contract) -> None:
        self.files: list[DataFile] = []
        self.rejects: list[DataFile] = []
        self._lake, self._group, self._target = lake, group, target
        self._sealed = sealer(lake, target, ids_ever)
        self._parts: list[Rows] = []
        self._bytes = self._rows = self._most_rows = 0
        self._seen: dict[SlotFile, Slots] = {}
        self._before = seen_before(group.segments)
        self._last_us = group.limits.last_us(group.created)

    def add(self, rows: Rows) -> None:
        """Take rows in; where that makes a piece full, write it."""
        count, size = rows.table.num_rows, _decoded_bytes(rows.table)
        if not self._most_rows:  # pieces of one size make files of one size
            expected = sum(row["rows"] for row in self._group.segments)
            pieces = max(1, math.ceil(expected * size / count / self._group.piece_bytes))
            self._most_rows = max(1, math.ceil(expected / pieces))
        self._parts.append(rows)
        self._bytes += size
        self._rows += count
        if self._bytes >= self._group.piece_bytes or self._rows >= self._most_rows:
            self.finish()

    def finish(self) -> None:
        """Write what is held, and let go of it."""
        parts, self._parts = self._parts, []
        self._bytes = self._rows = 0
        if parts:
            self._write(parts)

    def _write(self, parts: list[Rows]) -> None:
        owners = [owner for part in parts for owner in part.owners]
        counts = np.array([count for part in parts for count in part.counts])
        rows = _joined([part.table for part in parts], self._target)
        parts.clear()  # what was joined is held once
        starts = np.cumsum(counts) - counts
        first = self._first(owners, rows, starts)
        verdict = _not_yet(judge(self._target, rows), rows, self._last_us)
        refused: Mask | None = None
        if verdict.null_count < len(verdict):
            refused = verdict.is_valid().to_numpy(zero_copy_only=False)
            refused = refused if first is None else refused & first
        self._account(owners, counts, starts, first, refused)
        good = first
        if refused is not None:
            good = ~refused if good is None else good & ~refused
        group = self._group
        if group.store_rejects and refused is not None and refused.any():
            self._reject(rows, verdict, refused, owners, starts)
        if group.store_rows and (good is None or good.any()):
            rows = rows if good is None else _chosen(rows, good)
            rows = rows.drop_columns([REFUSED, REFUSED_ROW]) if REFUSED in rows.column_names else rows
            rows = rows if self._sealed is None else self._sealed(rows)
            self.files += write_days(self._lake, self._target, rows, group.plan)

    def _reject(
        self, rows: pa.Table, verdict: pa.Array, refused: Mask, owners: list[IncomingSegment], starts: Slots
    ) -> None:
        """Write the rows that are refused; they are JSON text in memory, so a few at a time."""
        group = self._group
        places = np.flatnonzero(refused)
        whose = np.searchsorted(starts, places, side="right") - 1
        for at in range(0, len(places), REJECTED_ROWS):
            some = pa.array(places[at : at + REJECTED_ROWS])
            digests = [owners[index].sha256 for index in whose[at : at + REJECTED_ROWS]]
            taken = rows.take(some) if self._sealed is None else self._sealed(rows.take(some))
            table = reject_rows(taken, verdict.take(some), digests, "ingest", self._target, group.plan, group.created)
            self.rejects += append_files(self._lake, contract("rejects"), table, group.plan)

    def _first(self, owners: list[IncomingSegment], rows: pa.Table, starts: Slots) -> Mask | None:
        """Return a mask of the rows whose key came in no row before; None where that is all of them."""
        slot_files = [owner.slot_file for owner in owners]
        known = dict(self._before)
        for slot_file, slots in self._seen.items():
            known[slot_file] = np.concatenate([known.get(slot_file, slots[:0]), slots])
        keyed: Mask | None = None
        for name in KEY:
            if rows[name].null_count:
                valid = rows[name].is_valid().to_numpy()
                keyed = valid if keyed is None else keyed & valid
        slots = (rows["slot"].fill_null(0) if rows["slot"].null_count else rows["slot"]).to_numpy()
        for owner, text in zip(owners, slot_texts(slots, keyed, starts), strict=True):
            owner.slots = f"{owner.slots} {text}" if owner.slots and text else owner.slots or text
        last = slot_files[-1]
        begins = slot_files.index(last)
        mine = slice(int(starts[begins]), None)
        newest = slots[mine] if keyed is None else slots[mine][keyed[mine]]
        self._seen = {last: np.concatenate([self._seen.get(last, newest[:0]), newest])}
        return first_of_key(slots, keyed, starts, slot_files, known)

    def _account(
        self,
        owners: list[IncomingSegment],
        counts: Slots,
        starts: Slots,
        first: Mask | None,
        refused: Mask | None,
    ) -> None:
        kept = counts if first is None else np.add.reduceat(first, starts, dtype=np.int64)
        bad = np.zeros(len(counts), np.int64) if refused is None else np.add.reduceat(refused, starts, dtype=np.int64)
        for owner, all_, one_a_key, rejected in zip(owners, counts, kept, bad, strict=True):
            owner.rows_stored += int(one_a_key - rejected)
            owner.rows_rejected += int(rejected)
            owner.rows_duplicate += int(all_ - one_a_key)


def _not_yet(verdict: pa.Array, rows: pa.Table, last_us: int) -> pa.Array:
    """Return the verdict, with a reason for the rows whose time is still to come; nearly always there is none."""
    moments = rows["ts"].cast(pa.int64())
    latest = pc.max(moments).as_py()
    if latest is None or latest <= last_us:
        return verdict
    late = pc.and_(pc.fill_null(pc.greater(moments, last_us), fill_value=False), pc.is_null(verdict))
    return pc.if_else(late, pa.scalar(FUTURE), verdict).combine_chunks()


def _joined(parts: list[pa.Table], target: Contract) -> pa.Table:
    """Return parts as one table of the contract's columns, without ``date``.

    Text with dictionaries gets one for all; if a part has none, none has. A column without any value in all parts is of
    Arrow's type null, which takes no room.
    """
    present: dict[str, set[bool]] = {}
    for part in parts:
        for name, type_ in zip(part.column_names, part.schema.types, strict=True):
            present.setdefault(name, set()).add(pa.types.is_dictionary(type_))
    mixed = [name for name, kinds in present.items() if len(kinds) > 1]
    if mixed:
        parts = [_plain(part, mixed) for part in parts]
    alike = all(part.schema.equals(parts[0].schema) for part in parts)  # who may be NULL, too
    joined = pa.concat_tables(parts, promote_options="none" if alike else "default")
    columns = {}
    for one in arrow_schema(target, segment=True):
        if one.name not in present:
            columns[one.name] = pa.chunked_array([pa.nulls(joined.num_rows, pa.null())])
        else:
            column = joined[one.name]
            columns[one.name] = column.combine_chunks() if pa.types.is_dictionary(column.type) else column
    columns |= {name: _as_text(joined[name]) for name in (REFUSED, REFUSED_ROW) if name in present}
    return pa.table(columns)


def _chosen(rows: pa.Table, mask: Mask) -> pa.Table:
    """Return the rows of a mask, without copying where they are few long stretches: a segment that came twice goes."""
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    if len(edges) > len(mask) // _STRETCH_ROWS:
        return rows.filter(pa.array(mask))
    begins = [0, *edges.tolist()]
    ends = [*begins[1:], len(mask)]
    stretches = [rows.slice(at, end - at) for at, end in zip(begins, ends, strict=True) if mask[at]]
    return pa.concat_tables(stretches)


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _decoded_bytes(rows: pa.Table) -> int:
    """Return about how much room rows take, quickly: text without a dictionary is measured, the rest is reckoned."""
    total = 0
    for type_, column in zip(rows.schema.types, rows.columns, strict=True):
        total += rows.num_rows * 8 if pa.types.is_primitive(type_) or pa.types.is_dictionary(type_) else column.nbytes
    return total


def _plain(part: pa.Table, names: list[str]) -> pa.Table:
    for place, one in enumerate(part.schema):
        if one.name in names and pa.types.is_dictionary(one.type):
            part = part.set_column(place, one.name, part[one.name].cast(one.type.value_type))
    return part
