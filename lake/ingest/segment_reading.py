"""Reads one segment, checks it against its name and its contract, and puts a damaged one into quarantine.

bytes ─▶ digest ─▶ decryption ─▶ Parquet ─▶ footer and contents match the name ─▶ the contract's types
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
"""Approximate bytes of decoded rows per part, for a segment that is read in parts."""


@dataclass(slots=True)
class IncomingSegment:
    """A segment that a task reads, and the numbers that it finds.

    Attributes
    ----------
    path, sha256, size_bytes
        From the plan. For a damaged segment, `sha256` is the digest of its actual bytes.
    name, footer
        The parsed file name and footer; None if it has none.
    unreadable
        The reason why it cannot be read; None for a sound segment.
    rows_stored, rows_rejected, rows_duplicate
        Number of rows stored, rejected by the contract, and dropped as repeats.
    slots
        The slots of its rows, as text in the format of `ranklake.lake.ingest.deduplication`.
    first, last
        The lowest and the highest time of its rows.
    signed_by
        Id of the key of its valid signature; None without one.
    copies
        Other damaged files with the same digest in the name. Each gets a row of ``segments``, so that it is not new
        again for the next ingest.
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
        """Incarnation and segment number. The segment must have a name."""
        assert self.name is not None
        return self.name.incarnation, self.name.segment

    def parts(self, target: Contract) -> Iterator[pa.Table]:
        """Yield the rows under the contract's types, some hundred thousand at a time. Rows can be read only once.

        Columns without any value are left out. Text that is stored with a dictionary keeps it.
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
        """Return the segment's row of the table ``segments``, as a dict, without plan and date."""
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
            # for bytes in quarantine, the name has the number of rows
            "rows_rejected": name.rows if in_quarantine and name else self.rows_rejected,
            "rows_duplicate": self.rows_duplicate,
            "pack": pack_of(self.path),
            "slots": self.slots if self.unreadable is None else None,
            "signed_by": self.signed_by,
        }


@dataclass(frozen=True, slots=True)
class Intake:
    """Settings for reading segments of one table.

    Attributes
    ----------
    store
        The lake's store, for the quarantine.
    target
        The table's contract; None if ranks do not record this table.
    authenticator
        Checks the signatures of segments.
    limits
        Limits on a segment's size and content.
    is_known
        Whether the table has a contract, including those that ranks do not record.
    """

    store: Store
    target: Contract | None
    authenticator: Authenticator
    limits: Limits
    is_known: bool = True


def recorded_table(contracts: Mapping[str, Contract], name: str) -> Contract | None:
    """Return the contract of a table that ranks record; None for other tables, such as derived and system tables."""
    contract = contracts.get(name)
    return contract if contract is not None and contract.envelope else None


def unreadable(error: Exception) -> str:
    """Return the reason for an error of reading. It has no error text, which could quote a value."""
    return f"not readable as Parquet ({type(error).__name__})"


def into_quarantine(store: Store, segment: IncomingSegment, raw: bytes) -> None:
    """Write a segment's bytes to the quarantine, named by their digest, and set `sha256` to this digest."""
    segment.sha256 = hashlib.sha256(raw).hexdigest()
    store.put_if_absent(f"quarantine/{segment.sha256}", raw)


def refuse(store: Store, segment: IncomingSegment, raw: bytes, reason: str) -> None:
    """Put a sound segment into quarantine with a reason, and drop its footer, signature and times."""
    segment.unreadable, segment.footer, segment.signed_by = reason, None, None
    segment.first = segment.last = None
    into_quarantine(store, segment, raw)


def segment_name(path: str) -> SegmentName | None:
    """Parse the file name of a segment's path; None if it is no segment's name."""
    try:
        return SegmentName.parse(path.rpartition("/")[2])
    except NotASegmentError:
        return None


_READS: Final = 3


