"""Decodes small segments in batches.

A rank's minute is some hundred rows, and looking at a segment costs the same for these as for a million. So segments
are opened with as little as will do, and what they hold is checked together, a column over all of them. Whatever is
not as it nearly always is goes the careful way of `ranklake.lake.ingest.segment_reading`, which says what is wrong and
sets it aside: nothing is refused here, and nothing passes that the careful way would refuse.

path ─▶ digest ─▶ shape known, footer as the name ─┬─▶ a batch: text, owners, times checked at once ─┬─▶ rows
           └──── any doubt ────────────────────────┴─────── segment_reading.load, one by one ◀───────┘
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.batch_columns import all_number, all_text, extremes, validate
from ranklake.lake.ingest.claims import Said, disagree, only_new, precedence, said_by, together
from ranklake.lake.ingest.incoming import PART_ROWS, IncomingSegment, refuse, segment_name
from ranklake.lake.ingest.segment_columns import footer_of, moments, with_values
from ranklake.lake.ingest.segment_opener import Opener
from ranklake.lake.ingest.segment_reading import examine, load, within
from ranklake.lake.ingest.small_segments import SmallSegments
from ranklake.lake.ingest.spool.gate import UnreadError
from ranklake.lake.ingest.spool.packs import Reader
from ranklake.lake.migrations.upgrading import is_changed
from ranklake.lake.store.planned_segment import EarlierCut, PlannedSegment
from ranklake.lake.store.store import Lake
from ranklake.lake.store.writers import CONFLICT, Authenticator
from ranklake.segments.envelope import decrypt
from ranklake.segments.keys import find_key

BATCH_SEGMENTS: Final = 256
"""As many are looked at again, one by one, where one of them is in doubt."""
BATCH_ROWS: Final = 65_536
BATCH_SHARE: Final = 8
"""The part of a piece that a batch may fill: pieces are cut between batches."""
_NUMBERS: Final = ("attempt", "rank", "incarnation", "segment")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one or more segments, under the contract's types; columns without any value are left out.

    Attributes
    ----------
    owners, counts
        Whose rows these are, in their order, and how many are whose; all counts above 0.
    """

    owners: list[IncomingSegment]
    counts: list[int]
    table: pa.Table


@dataclass(slots=True)
class Loaded:
    """Segments that were looked at, in the plan's order, and the rows of the sound ones; rows can be taken once."""

    segments: list[IncomingSegment]
    rows: Iterator[Rows]


@dataclass(slots=True)
class _Batch:
    """Segments that were opened and not yet checked."""

    plan: list[PlannedSegment] = field(default_factory=list)
    segments: list[IncomingSegment] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0


