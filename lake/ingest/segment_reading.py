"""Reads an incoming segment, checks it against its name, and accounts for its rows.

bytes ─▶ digest ─▶ clear text ─▶ Parquet ─▶ footer and contents as the name says ─▶ the contract's types
             └──────────┴────────────┴─────────────────┴──▶ quarantine/<sha256>
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow._parquet import ParquetReader

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.footer_columns import constant_names
from ranklake.lake.ingest.segment_columns import (
    NewerSegmentError,
    check_columns,
    conform_columns,
    days_of,
    extent_of,
    footer_of,
    moments,
    named_footer,
    unknown_table,
)
from ranklake.lake.ingest.spool.gate import GONE, TOO_LARGE, UNSTEADY, UnreadError, may_be_read_yet
from ranklake.lake.ingest.spool.packs import pack_of
from ranklake.lake.store.limits import Limits, decoded_bytes
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.store.store import Store
from ranklake.lake.store.writers import Authenticator, RefusedSegmentError
from ranklake.printable import printable_name
from ranklake.segments.envelope import EncryptionError, NotAuthenticError, decrypt
from ranklake.segments.keys import find_key
from ranklake.segments.segment import (
    NotASegmentError,
    SegmentFooter,
    SegmentName,
)

PART_ROWS: Final = 262_144

PART_BYTES: Final = 256 * 2**20
"""Decoded rows, about, that are held at a time of a segment that is read in parts."""


@dataclass(slots=True)
class IncomingSegment:
    """A segment on its way through a task.

    Attributes
    ----------
    path, sha256, size_bytes
        As the plan names it; of damaged bytes the digest that they have.
    name, footer
        As the segment has them; None where it has none.
    unreadable
        Why it cannot be read; None for a sound one.
    rows_stored, rows_rejected, rows_duplicate
        What became of its rows.
    slots
        Which slots they have, as `ranklake.lake.ingest.deduplication` says it.
    first, last
        The least and the greatest moment of them.
    signed_by
        Id of the key whose signature on it held.
    copies
        Other files that claim its digest, found damaged like it: each is settled, or it would be news for ever.
    """

    path: str
    sha256: str
    size_bytes: int
    name: SegmentName | None
    footer: SegmentFooter | None = None
    unreadable: str | None = None
    rows_stored: int = 0
    rows_rejected: int = 0
    rows_duplicate: int = 0
    slots: str = ""
    first: datetime | None = None
    last: datetime | None = None
    signed_by: str | None = None
    copies: "list[IncomingSegment]" = field(default_factory=list)
    _file: pq.ParquetFile | None = None
    _part_rows: int = PART_ROWS
    _whole: pa.Table | None = field(default=None, repr=False)

    @property
    def slot_file(self) -> tuple[int, int]:
        """Incarnation and number of the slot file; of a sound segment."""
        assert self.name is not None
        return self.name.incarnation, self.name.segment

    def parts(self, target: Contract) -> Iterator[pa.Table]:
        """Yield the rows under the contract's types, some hundred thousand at a time; once.

        Columns without any value are left out, and text that is stored with a dictionary keeps it.
        """
        if self._whole is not None:
            whole, self._whole = self._whole, None
            yield whole
        elif self._file is not None:
            file, self._file = self._file, None
            for batch in file.iter_batches(self._part_rows, use_threads=False):
                assert self.footer is not None, "rows of a segment that was not read"
                yield conform_columns(pa.table(batch), target, self.footer)

    def outcome(self, table: str) -> dict[str, Any]:
        """Return its row of the table ``segments``, without plan and date."""
        name, footer = self.name, self.footer
        in_quarantine = self.unreadable is not None and not may_be_read_yet(self.unreadable) and name is not None
        return {
            "sha256": self.sha256,
            "table": printable_name(table),
            "uri_name": printable_name(self.path),
            "run": name.run if name else None,
            "attempt": name.attempt if name else None,
            "rank": name.rank if name else None,
            "incarnation": name.incarnation if name else None,
            "segment": name.segment if name else None,
            "rows": name.rows if name else None,
            "rows_before": footer.rows_before if footer else None,
            "gap_rows": sum(footer.gaps.values()) if footer else None,
            "gap_rows_before": footer.gaps_before if footer else None,
            "gaps": json.dumps(footer.gaps, sort_keys=True) if footer else None,
            "totals": json.dumps(footer.totals, sort_keys=True) if footer and footer.totals else None,
            "final": footer.final if footer else None,
            "unreadable": self.unreadable,
            "contract_version": footer.contract_version if footer else None,
            "bytes": self.size_bytes,
            "ts_min": self.first,
            "ts_max": self.last,
            "rows_stored": self.rows_stored,
            # the name says how many rows lie in quarantine
            "rows_rejected": name.rows if in_quarantine and name else self.rows_rejected,
            "rows_duplicate": self.rows_duplicate,
            "pack": pack_of(self.path),
            "slots": self.slots if self.unreadable is None else None,
            "signed_by": self.signed_by,
        }


@dataclass(frozen=True, slots=True)
class Intake:
    """How segments of one table are read, and where unreadable ones are kept.

    Attributes
    ----------
    store
        The lake's.
    target
        The contract of their table; None where ranks record no such table.
    authenticator
        Checks their writers' signatures.
    limits
        What one segment may ask.
    is_known
        Whether a contract has the table, recorded by ranks or not.
    """

    store: Store
    target: Contract | None
    authenticator: Authenticator
    limits: Limits
    is_known: bool = True


def recorded_table(contracts: Mapping[str, Contract], name: str) -> Contract | None:
    """Return the contract of a table that ranks record, or None: no rank writes derived or system tables."""
    contract = contracts.get(name)
    return contract if contract is not None and contract.envelope else None


def unreadable(error: Exception) -> str:
    """Return the reason, never the text: a message can quote a value."""
    return f"not readable as Parquet ({type(error).__name__})"


def into_quarantine(store: Store, segment: IncomingSegment, raw: bytes) -> None:
    """Keep the bytes of a segment that is set aside, under their digest."""
    segment.sha256 = hashlib.sha256(raw).hexdigest()
    store.put_if_absent(f"quarantine/{segment.sha256}", raw)


def refuse(store: Store, segment: IncomingSegment, raw: bytes, why: str) -> None:
    """Set a sound segment aside, and drop what was read of it."""
    segment.unreadable, segment.footer, segment.signed_by = why, None, None
    segment.first = segment.last = None
    into_quarantine(store, segment, raw)


def segment_name(path: str) -> SegmentName | None:
    """Return what the name in a path says of a segment; None if it is no segment's."""
    try:
        return SegmentName.parse(path.rpartition("/")[2])
    except NotASegmentError:
        return None


