"""Imported rows: convert rows to the contract's types, and seal them as segments of their streams.

A stream's incarnation is a digest of the imported file (`ImportIdentity`), and slots are positions in the file. So
every import of a file gives its rows the same keys, and ingest stores no row twice.

A file may have a row or two of each of thousands of ranks. So rows of several ranks share one stream of the file, whose
footers give the range of ranks; rows of a single rank have that rank's stream (decision 027).
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ranklake.capture.common.arrays import Array, numbers, to_array
from ranklake.capture.sealing.keys import ActiveKeys
from ranklake.capture.sealing.masked import SealedMasks
from ranklake.capture.sealing.rows import FLAGS, NO_ROWS, Columns, Rows
from ranklake.capture.sealing.segment_bytes import Origin, segment_bytes
from ranklake.capture.spool.meta import Meta
from ranklake.capture.spool.stream_files import SealedFile, StreamName
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.overlay import Overlay
from ranklake.segments.segment import DATES_PER_SEGMENT

RANK: Final = "rank"
_SEVERAL: Final = -1
"""Number of the stream with rows of several ranks."""
_DAY_NS: Final = 86_400 * 10**9
_WALL: Final = ((0, 0),)
"""Clock anchors of a segment. Imported times are wall times already, so the two clocks are equal."""
_ENVELOPE: Final = frozenset({"run", "attempt", "rank", "incarnation", "segment", "slot", "ts"})

Ship = Callable[[SealedFile, StreamName, bytes], None]


@dataclass(frozen=True, slots=True)
class ImportIdentity:
    """Identifies the imported file and how it is read.

    Attributes
    ----------
    format, mapping
        Name of the format, and the digest of the mapping or the name of the time zone, if there is one.
    name, sha256
        The file's name without folders, and the digest of its bytes.
    by_name
        Whether two files with equal content are two imports, because rows depend on the file's name or time.
    """

    format: str
    mapping: str
    name: str
    sha256: str
    by_name: bool = False

    def incarnation(self, run: str, attempt: int, stream: int) -> int:
        """Return the incarnation of a stream, a positive 63-bit number; `stream` is a rank, or `_SEVERAL`."""
        name = (self.name,) if self.by_name else ()
        owner = "ranks" if stream == _SEVERAL else str(stream)
        key = "\0".join((self.format, self.mapping, self.sha256, run, str(attempt), owner, *name))
        return (int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 2) + 1


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """Destination of an import's segments, and how they are sealed.

    Attributes
    ----------
    ship
        Called with each sealed segment.
    day
        Day folder of the segments: the UTC date of the import, which ingest lists first.
    keys
        Keys that encrypt and sign segments.
    overlay
        The operator's contracts.
    masks
        Masks to apply before sealing.
    """

    ship: Ship
    day: str
    keys: ActiveKeys
    overlay: Overlay | None
    masks: SealedMasks


class ImportedStreams:
    """Streams of one attempt of an imported run. Segments are numbered per table, as a recorder does."""

    def __init__(self, identity: ImportIdentity, run: str, attempt: int, target: ImportTarget) -> None:
        self._identity, self._run, self._attempt, self._target = identity, run, attempt, target
        self._metas: dict[int, Meta] = {}
        self._ended: set[int] = set()

    def write(self, table: str, rows: Rows, world_size: int, *, final: bool) -> None:
        """Seal rows as the next segment of their stream, or as several if they have too many dates for one."""
        low, high = _extent(rows) or (0, 0)
        stream = _SEVERAL if low != high else low
        if low == high:
            rows = replace(rows, columns={name: column for name, column in rows.columns.items() if name != RANK})
        parts = _cut_by_dates(rows)
        for part in parts:
            self._seal(stream, table, part, world_size, final=final and part is parts[-1])

    def end(self, world_size: int) -> None:
        """Seal an empty last segment, whose footer has the stream's totals, in each stream that has none yet."""
        for stream in sorted(self._metas.keys() - self._ended):
            self._seal(stream, "events", NO_ROWS, world_size, final=True)

    def _seal(self, stream: int, table: str, rows: Rows, world_size: int, *, final: bool) -> None:
        target = self._target
        meta = self._metas.setdefault(stream, Meta(overlay=target.overlay))
        incarnation = self._identity.incarnation(self._run, self._attempt, stream)
        name = StreamName(self._run, self._attempt, max(stream, 0), incarnation)
        rows = target.masks.mask_rows(table, rows)
        number = meta.highest.get(table, -1) + 1
        origin = Origin(name, world_size, "", ranks=_extent(rows) if stream == _SEVERAL else ())
        raw, footer = segment_bytes(origin, meta, table, number, rows, _WALL, final=final, keys=target.keys)
        if final and table == "events":
            self._ended.add(stream)
        meta.add_sealed(table, number, len(rows), footer.gaps, final=final)
        digest = hashlib.sha256(raw).hexdigest()
        target.ship(SealedFile(Path(), table, number, target.day, len(rows), digest, footer.key_id), name, raw)