def load(
    intake: Intake, read: Callable[[str], bytes], row: PlannedSegment, read_again: Callable[[str], bytes] | None = None
) -> IncomingSegment:
    """Load a segment. If the plan names several files with its digest, the first sound one is used.

    All rows are decoded and checked before this function returns, so no rows of a damaged segment are stored.

    An unreachable store, a missing key or lack of memory raises an error. The plan is then carried out again later, and
    nothing goes to the quarantine. Any other error makes the segment unreadable.

    Parameters
    ----------
    read_again
        Reads from the store, not from a cache. Bytes count as damaged only if two reads return the same bytes. By
        default `read`.
    """
    limits = intake.limits
    tried: list[IncomingSegment] = []
    for path in (row["path"], *row["others"]):
        segment = IncomingSegment(path, row["sha256"], row["bytes"], segment_name(path))
        tried.append(segment)
        try:
            raw, has_digest = _steady_bytes(read(check_size(row, limits, path)), path, segment, read_again or read)
        except FileNotFoundError:
            segment.unreadable = GONE
            continue
        except UnreadError as error:
            segment.unreadable = error.what
            continue
        try:
            examine(
                raw,
                segment,
                intake.target,
                row,
                intake.authenticator,
                limits,
                has_digest=has_digest,
                is_known=intake.is_known,
            )
        except UnreadError as error:  # a segment of a newer writer is kept in the spool
            segment.unreadable = error.what
            continue
        except NotAuthenticError as error:
            segment.unreadable = error.what
        except (EncryptionError, MemoryError, ImportError):  # Arrow's error for lack of memory is a MemoryError, too
            raise
        except RanklakeError as error:
            segment.unreadable = error.what
        except Exception as error:  # noqa: BLE001 - foreign bytes may raise anything
            segment.unreadable = unreadable(error)
        else:
            return segment
        into_quarantine(intake.store, segment, raw)
    first = min(tried, key=lambda segment: may_be_read_yet(segment.unreadable))
    first.copies = [other for other in tried if other is not first and not may_be_read_yet(other.unreadable)]
    return first


def check_size(row: PlannedSegment, limits: Limits, path: str = "") -> str:
    """Return `path`, or else the path in the plan. Raises `UnreadError` if the segment is too large."""
    if row["bytes"] > limits.segment_bytes:
        raise UnreadError(TOO_LARGE)
    return path or str(row["path"])


def _steady_bytes(
    raw: bytes, path: str, segment: IncomingSegment, read_again: Callable[[str], bytes]
) -> tuple[bytes, bool]:
    """Return a segment's bytes, and whether they have the digest in the name.

    Bytes with another digest are read again until two reads return the same bytes. Raises `UnreadError` if each read
    returns other bytes, and what reading raises.
    """
    for _ in range(_READS):
        if segment.name is None or hashlib.sha256(raw).hexdigest() == segment.sha256:
            return raw, True
        before, raw = raw, read_again(path)
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
    has_digest: bool | None = None,
    is_known: bool = False,
) -> None:
    """Check a segment completely; set its footer, rows, signature and times.

    Parameters
    ----------
    has_digest
        Whether the bytes have the digest in the name; None if the digest must be computed here.
    is_known
        As for `Intake`.

    Raises
    ------
    NotASegmentError, NewerSegmentError, pyarrow.ArrowException
        The segment is damaged, or newer than its contract here.
    EncryptionError
        It is encrypted and cannot be decrypted.

    After an error, the segment is unchanged.
    """
    name = segment.name
    if refused := row.get("refused"):
        raise RefusedSegmentError(refused)
    if name is None:
        raise NotASegmentError("not a segment's name")
    if target is None and is_known:
        raise NotASegmentError("no table of this name is recorded by ranks")
    if not (hashlib.sha256(raw).hexdigest() == segment.sha256 if has_digest is None else has_digest):
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
        segment._whole = whole  # noqa: SLF001 - this function completes the segment
    else:
        segment._part_rows = max(1, min(PART_ROWS, rows * PART_BYTES // size))  # noqa: SLF001 - likewise
        extent = _extent_by_parts(file, segment._part_rows, name, footer, target, limits)  # noqa: SLF001 - likewise
        segment._file = file  # noqa: SLF001 - likewise
    segment.footer, segment.signed_by = footer, signed_by
    segment.first, segment.last = moments(extent)


def _extent_by_parts(
    file: pq.ParquetFile, part_rows: int, name: SegmentName, footer: SegmentFooter, target: Contract, limits: Limits
) -> tuple[int, int] | None:
    """Check all rows, part by part, without keeping them; return their extent, as `extent_of` does."""
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
    """Open a Parquet file from bytes; text that is stored with a dictionary is read as a dictionary.

    The checksums of pages are not verified, since the digest of the whole file was. Raises an Arrow error, and
    `NotASegmentError` if a limit is exceeded.
    """
    source = pa.BufferReader(raw)
    metadata = pq.read_metadata(source)
    limits.check(metadata)
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=with_dictionary(raw, metadata))


def with_dictionary(raw: bytes, metadata: pq.FileMetaData) -> list[str] | None:
    """Return the names of text columns that are stored with a dictionary; None if the file is damaged."""
    if not metadata.num_row_groups:
        return []
    # If a footer describes a column wrongly, pyarrow ends the process when this column's metadata is read, but raises
    # an error when rows are read. So one row is read first.
    try:
        reader = ParquetReader()
        reader.open(pa.BufferReader(raw), metadata=metadata)
        next(reader.iter_batches(1, row_groups=[0], use_threads=False), None)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - foreign bytes may raise anything
        return None
    group = metadata.row_group(0)
    columns = [(metadata.schema.column(index), group.column(index)) for index in range(metadata.num_columns)]
    return [
        column.path for column, chunk in columns if column.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
    ]
