"""Loads the segments of a task, small ones in batches.

A segment usually has one minute of one rank, which is some hundred rows. Checking a segment has a high fixed cost. So
small segments are opened with the fewest checks, and then checked together, column by column.

A batch only accepts segments that pass every check. Any other segment is loaded alone by
`ranklake.lake.ingest.segment_reading`, which finds the fault and sets the segment aside. The result is the same as if
all segments were loaded alone.

path ─▶ digest ─▶ known columns, footer matches name ─┬─▶ a batch: text, owners, times checked together ─┬─▶ rows
           └──── else ────────────────────────────────┴─────── segment_reading.load, one by one ◀────────┘
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow._parquet import ParquetReader

from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.deduplication import SlotClaim, by_slot_file, claim_of, disagree, precedence, without_earlier
from ranklake.lake.ingest.footer_columns import constant_names, with_footer_columns, with_mixed_constants
from ranklake.lake.ingest.segment_columns import (
    extremes,
    footer_of,
    has_contract_types,
    has_numbers,
    has_texts,
    moments,
    required_columns,
    validate,
    with_values,
)
from ranklake.lake.ingest.segment_reading import (
    PART_BYTES,
    PART_ROWS,
    IncomingSegment,
    Intake,
    check_size,
    examine,
    load,
    refuse,
    segment_name,
    with_dictionary,
)
from ranklake.lake.ingest.spool.gate import UnreadError
from ranklake.lake.ingest.spool.packs import Reader
from ranklake.lake.migrations.rewriting import is_changed
from ranklake.lake.store.limits import Limits, decoded_bytes
from ranklake.lake.store.planned_segment import EarlierCut, PlannedSegment
from ranklake.lake.store.writers import CONFLICT, Authenticator
from ranklake.segments.envelope import decrypt
from ranklake.segments.keys import find_key
from ranklake.segments.segment import IDENTITY


@dataclass(frozen=True, slots=True)
class _Shape:
    """Schema of segments under the contract's types; `texts` are the columns to read as dictionaries."""

    schema: pa.Schema
    texts: list[str]


class SmallSegments:
    """Decodes segments of one table. Each is opened with the schema of the previous one, since most have the same."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._shape: _Shape | None = None

    def decode(self, raw: bytes, target: Contract, count: int) -> tuple[pa.Table | None, pq.FileMetaData]:
        """Return the rows and the Parquet metadata of a segment with `count` rows.

        The rows are None if the segment is not small or its columns are not the contract's.
        """
        source = pa.BufferReader(raw)
        reader = ParquetReader()  # `ParquetFile` wraps this class and takes twice as long to open a small file
        shape = self._shape
        try:
            reader.open(source, read_dictionary=shape.texts if shape else None)
            metadata = reader.metadata
        except KeyError:  # the segment lacks one of the text columns
            source.seek(0)
            shape, metadata = None, pq.read_metadata(source)
            reader = _reader(raw, metadata, [])
        if not self._is_small(metadata, count):
            return None, metadata
        names, opened = tuple(metadata.schema.names), shape
        shape = self._shapes.get(names)
        if shape is not None:
            if shape.texts != (opened.texts if opened else []):
                reader = _reader(raw, metadata, shape.texts)
            rows = reader.read_all(use_threads=False)
            shape = shape if rows.schema.equals(shape.schema) else None
        if shape is None:
            texts = with_dictionary(raw, metadata)
            if texts is None:
                return None, metadata
            rows = _reader(raw, metadata, texts).read_all(use_threads=False)
            if not has_contract_types(rows.schema, target, without=target.names):
                return None, metadata
            shape = self._shapes[names] = _Shape(rows.schema.remove_metadata(), texts)
        self._shape = shape
        return rows, metadata

    def _is_small(self, metadata: pq.FileMetaData, count: int) -> bool:
        """Whether a segment is small enough for a batch, by its metadata; `count` is the rows in its name."""
        limits = self._limits
        if metadata.num_row_groups != 1 or metadata.num_rows != count or count > limits.row_group_rows:
            return False
        most_bytes = min(PART_BYTES, limits.decoded_bytes)  # `segment_reading` decodes as much at a time
        return metadata.num_columns <= limits.columns and decoded_bytes(metadata) <= most_bytes


def _reader(raw: bytes, metadata: pq.FileMetaData, texts: list[str]) -> ParquetReader:
    reader = ParquetReader()
    reader.open(pa.BufferReader(raw), metadata=metadata, read_dictionary=texts)
    return reader


BATCH_SEGMENTS: Final = 256
"""Segments in a batch. If one segment of a batch fails, all of them are loaded again, one by one."""
BATCH_ROWS: Final = 65_536
BATCH_SHARE: Final = 8
"""A batch may take one eighth of a piece, since pieces are cut between batches."""
_NUMBERS: Final = ("attempt", "rank", "incarnation", "segment")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one or more segments, under the contract's types. Columns without any value are left out.

    Attributes
    ----------
    owners, counts
        The segments, in the order of the rows, and the number of rows of each, above 0.
    table
        The rows.
    """

    owners: list[IncomingSegment]
    counts: list[int]
    table: pa.Table