_READS: Final = 3


def load(
    intake: Intake, read: Callable[[str], bytes], row: PlannedSegment, again: Callable[[str], bytes] | None = None
) -> IncomingSegment:
    """Load a segment; where several files claim its digest, the first that is sound.

    All of it is decoded and checked before this returns, so that nothing is stored of one that is damaged further on.
    An outage of the store, a missing key or lack of memory raises: the plan is then carried out again, and nothing is
    quarantined. Any other error makes this segment unreadable.

    Parameters
    ----------
    again
        Reads from the store itself: bytes are damaged only if they come so twice. By default `read`.
    """
    limits = intake.limits
    tried: list[IncomingSegment] = []
    for path in (row["path"], *row["others"]):
        segment = IncomingSegment(path, row["sha256"], row["bytes"], segment_name(path))
        tried.append(segment)
        try:
            raw, is_whole = _steady_bytes(read(check_size(row, limits, path)), path, segment, again or read)
        except FileNotFoundError:
            segment.unreadable = GONE
            continue
        except UnreadError as error:
            segment.unreadable = error.what
            continue
        try:
            how = intake.authenticator, limits
            examine(raw, segment, intake.target, row, *how, is_whole=is_whole, is_known=intake.is_known)
        except UnreadError as error:  # a newer writer's: it stays where it is
            segment.unreadable = error.what
            continue
        except NotAuthenticError as error:
            segment.unreadable = error.what
        except (EncryptionError, MemoryError, ImportError):  # Arrow's of memory is Python's, too
            raise
        except RanklakeError as error:
            segment.unreadable = error.what
        except Exception as error:  # noqa: BLE001 - whatever foreign bytes raise
            segment.unreadable = unreadable(error)
        else:
            return segment
        into_quarantine(intake.store, segment, raw)
    first = min(tried, key=lambda segment: may_be_read_yet(segment.unreadable))
    first.copies = [one for one in tried if one is not first and not may_be_read_yet(one.unreadable)]
    return first


def check_size(row: PlannedSegment, limits: Limits, path: str = "") -> str:
    """Return the path of a segment of a plan, or another of its bytes. Raises `UnreadError` if it is too large."""
    if row["bytes"] > limits.segment_bytes:
        raise UnreadError(TOO_LARGE)
    return path or str(row["path"])


def _steady_bytes(raw: bytes, path: str, segment: IncomingSegment, again: Callable[[str], bytes]) -> tuple[bytes, bool]:
    """Return bytes, and whether they have the digest in the name; without it two reads must give the same.

    Raises `UnreadError` where each read gives other bytes, and what reading raises.
    """
    for _ in range(_READS):
        if segment.name is None or hashlib.sha256(raw).hexdigest() == segment.sha256:
            return raw, True
        before, raw = raw, again(path)
        if raw == before:
            return raw, False
    raise UnreadError(UNSTEADY)