class Loader:
    """Loads the segments of a task.

    Parameters
    ----------
    target
        Contract of the table that they say they are of; None where ranks record no such table.
    authenticator
        By what their writers are known.
    most_bytes
        Decoded rows that a batch may hold, about.
    """

    def __init__(
        self, lake: Lake, reader: Reader, target: Contract | None, authenticator: Authenticator, most_bytes: int
    ) -> None:
        self._lake, self._reader, self._target, self._authenticator = lake, reader, target, authenticator
        self._most_bytes = most_bytes
        self._opener = Opener(lake.config.ingest)
        self._decoder = SmallSegments(lake.config.ingest)
        self._raw: dict[str, bytes] = {}

    def load(self, plan: Sequence[PlannedSegment]) -> Iterator[Loaded]:
        """Load what rows of a plan name, in their order. Raises what `segment_reading.load` does."""
        batch = _Batch()
        for rows, contested in together(plan):
            row = rows[0]
            if contested:
                yield from self._finish(batch)
                batch = _Batch()
                yield from self._heard(rows)
                continue
            opened = self._open(row, batch)
            full = batch.rows >= BATCH_ROWS or batch.size_bytes >= self._most_bytes
            if not opened or full or len(batch.plan) >= BATCH_SEGMENTS:
                yield from self._finish(batch)
                batch = _Batch()
            if not opened:
                yield self._carefully(row)
        yield from self._finish(batch)

    def _open(self, row: PlannedSegment, batch: _Batch) -> bool:
        """Open a segment and add it to a batch; return False, and add nothing, where that is not plain sailing."""
        target, path = self._target, row["path"]
        name = segment_name(path)
        odd = row["others"] or row["taken"] or row.get("refused")
        if target is None or name is None or odd or not 0 < name.rows <= PART_ROWS:
            return False
        try:
            raw = self._raw[path] = self._reader.read(within(row, self._lake.config.ingest))
            if hashlib.sha256(raw).hexdigest() != row["sha256"]:
                return False
            if name.key_id:
                raw = decrypt(find_key(self._authenticator.encryption_key, name.key_id), raw, name.bond(target.table))
            rows, metadata = self._decoder.decode(raw, target, name.rows)
            footer = footer_of(metadata, name, target)
            signed_by = self._authenticator.signer_of(raw, footer, name, row)
        except Exception:  # noqa: BLE001 - whatever foreign bytes raise
            return False  # the careful way finds the same, and says what it is
        # of several ranks: an import's, of which there are few; of an older contract: its rows are changed first
        if rows is None or footer.ranks or is_changed(target, footer.contract_version, footer.added_version):
            return False
        batch.plan.append(row)
        batch.segments.append(IncomingSegment(path, row["sha256"], row["bytes"], name, footer, signed_by=signed_by))
        batch.tables.append(rows)
        batch.rows += rows.num_rows
        # Text without a dictionary is what its pages hold, numbers and places in dictionaries have a word each.
        batch.size_bytes += metadata.row_group(0).total_byte_size + rows.num_rows * rows.num_columns * 8
        return True

    def _finish(self, batch: _Batch) -> Iterator[Loaded]:
        """Yield what a batch holds, once it is checked; where there is doubt, as the careful way has it."""
        if not batch.plan:
            return
        try:
            checked = self._checked(batch)
        except Exception:  # noqa: BLE001 - likewise
            checked = None
        if checked is None:
            batch.tables.clear()
            for row in batch.plan:
                yield self._carefully(row)
            return
        self._raw.clear()
        yield Loaded(batch.segments, iter([checked]))

    def _checked(self, batch: _Batch) -> Rows | None:
        """Return the rows of a batch, None where some may not be what their names say; fill in their first and last.

        Raises an Arrow error where text is not UTF-8 or columns do not go together.
        """
        tables, batch.tables = batch.tables, []
        alike = all(table.schema.equals(tables[0].schema) for table in tables)
        counts = np.array([table.num_rows for table in tables])
        rows = pa.concat_tables(tables, promote_options="none" if alike else "default").replace_schema_metadata(None)
        for column in rows.columns:
            validate(column, counts)
        names = [segment.name for segment in batch.segments if segment.name is not None]
        if not all_text(rows["run"], [name.run for name in names]):
            return None
        for which in _NUMBERS:
            if not all_number(rows[which], [getattr(name, which) for name in names], counts):
                return None
        if "ts" not in rows.column_names or rows["ts"].null_count:  # refused rows have none
            return None
        firsts, lasts = extremes(rows["ts"].cast(pa.int64()), counts)
        if not all(map(self._lake.config.ingest.spans_few_dates, zip(firsts, lasts, strict=True))):
            return None
        for segment, extent in zip(batch.segments, zip(firsts, lasts, strict=True), strict=True):
            segment.first, segment.last = moments(extent)
        assert self._target is not None
        return Rows(batch.segments, counts.tolist(), with_values(rows, self._target))

    def _carefully(self, row: PlannedSegment) -> Loaded:
        again = self._reader.read_again
        segment = load(self._lake, self._read, self._opener, self._target, row, self._authenticator, again)
        self._raw.pop(row["path"], None)
        return Loaded([segment, *segment.copies], self._parts(segment))

    def _heard(self, claims: Sequence[PlannedSegment]) -> Iterator[Loaded]:
        """Load segments that claim one slot file; those that contradict what came before are set aside."""
        target = self._target
        accepted = [said for said in map(self._earlier, _earlier_of(claims)) if said is not None]
        if len(claims) > 1:
            order = [precedence(self._one(row, {})) for row in claims]
            claims = [row for _, row in sorted(zip(order, claims, strict=True), key=lambda pair: pair[0])]
        for row in claims:
            raw: dict[str, bytes] = {}
            segment = self._one(row, raw)
            if target is None or segment.unreadable is not None:
                yield Loaded([segment, *segment.copies], iter(()))
                continue
            said = said_by(segment, target)
            if any(disagree(said, other) for other in accepted):
                refuse(self._lake, segment, raw[segment.path], CONFLICT)
                yield Loaded([segment], iter(()))
                continue
            accepted.append(only_new(said, accepted))
            count = said.rows.num_rows
            yield Loaded([segment], iter([Rows([segment], [count], said.rows)] if count else []))

    def _one(self, row: PlannedSegment, kept: dict[str, bytes]) -> IncomingSegment:
        """Load a segment, and keep its bytes by path."""

        def read(path: str) -> bytes:
            raw = kept[path] = self._reader.read_again(path)
            return raw

        return load(self._lake, read, self._opener, self._target, row, self._authenticator)

    def _earlier(self, place: EarlierCut) -> Said | None:
        """Return what a segment says that an earlier plan took in; None where it is not there to be asked any more."""
        if self._target is None:
            return None
        try:
            raw = self._reader.read_again(place["path"])
        except (FileNotFoundError, UnreadError):
            return None
        segment = IncomingSegment(place["path"], place["sha256"], len(raw), segment_name(place["path"]))
        unasked = Authenticator(self._authenticator.encryption_key)
        row: PlannedSegment = {
            "path": place["path"],
            "others": [],
            "table": self._target.table,
            "bytes": len(raw),
            "rows": 0,
            "sha256": place["sha256"],
            "seen": "",
            "taken": False,
        }
        try:
            examine(raw, segment, self._opener, self._target, row, unasked, self._lake.config.ingest)
        except Exception:  # noqa: BLE001 - it is not what it was, or its key is gone
            return None
        return replace(said_by(segment, self._target), signed=place["signed"])

    def _read(self, path: str) -> bytes:
        """Return bytes that were read before, or read them."""
        raw = self._raw.pop(path, None)
        return self._reader.read(path) if raw is None else raw

    def _parts(self, segment: IncomingSegment) -> Iterator[Rows]:
        if self._target is None or segment.unreadable is not None:
            return
        for part in segment.parts(self._target):
            if part.num_rows:
                yield Rows([segment], [part.num_rows], part)


def _earlier_of(claims: Sequence[PlannedSegment]) -> list[EarlierCut]:
    """Return the segments of earlier plans that rows of a plan name, each once."""
    return list({place["path"]: place for row in claims for place in row.get("earlier", ())}.values())