@dataclass(slots=True)
class LoadedSegments:
    """Segments, sound or not, in the plan's order, and the rows of the sound ones. `rows` can be iterated once."""

    segments: list[IncomingSegment]
    rows: Iterator[Rows]


@dataclass(slots=True)
class _Batch:
    """Opened segments that are not checked yet."""

    plan: list[PlannedSegment] = field(default_factory=list)
    segments: list[IncomingSegment] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


class Loader:
    """Loads the segments of a task.

    Parameters
    ----------
    intake
        Contract of the table, limits, and keys of writers.
    reader
        Reads the bytes of segments.
    most_bytes
        Bytes of decoded rows in a batch, approximately.
    """

    def __init__(self, intake: Intake, reader: Reader, most_bytes: int) -> None:
        self._intake, self._reader, self._target, self._most_bytes = intake, reader, intake.target, most_bytes
        self._decoder = SmallSegments(intake.limits)
        self._raw: dict[str, bytes] = {}

    def load(self, plan: Sequence[PlannedSegment]) -> Iterator[LoadedSegments]:
        """Load the segments of a plan, in its order. Raises what `segment_reading.load` raises."""
        batch = _Batch()
        for rows, contested in by_slot_file(plan):
            row = rows[0]
            if contested:
                yield from self._finish(batch)
                batch = _Batch()
                yield from self._load_contested(rows)
                continue
            opened = self._open(row, batch)
            full = batch.rows >= BATCH_ROWS or batch.size_bytes >= self._most_bytes
            if not opened or full or len(batch.plan) >= BATCH_SEGMENTS:
                yield from self._finish(batch)
                batch = _Batch()
            if not opened:
                yield self._load_alone(row)
        yield from self._finish(batch)

    def _open(self, row: PlannedSegment, batch: _Batch) -> bool:
        """Open a segment and add it to a batch. Returns False, without adding it, if it has to be loaded alone."""
        target, path = self._target, row["path"]
        name = segment_name(path)
        is_unusual = row["others"] or row.get("refused")
        if target is None or name is None or is_unusual or not 0 < name.rows <= PART_ROWS:
            return False
        try:
            raw = self._raw[path] = self._reader.read(check_size(row, self._intake.limits))
            if hashlib.sha256(raw).hexdigest() != row["sha256"]:
                return False
            if name.key_id:
                key = find_key(self._intake.authenticator.encryption_key, name.key_id)
                raw = decrypt(key, raw, name.bond(target.table))
            rows, metadata = self._decoder.decode(raw, target, name.rows)
            footer = footer_of(metadata, name, target)
            signed_by = self._intake.authenticator.signer_of(raw, footer, name, row)
        except Exception:  # noqa: BLE001 - foreign bytes may raise anything
            return False  # loading it alone raises the same error and records the reason
        # Only imports have several ranks. Rows of an older contract must be upgraded. Both are loaded alone.
        if rows is None or footer.ranks or is_changed(target, footer.contract_version, footer.added_version):
            return False
        constants = constant_names(footer)
        if not required_columns(target).issubset([*rows.column_names, *IDENTITY, *constants]):
            return False
        batch.plan.append(row)
        batch.segments.append(IncomingSegment(path, row["sha256"], row["bytes"], name, footer, signed_by=signed_by))
        batch.tables.append(rows)
        batch.rows += rows.num_rows
        # Text without a dictionary takes the bytes of its pages. Any other value takes 8 bytes at most.
        batch.size_bytes += (
            metadata.row_group(0).total_byte_size + rows.num_rows * (rows.num_columns + len(constants)) * 8
        )
        return True

    def _finish(self, batch: _Batch) -> Iterator[LoadedSegments]:
        """Check a batch and yield it; if the check fails, load each segment of it alone."""
        if not batch.plan:
            return
        try:
            checked = self._check_batch(batch)
        except Exception:  # noqa: BLE001 - foreign bytes may raise anything
            checked = None
        if checked is None:
            batch.tables.clear()
            for row in batch.plan:
                yield self._load_alone(row)
            return
        self._raw.clear()
        yield LoadedSegments(batch.segments, iter([checked]))

    def _check_batch(self, batch: _Batch) -> Rows | None:
        """Return the rows of a batch; None if some may not match their names. Sets each segment's `first` and `last`.

        Raises an Arrow error if text is not UTF-8 or columns have incompatible types.
        """
        footers = [segment.footer for segment in batch.segments if segment.footer is not None]
        tables, batch.tables = with_mixed_constants(batch.tables, footers), []
        same_schema = all(table.schema.equals(tables[0].schema) for table in tables)
        counts = np.array([table.num_rows for table in tables])
        promote = "none" if same_schema else "default"
        rows = pa.concat_tables(tables, promote_options=promote).replace_schema_metadata(None)
        for column in rows.columns:
            validate(column, counts)
        present = set(rows.column_names)
        if "run" in present and not has_texts(rows["run"], [footer.run for footer in footers]):
            return None
        for name in _NUMBERS:
            if name in present and not has_numbers(rows[name], [getattr(footer, name) for footer in footers], counts):
                return None
        rows = with_footer_columns(rows, footers, counts.tolist())
        assert self._target is not None
        if not has_contract_types(rows.schema, self._target):
            return None
        if "ts" not in rows.column_names or rows["ts"].null_count:  # rows that the recorder refused have no time
            return None
        firsts, lasts = extremes(rows["ts"].cast(pa.int64()), counts)
        if not all(map(self._intake.limits.spans_few_dates, zip(firsts, lasts, strict=True))):
            return None
        for segment, extent in zip(batch.segments, zip(firsts, lasts, strict=True), strict=True):
            segment.first, segment.last = moments(extent)
        return Rows(batch.segments, counts.tolist(), with_values(rows, self._target))

    def _load_alone(self, row: PlannedSegment) -> LoadedSegments:
        segment = load(self._intake, self._read, row, self._reader.read_again)
        self._raw.pop(row["path"], None)
        return LoadedSegments([segment, *segment.copies], self._parts(segment))

    def _load_contested(self, rows: Sequence[PlannedSegment]) -> Iterator[LoadedSegments]:
        """Load several segments of one slot file. Segments that contradict earlier ones are set aside."""
        target, raw = self._target, dict[str, bytes]()

        def read(path: str) -> bytes:
            raw[path] = self._reader.read_again(path)
            return raw[path]

        cuts = {cut["path"]: cut for row in rows for cut in row.get("earlier", ())}
        accepted = [claim for claim in map(self._earlier_claim, cuts.values()) if claim is not None]
        if len(rows) > 1:
            rows = sorted(rows, key=lambda row: precedence(load(self._intake, read, row)))
        for row in rows:
            raw.clear()
            segment = load(self._intake, read, row)
            if target is None or segment.unreadable is not None:
                yield LoadedSegments([segment, *segment.copies], iter(()))
                continue
            claim = claim_of(segment, target)
            if any(disagree(claim, other) for other in accepted):
                refuse(self._intake.store, segment, raw[segment.path], CONFLICT)
                yield LoadedSegments([segment], iter(()))
                continue
            accepted.append(without_earlier(claim, accepted))
            count = claim.rows.num_rows
            yield LoadedSegments([segment], iter([Rows([segment], [count], claim.rows)] if count else []))

    def _earlier_claim(self, cut: EarlierCut) -> SlotClaim | None:
        """Read the claim of a segment that an earlier plan ingested; None if it can no longer be read."""
        if self._target is None:
            return None
        try:
            raw = self._reader.read_again(cut["path"])
        except (FileNotFoundError, UnreadError):
            return None
        segment = IncomingSegment(cut["path"], cut["sha256"], len(raw), segment_name(cut["path"]))
        without_rules = Authenticator(self._intake.authenticator.encryption_key)
        row: PlannedSegment = {
            "path": cut["path"],
            "others": [],
            "table": self._target.table,
            "bytes": len(raw),
            "rows": 0,
            "sha256": cut["sha256"],
            "seen": "",
        }
        try:
            examine(raw, segment, self._target, row, without_rules, self._intake.limits)
        except Exception:  # noqa: BLE001 - its bytes have changed, or its key is missing
            return None
        return replace(claim_of(segment, self._target), signed=cut["signed"])

    def _read(self, path: str) -> bytes:
        """Return the bytes of a segment, from memory if `_open` has read them."""
        raw = self._raw.pop(path, None)
        return self._reader.read(path) if raw is None else raw

    def _parts(self, segment: IncomingSegment) -> Iterator[Rows]:
        if self._target is None or segment.unreadable is not None:
            return
        for part in segment.parts(self._target):
            if part.num_rows:
                yield Rows([segment], [part.num_rows], part)
