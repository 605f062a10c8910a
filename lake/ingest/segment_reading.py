"""Reads an incoming segment, checks it against its name, and accounts for its rows.

bytes ─▶ digest ─▶ clear text ─▶ Parquet ─▶ footer and contents as the name says ─▶ the contract's types
             └──────────┴────────────┴─────────────────┴──▶ quarantine/<sha256>
"""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.model import Contract
from ranklake.lake.ingest.incoming import (
    PART_BYTES,
    PART_ROWS,
    IncomingSegment,
    into_quarantine,
    segment_name,
    unreadable,
)
from ranklake.lake.ingest.newer import NewerSegmentError, unknown_table
from ranklake.lake.ingest.segment_columns import checked, days_of, extent_of, footer_of, moments, named_footer
from ranklake.lake.ingest.spool.gate import GONE, TOO_LARGE, UNSTEADY, UnreadError, may_be_read_yet
from ranklake.lake.migrations.steps.code import UntrustedCodeError
from ranklake.lake.store.limits import Limits, decoded_bytes
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.store.store import Lake
from ranklake.lake.store.writers import OTHERS_INCARNATION, Authenticator, RefusedSegmentError
from ranklake.segments.envelope import EncryptionError, NotAuthenticError, decrypt
from ranklake.segments.keys import find_key
from ranklake.segments.segment import (
    NotASegmentError,
    SegmentFooter,
    SegmentName,
)

if TYPE_CHECKING:
    from ranklake.lake.ingest.segment_opener import Opener

_READS: Final = 3


def load(
    lake: Lake,
    read: Callable[[str], bytes],
    opener: "Opener",
    target: Contract | None,
    row: PlannedSegment,
    authenticator: Authenticator,
    again: Callable[[str], bytes] | None = None,
) -> IncomingSegment:
    """Load a segment; where several files claim its digest, the first that is sound.

    All of it is decoded and checked before this returns, so that nothing is stored of one that is damaged further on.
    An outage of the store raises, and so does a key that is not at hand, or memory that is: the plan is then carried
    out again, and nothing is quarantined. Whatever else its bytes raise is said of the segment alone.

    Parameters
    ----------
    again
        Reads from the store itself: bytes are damaged only if they come so twice. By default `read`.
    """
    is_known = row["table"] in lake.contracts()
    tried: list[IncomingSegment] = []
    for path in (row["path"], *row["others"]):
        segment = IncomingSegment(path, row["sha256"], row["bytes"], segment_name(path))
        tried.append(segment)
        try:
            raw, is_whole = _steady(read(within(row, lake.config.ingest, path)), path, segment, again or read)
        except FileNotFoundError:
            segment.unreadable = GONE
            continue
        except UnreadError as error:
            segment.unreadable = error.what
            continue
        try:
            limits = lake.config.ingest
            examine(raw, segment, opener, target, row, authenticator, limits, is_whole=is_whole, is_known=is_known)
        except UnreadError as error:  # a newer writer's: it stays where it is
            segment.unreadable = error.what
            continue
        except NotAuthenticError as error:
            segment.unreadable = error.what
        except (EncryptionError, UntrustedCodeError, MemoryError, ImportError):  # Arrow's of memory is Python's, too
            raise
        except RanklakeError as error:
            segment.unreadable = error.what
        except Exception as error:  # noqa: BLE001 - whatever foreign bytes raise
            segment.unreadable = unreadable(error)
        else:
            return segment
        into_quarantine(lake, segment, raw)
    first = min(tried, key=lambda segment: may_be_read_yet(segment.unreadable))
    first.copies = [one for one in tried if one is not first and not may_be_read_yet(one.unreadable)]
    return first


def within(row: PlannedSegment, limits: Limits, path: str = "") -> str:
    """Return the path of a segment of a plan, or another of its bytes. Raises `UnreadError` if it is too large."""
    if row["bytes"] > limits.segment_bytes:
        raise UnreadError(TOO_LARGE)
    return path or str(row["path"])


def _steady(raw: bytes, path: str, segment: IncomingSegment, again: Callable[[str], bytes]) -> tuple[bytes, bool]:
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


def examine(  # noqa: PLR0913 - what is known of a segment before it is read
    raw: bytes,
    segment: IncomingSegment,
    opener: "Opener",
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
    if row["taken"] or row.get("refused"):
        raise RefusedSegmentError(row.get("refused") or OTHERS_INCARNATION)
    if name is None:
        raise NotASegmentError("not a segment's name")
    if target is None and is_known:
        raise NotASegmentError("no table of this name is recorded by ranks")
    if not (hashlib.sha256(raw).hexdigest() == segment.sha256 if is_whole is None else is_whole):
        raise NotASegmentError("the bytes do not have the digest in the name")
    if name.key_id:
        raw = decrypt(find_key(authenticator.encryption_key, name.key_id), raw, name.bond(row["table"]))
    file = opener.open(raw)
    if target is None:
        named_footer(file.metadata, name, row["table"])
        raise NewerSegmentError(unknown_table(row["table"]))
    footer = footer_of(file.metadata, name, target)
    signed_by = authenticator.signer_of(raw, footer, name, row)
    rows, size = file.metadata.num_rows, decoded_bytes(file.metadata)
    if rows <= PART_ROWS and size <= PART_BYTES:
        whole = checked(file.read(use_threads=False), name, footer, target)
        limits.check_decoded(whole.nbytes)
        extent = extent_of(whole)
        if not limits.spans_few_dates(extent):
            limits.check_dates(days_of(whole))
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
        part = checked(pa.table(batch), name, footer, target)
        size += part.nbytes
        limits.check_decoded(size)
        if extent := extent_of(part):
            extents.append(extent)
            days |= days_of(part)
            limits.check_dates(days)
    return (min(low for low, _ in extents), max(high for _, high in extents)) if extents else None