def _extent(rows: Rows) -> tuple[int, ...]:
    """Return the lowest and the highest rank; empty without rows."""
    ranks = rows.columns[RANK].to_numpy() if len(rows) else NO_ROWS.slots
    return (int(ranks.min()), int(ranks.max())) if len(ranks) else ()


def _cut_by_dates(rows: Rows) -> list[Rows]:
    """Split rows into parts of at most `DATES_PER_SEGMENT` dates, nearly always one part."""
    _, firsts = np.unique(rows.mono_ns // _DAY_NS, return_index=True)
    if len(firsts) <= DATES_PER_SEGMENT:
        return [rows] if len(rows) else []
    end = int(np.sort(firsts)[DATES_PER_SEGMENT])
    return [_slice(rows, 0, end), *_cut_by_dates(_slice(rows, end, len(rows)))]


def _slice(rows: Rows, begin: int, end: int) -> Rows:
    columns = {name: column[begin:end] for name, column in rows.columns.items()}
    return Rows(rows.mono_ns[begin:end], np.arange(end - begin), columns, 0)


@lru_cache(maxsize=256)
def fields_of(table: str, overlay: Overlay | None = None) -> tuple[pa.Field, ...]:
    """Return a table's columns except those of the envelope, which importers do not fill."""
    schema = arrow_schema(contract(table, overlay), segment=True)
    return tuple(item for item in schema if item.name not in _ENVELOPE)


def typed_columns(table: str, rows: Sequence[Mapping[str, Any]], fields: Sequence[pa.Field]) -> Columns | None:
    """Convert rows to typed columns; None if a value does not fit its column, or a required value is missing."""
    names = set().union(*(row.keys() for row in rows))
    unknown = names - {item.name for item in fields}
    assert not unknown, f"{table} has no {sorted(unknown)}"
    columns: Columns = {}
    try:
        for item in fields:
            if item.name in names:
                values = [row.get(item.name) for row in rows]
                if not item.nullable and None in values:
                    return None
                columns[item.name] = to_array(values, item.type)
            elif not item.nullable:
                return None
    except (TypeError, ValueError, OverflowError):
        return None
    return columns


def join_batches(fields: Sequence[pa.Field], batches: list[tuple[Array, Columns, Array]]) -> Rows:
    """Concatenate batches, each of which has times, columns and ranks."""
    if not batches:
        return NO_ROWS
    times = np.concatenate([times for times, *_ in batches])
    columns: Columns = {RANK: numbers(np.concatenate([ranks for *_, ranks in batches]), pa.int32())}
    for item in fields:
        if any(item.name in batch for _, batch, _ in batches):
            columns[item.name] = pa.concat_arrays(
                [batch[item.name] if item.name in batch else pa.nulls(len(at), item.type) for at, batch, _ in batches]
            )
    return Rows(times, np.arange(len(times)), columns, 0)


def flag_of(value: float) -> str:
    """Return the flag of a value that is NaN or infinite."""
    return FLAGS[0] if math.isnan(value) else FLAGS[1] if value > 0 else FLAGS[2]


def narrow(value: float) -> float:
    """Round a value to a 32-bit float; values out of range become infinite."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))