def examine(
    raw: bytes,
    segment: IncomingSegment,
    target: Contract | None,
    row: PlannedSegment,
    authenticator: Authenticator,
    limits: Limits,
    *,
    is_whole: bool | None = None,
    is_known: bool = False,
) -> None:
    """Check all of it, and fill in footer and rows; `is_whole` where somebody has looked at the digest already.

    `is_known` where a contract has its table, recorded by ranks or not.

    Raises `NotASegmentError`, `NewerSegmentError`, an Arrow error, or `EncryptionError` if it is encrypted and cannot
    be opened; nothing of the segment is changed then.
    """
    name = segment.name
    if refused := row.get("refused"):
        raise RefusedSegmentError(refused)
    if name is None:
        raise NotASegmentError("not a segment's name")
    if target is None and is_known:
        raise NotASegmentError("no table of this name is recorded by ranks")
    if not (hashlib.sha256(raw).hexdigest() == segment.sha256 if is_whole is None else is_whole):
        raise NotASegmentError("the bytes do not have the digest in the name")
    if name.key_id:
        raw = decrypt(find_key(authenticator.encryption_key, name.key_id), raw, name.bond(row["table"]))
    file = open_parquet(raw, limits)
    if target is None:
        named_footer(file.metadata, name, row["table"])
        raise NewerSegmentError(unknown_table(row["table"]))
    footer = footer_of(file.metadata, name, target)
    signed_by = authenticator.signer_of(raw, footer, name, row)
    rows = file.metadata.num_rows
    size = decoded_bytes(file.metadata, len(constant_names(footer)))
    limits.check_decoded(size)
    if rows <= PART_ROWS and size <= PART_BYTES:
        whole = check_columns(file.read(use_threads=False), name, footer, target)
        limits.check_decoded(whole.nbytes)
        extent = extent_of(whole)
        if not limits.spans_few_dates(extent):
            limits.check_dates(days_of(whole))
        segment._whole = whole  # noqa: SLF001 - the rest of how a segment comes to be
    else:
        segment._part_rows = max(1, min(PART_ROWS, rows * PART_BYTES // size))  # noqa: SLF001 - likewise
        extent = _extent_by_parts(file, segment._part_rows, name, footer, target, limits)  # noqa: SLF001 - likewise
        segment._file = file  # noqa: SLF001 - likewise
    segment.footer, segment.signed_by = footer, signed_by
    segment.first, segment.last = moments(extent)


def _extent_by_parts(
    file: pq.ParquetFile, part_rows: int, name: SegmentName, footer: SegmentFooter, target: Contract, limits: Limits
) -> tuple[int, int] | None:
    """Check all rows, a part at a time, and hold none; return their extent."""
    extents, days, size = [], set[int](), 0
    for batch in file.iter_batches(part_rows, use_threads=False):
        part = check_columns(pa.table(batch), name, footer, target)
        size += part.nbytes
        limits.check_decoded(size)
        if extent := extent_of(part):
            extents.append(extent)
            days |= days_of(part)
            limits.check_dates(days)
    return (min(low for low, _ in extents), max(high for _, high in extents)) if extents else None


def open_parquet(raw: bytes, limits: Limits) -> pq.ParquetFile:
    """Open Parquet bytes; text that is stored with a dictionary is read as one.

    The checksums of pages are not verified: the digest of the whole file was. Raises an Arrow error, or
    `NotASegmentError` where the limits are exceeded.
    """
    source = pa.BufferReader(raw)
    metadata = pq.read_metadata(source)
    limits.check(metadata)
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=with_dictionary(raw, metadata))


def with_dictionary(raw: bytes, metadata: pq.FileMetaData) -> list[str] | None:
    """Return the columns of text that are stored with a dictionary; None where it is damaged: reading will say how."""
    if not metadata.num_row_groups:
        return []
    # What pyarrow throws at a footer's lies about a column ends the process where metadata is asked for that column,
    # and is an error like others where rows are: so they are asked for first, one will do.
    try:
        reader = ParquetReader()
        reader.open(pa.BufferReader(raw), metadata=metadata)
        next(reader.iter_batches(1, row_groups=[0], use_threads=False), None)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever foreign bytes raise
        return None
    group = metadata.row_group(0)
    columns = [(metadata.schema.column(index), group.column(index)) for index in range(metadata.num_columns)]
    return [
        column.path for column, chunk in columns if column.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
    ]
