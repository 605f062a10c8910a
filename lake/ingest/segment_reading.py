"""A segment on its way in: read, held against its name, and accounted for.

bytes ─▶ digest ─▶ clear text ─▶ Parquet ─▶ footer and contents as the name says ─▶ the contract's types
             └──────────┴────────────┴─────────────────┴──▶ quarantine/<sha256>
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow._parquet import ParquetReader

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.footers import read_footer
from ranklake.lake.spool.gate import GONE, TOO_LARGE, UNREAD, UNSTEADY, UnreadError, printable
from ranklake.lake.spool.packs import pack_of
from ranklake.lake.storage.store import Lake
from ranklake.lake.trust.limits import DAY_US, Limits, decoded_bytes
from ranklake.lake.trust.writers import OTHERS_INCARNATION, Authenticator, RefusedSegmentError
from ranklake.segments.envelope import EncryptionError, NotAuthenticError, decrypt
from ranklake.segments.keys import find_key
from ranklake.segments.segment import (
    METADATA_KEY,
    REFUSED,
    REFUSED_ROW,
    NotASegmentError,
    SegmentFooter,
    SegmentName,
)

PART_ROWS: Final = 262_144
PART_BYTES: Final = 256 * 2**20
"""Decoded rows, about, that are held at a time of a segment that is read in parts."""
_READS: Final = 3
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(slots=True)
class Incoming:
    """A segment on its way through a task.

    Attributes
    ----------
    path, sha256, size_bytes
        As the plan names it; of damaged bytes the digest that they have.
    name, footer
        What it says of itself; None where it says nothing.
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
    copies: "list[Incoming]" = field(default_factory=list)
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
                yield _conformed(pa.table(batch), target)

    def outcome(self, table: str) -> dict[str, Any]:
        """Return its row of the table ``segments``, without plan and date."""
        name, footer = self.name, self.footer
        in_quarantine = self.unreadable is not None and self.unreadable not in UNREAD and name is not None
        return {
            "sha256": self.sha256,
            "table": printable(table),
            "uri_name": printable(self.path),
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


def recorded_table(name: str) -> Contract | None:
    """Return the contract of a table that ranks record, or None: no rank writes derived or system tables."""
    try:
        found = contract(name)
    except RanklakeError:
        return None
    return found if found.envelope else None


def load(
    lake: Lake,
    read: Callable[[str], bytes],
    opener: "Opener",
    target: Contract | None,
    row: Mapping[str, Any],
    authenticator: Authenticator,
    again: Callable[[str], bytes] | None = None,
) -> Incoming:
    """Load a segment; where several files claim its digest, the first that is sound.

    All of it is decoded and checked before this returns, so that nothing is stored of one that is damaged further on.
    An outage of the store raises, and so does a key that is not at hand, or memory that is: the plan is then carried
    out again, and nothing is quarantined. Whatever else its bytes raise is said of the segment alone.

    Parameters
    ----------
    again
        Reads from the store itself: bytes are damaged only if they come so twice. By default `read`.
    """
    tried: list[Incoming] = []
    for path in (row["path"], *row["others"]):
        segment = Incoming(path, row["sha256"], row["bytes"], segment_name(path))
        tried.append(segment)
        try:
            raw, is_whole = _steady(read(within(row, lake.limits, path)), path, segment, again or read)
        except FileNotFoundError:
            segment.unreadable = GONE
            continue
        except UnreadError as error:
            segment.unreadable = error.what
            continue
        try:
            examine(raw, segment, opener, target, row, authenticator, lake.limits, is_whole=is_whole)
        except NotAuthenticError as error:
            segment.unreadable = error.what
        except (EncryptionError, MemoryError, ImportError):  # Arrow's own error of memory is one of Python's, too
            raise
        except RanklakeError as error:
            segment.unreadable = error.what
        except Exception as error:  # noqa: BLE001 - whatever foreign bytes raise
            segment.unreadable = unreadable(error)
        else:
            return segment
        into_quarantine(lake, segment, raw)
    first = min(tried, key=lambda segment: segment.unreadable in UNREAD)
    first.copies = [one for one in tried if one is not first and one.unreadable not in UNREAD]
    return first


def within(row: Mapping[str, Any], limits: Limits, path: str = "") -> str:
    """Return the path of a segment of a plan, or another of its bytes. Raises `UnreadError` if it is too large."""
    if row["bytes"] > limits.segment_bytes:
        raise UnreadError(TOO_LARGE)
    return path or str(row["path"])


def unreadable(error: Exception) -> str:
    """Return the reason, never the text: a message can quote a value."""
    return f"not readable as Parquet ({type(error).__name__})"


def into_quarantine(lake: Lake, segment: Incoming, raw: bytes) -> None:
    """Keep the bytes of a segment that is set aside, under their digest."""
    segment.sha256 = hashlib.sha256(raw).hexdigest()
    lake.put_if_absent(f"quarantine/{segment.sha256}", raw)


def refuse(lake: Lake, segment: Incoming, raw: bytes, why: str) -> None:
    """Set a segment aside that was found sound; nothing that it says counts."""
    segment.unreadable, segment.footer, segment.signed_by = why, None, None
    segment.first = segment.last = None
    into_quarantine(lake, segment, raw)


def _steady(raw: bytes, path: str, segment: Incoming, again: Callable[[str], bytes]) -> tuple[bytes, bool]:
    """Return bytes as they are, and whether the name promises them; others have to come twice.

    Raises `UnreadError` where each read gives others, and what reading raises.
    """
    for _ in range(_READS):
        if segment.name is None or hashlib.sha256(raw).hexdigest() == segment.sha256:
            return raw, True
        before, raw = raw, again(path)
        if raw == before:
            return raw, False
    raise UnreadError(UNSTEADY)


def segment_name(path: str) -> SegmentName | None:
    """Return what the name in a path says of a segment; None if it is no segment's."""
    try:
        return SegmentName.parse(path.rpartition("/")[2])
    except NotASegmentError:
        return None


def examine(
    raw: bytes,
    segment: Incoming,
    opener: "Opener",
    target: Contract | None,
    row: Mapping[str, Any],
    authenticator: Authenticator,
    limits: Limits,
    *,
    is_whole: bool | None = None,
) -> None:
    """Check all of it, and fill in footer and rows; `is_whole` where somebody has looked at the digest already.

    Raises `NotASegmentError`, an Arrow error, or `EncryptionError` if it is encrypted and cannot be opened; nothing of
    the segment is changed then.
    """
    name = segment.name
    if row["taken"] or row.get("refused"):
        raise RefusedSegmentError(row.get("refused") or OTHERS_INCARNATION)
    if name is None:
        raise NotASegmentError("not a segment's name")
    if target is None:
        raise NotASegmentError("no table of this name is recorded by ranks")
    if not (hashlib.sha256(raw).hexdigest() == segment.sha256 if is_whole is None else is_whole):
        raise NotASegmentError("the bytes do not have the digest in the name")
    if name.key_id:
        raw = decrypt(find_key(authenticator.encryption_key, name.key_id), raw, name.bond(target.table))
    file = opener.open(raw)
    footer = footer_of(file.metadata, name, target)
    signed_by = authenticator.signer_of(raw, footer, name, row)
    rows, size = file.metadata.num_rows, decoded_bytes(file.metadata)
    if rows <= PART_ROWS and size <= PART_BYTES:
        whole = _checked(file.read(use_threads=False), name, footer, target)
        limits.check_decoded(whole.nbytes)
        extent = _extent(whole)
        if not limits.spans_few_dates(extent):
            limits.check_dates(_days_of(whole))
        segment._whole = whole  # noqa: SLF001 - the rest of how a segment comes to be
    else:
        segment._part_rows = max(1, min(PART_ROWS, rows * PART_BYTES // size))  # noqa: SLF001 - likewise
        extent = _looked_through(file, segment._part_rows, name, footer, target, limits)  # noqa: SLF001 - likewise
        segment._file = file  # noqa: SLF001 - likewise
    segment.footer, segment.signed_by = footer, signed_by
    segment.first, segment.last = moments(extent)


def _looked_through(
    file: pq.ParquetFile, part_rows: int, name: SegmentName, footer: SegmentFooter, target: Contract, limits: Limits
) -> tuple[int, int] | None:
    """Check all rows, a part at a time, and hold none; return their extent."""
    extents, days, size = [], set[int](), 0
    for batch in file.iter_batches(part_rows, use_threads=False):
        part = _checked(pa.table(batch), name, footer, target)
        size += part.nbytes
        limits.check_decoded(size)
        if extent := _extent(part):
            extents.append(extent)
            days |= _days_of(part)
            limits.check_dates(days)
    return (min(low for low, _ in extents), max(high for _, high in extents)) if extents else None


class Opener:
    """Opens segments of a table; text whose values are stored in a dictionary is read as one.

    Which text that is has to be said before a file is opened, and opening one to find out costs as much as decoding
    some hundred rows. Segments of a table are alike, so each is opened as the one before it was. The checksums of pages
    are not looked at: the digest of the whole file was, just before.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._names: list[str] = []
        self._texts: list[str] = []

    def open(self, raw: bytes) -> pq.ParquetFile:
        """Open Parquet bytes. Raises an Arrow error, or `NotASegmentError` where they hold too much."""
        source = pa.BufferReader(raw)
        if self._names:
            try:
                file = pq.ParquetFile(source, read_dictionary=self._texts)
            except KeyError:  # some of the text is not there
                source.seek(0)
            else:
                self._limits.check(file.metadata)
                if file.metadata.schema.names == self._names:
                    return file
        metadata = pq.read_metadata(source)
        self._limits.check(metadata)
        texts = with_dictionary(raw, metadata)
        if metadata.num_row_groups and texts is not None:
            self._names, self._texts = metadata.schema.names, texts
        return pq.ParquetFile(source, metadata=metadata, read_dictionary=texts)


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


def footer_of(metadata: pq.FileMetaData, name: SegmentName, target: Contract) -> SegmentFooter:
    """Return the footer. Raises `NotASegmentError` where it is none, or not that of the name."""
    footer = read_footer((metadata.metadata or {}).get(METADATA_KEY, b""))
    said = (footer.table, footer.run, footer.attempt, footer.rank, footer.incarnation, footer.segment, footer.rows)
    meant = (target.table, name.run, name.attempt, name.rank, name.incarnation, name.segment, metadata.num_rows)
    if said != meant or name.rows != footer.rows or name.key_id != footer.key_id:
        raise NotASegmentError("name, footer and contents disagree")
    if footer.ranks and name.rank:
        raise NotASegmentError("rows of several ranks under the name of one")
    if footer.contract_version > target.version:
        raise NotASegmentError(
            f"written under contract version {footer.contract_version}, known up to {target.version}"
        )
    return footer


def _extent(rows: pa.Table) -> tuple[int, int] | None:
    """Return the first and the last moment, in microseconds since 1970; None where there is none."""
    if "ts" not in rows.column_names:  # all were refused
        return None
    moments = rows["ts"].cast(pa.int64())
    values = (moments.drop_null() if moments.null_count else moments).to_numpy()
    return (int(values.min()), int(values.max())) if len(values) else None


def _days_of(rows: pa.Table) -> set[int]:
    """Return the UTC dates of rows that have a moment, as days since 1970."""
    return set(np.unique(rows["ts"].cast(pa.int64()).drop_null().to_numpy() // DAY_US).tolist())


def moments(extent: tuple[int, int] | None) -> tuple[datetime | None, datetime | None]:
    """Return moments for people; None for both where Python cannot hold one."""
    if extent is None:
        return None, None
    try:
        return _EPOCH + timedelta(microseconds=extent[0]), _EPOCH + timedelta(microseconds=extent[1])
    except OverflowError:
        return None, None


def _checked(stored: pa.Table, name: SegmentName, footer: SegmentFooter, target: Contract) -> pa.Table:
    """Return rows under the contract's types; columns without any value are left out, dictionaries of text kept.

    Raises
    ------
    pyarrow.ArrowInvalid
        Text is not UTF-8: it would pass unseen until somebody reads it.
    ContractMismatchError, NotASegmentError
        Columns are not the contract's; rows are not those of the name. NULLs are left for the judge.
    """
    for column in stored.columns:
        if not pa.types.is_primitive(column.type):
            column.validate(full=True)
    rows = _conformed(stored, target)
    same = _is_text(rows["run"], name.run)
    for column_name in ("attempt", "incarnation", "segment"):
        same &= _is_number(rows[column_name], getattr(name, column_name))
    same &= _is_within(rows["rank"], *footer.ranks) if footer.ranks else _is_number(rows["rank"], name.rank)
    if not same:
        raise NotASegmentError("name, footer and contents disagree")
    return rows


def _conformed(stored: pa.Table, target: Contract) -> pa.Table:
    as_meant = fits(stored.schema, target)
    rows = stored.replace_schema_metadata(None) if as_meant else conform(stored, target, segment=True)
    return with_values(rows, target)


def fits(schema: pa.Schema, target: Contract) -> bool:
    """Say whether columns are the contract's, under its types; a dictionary of text is text."""
    meant, required = _meant(target)
    names = schema.names
    plain = [type_.value_type if pa.types.is_dictionary(type_) else type_ for type_ in schema.types]
    as_meant = all(meant.get(name) == type_ for name, type_ in zip(names, plain, strict=True))
    return as_meant and len(set(names)) == len(names) and (required.issubset(names) or REFUSED in names)


def with_values(rows: pa.Table, target: Contract) -> pa.Table:
    """Return rows without the columns that have no value, but for required ones."""
    _, required = _meant(target)
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    full = [name for name, column in columns.items() if name in required or column.null_count < rows.num_rows]
    return rows if len(full) == len(columns) else rows.select(full)


@lru_cache(maxsize=64)
def _meant(target: Contract) -> tuple[dict[str, pa.DataType], frozenset[str]]:
    """Return the types of a segment's columns, and the names of those that are required."""
    schema = arrow_schema(target, segment=True)
    types = {REFUSED: pa.string(), REFUSED_ROW: pa.string()} | dict(zip(schema.names, schema.types, strict=True))
    return types, frozenset(field.name for field in schema if not field.nullable)


def _is_number(column: pa.ChunkedArray, number: int) -> bool:
    values = (column.drop_null() if column.null_count else column).to_numpy()
    return bool((values == number).all())


def _is_within(column: pa.ChunkedArray, low: int, high: int) -> bool:
    values = (column.drop_null() if column.null_count else column).to_numpy()
    return bool(((values >= low) & (values <= high)).all())


def _is_text(column: pa.ChunkedArray, text: str) -> bool:
    for chunk in column.chunks:
        known = pa.types.is_dictionary(chunk.type) and set(chunk.dictionary.to_pylist()) <= {text, None}
        if not known and not set(chunk.unique().to_pylist()) <= {text, None}:  # a dictionary may have words of no row
            return False
    return True
