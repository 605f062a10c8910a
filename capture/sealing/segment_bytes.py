"""Segment bytes: encode rows and footer as Parquet, encrypted and signed if there are keys; pure functions."""

import dataclasses
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

import ranklake
from ranklake.capture.common.gaps import DAMAGED, OUT_OF_RANGE
from ranklake.capture.sealing.constants import constants_in
from ranklake.capture.sealing.keys import NO_KEYS, ActiveKeys
from ranklake.capture.sealing.rows import Rows
from ranklake.capture.sealing.tables import arrow_table
from ranklake.capture.spool.clock import Anchor, bracket
from ranklake.capture.spool.meta import Meta
from ranklake.capture.spool.stream_files import StreamName
from ranklake.segments.envelope import BLANK, encrypt, sign
from ranklake.segments.segment import METADATA_KEY, NotASegmentError, SegmentFooter, SegmentName

WRITER: Final = f"ranklake {ranklake.__version__}"
_LAST: Final = "events"  # sealed last: its final segment has the totals of all tables
_FEW_VALUES: Final = frozenset(
    {"metric", "kind", "value_flag", "edge_flag", "name", "stream", "non_finite", "event", "severity"}
)
_SMALL_BYTES: Final = 4096
"""Columns below this encoded size are compressed by LZ4. Setting up zstd for them costs a reader twice as much, and
saves few bytes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of sealed rows, as stated in the footer.

    Attributes
    ----------
    name, world_size
        The stream, and the number of ranks of the run.
    boot_id
        The kernel's id of the boot during recording; empty if unknown.
    ranks
        Lowest and highest rank if the rows belong to several ranks and have a column ``rank``; else empty.
    """

    name: StreamName
    world_size: int
    boot_id: str
    ranks: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)


def gaps_due(meta: Meta, table: str, rows: Rows) -> dict[str, int]:
    """Return the gaps for the footer of a table's next segment, by reason."""
    gaps = meta.pending(table)
    for reason, count in losses_in(rows).items():
        gaps[reason] = gaps.get(reason, 0) + count
    return gaps


def segment_bytes(
    origin: Origin,
    meta: Meta,
    table: str,
    segment: int,
    rows: Rows,
    straight: Sequence[Anchor],
    *,
    final: bool,
    keys: ActiveKeys = NO_KEYS,
) -> tuple[bytes, SegmentFooter]:
    """Return a segment's bytes and its footer. Nothing is written, and `meta` is not changed.

    Parameters
    ----------
    meta
        State of the stream so far; its pending gaps of the table go into the footer.
    straight
        Anchors around the times of the rows, from `ranklake.capture.spool.clock.straighten`.
    final
        Whether this is the table's last segment of the stream.
    keys
        Keys for encrypting and signing.
    """
    key, signer = keys
    contract = meta.contract(table)
    gaps = gaps_due(meta, table, rows)
    totals: dict[str, list[int]] = {}
    if final and table == _LAST and not meta.damaged:  # a damaged meta.frames has lower bounds instead of totals
        names = {*meta.rows, *meta.assigned, table}
        totals = {name: [meta.rows[name], meta.assigned[name]] for name in sorted(names)}
        totals[table] = [totals[table][0] + len(rows), totals[table][1] + sum(gaps.values())]
    first, last = (int(rows.mono_ns.min()), int(rows.mono_ns.max())) if len(rows) else (0, 0)
    used = bracket(straight, first, last) if len(rows) else []
    name = origin.name
    footer = SegmentFooter(
        table=table,
        contract_version=contract.version,
        run=name.run,
        attempt=name.attempt,
        rank=name.rank,
        world_size=origin.world_size,
        incarnation=name.incarnation,
        segment=segment,
        rows=len(rows),
        rows_before=meta.rows[table],
        gaps=gaps,
        gaps_before=meta.assigned[table],
        anchors=[list(anchor) for anchor in used],
        clock=_clock_of(meta, used),
        boot_id=origin.boot_id,
        final=final,
        totals=totals,
        writer=WRITER,
        key_id=key.id if key else "",
        signer=signer.id if signer else "",
        mac=BLANK if signer else "",
        ranks=list(origin.ranks),
        added_version=contract.added_version,
    )
    bond = name_of(name, segment, len(rows)).bond(table)
    columns = arrow_table(rows, contract, straight)
    footer = dataclasses.replace(footer, constants=constants_in(columns, contract))
    raw = parquet_bytes(columns, footer, times_repeat=rows.times_repeat)
    if signer is not None:
        raw, mac = sign(signer, raw, bond)
        footer = dataclasses.replace(footer, mac=mac)
    if key is not None:
        raw = encrypt(key, raw, bond)
    return raw, footer


def _clock_of(meta: Meta, used: Sequence[Anchor]) -> list[list[int | None]]:
    readings = [meta.clock[mono] for mono, _ in used if mono in meta.clock]
    return [list(astuple(reading)) for reading in readings[:1] + readings[1:][-1:]]


def name_of(stream: StreamName, segment: int, rows: int) -> SegmentName:
    """Return the segment's name without digest, to which its envelope and MAC are bound."""
    return SegmentName(stream.run, stream.attempt, stream.rank, stream.incarnation, segment, rows, sha256="")


def parquet_bytes(table: pa.Table, footer: SegmentFooter, *, times_repeat: bool = False) -> bytes:
    """Return a segment's Parquet bytes: deltas for integers and times, byte-split floats, zstd or LZ4, page checksums.

    Most segments are small: the values of one rank and minute. So the fixed cost of each column matters more than its
    values. Columns that are entirely NULL, which readers fill in, and constants of the footer are omitted. There are no
    statistics, because a segment is read once, as a whole.
    """
    constants = {name for values in footer.constants.values() for name in values}
    fields = [field for field in table.schema if field.name not in constants]
    table = table.select(
        [field.name for field in fields if not field.nullable or table[field.name].null_count < len(table)]
    )
    encodings: dict[str, str] = {}
    for field in table.schema:
        if pa.types.is_floating(field.type):
            encodings[field.name] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type):
            # In bit-packed deltas, zstd cannot find repeated sequences of times.
            plain = times_repeat and pa.types.is_timestamp(field.type)
            encodings[field.name] = "PLAIN" if plain else "DELTA_BINARY_PACKED"
    bare = pa.schema([pa.field(field.name, field.type, field.nullable) for field in table.schema])
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        bare,
        compression={name: _codec(table[name], few_values=name in _FEW_VALUES) for name in table.column_names},
        use_dictionary=[name for name in table.column_names if name in _FEW_VALUES],
        column_encoding=encodings,
        write_page_checksum=True,
        write_statistics=False,
        store_schema=False,  # it would add the columns' documentation to every small file
    ) as writer:
        writer.write_table(pa.Table.from_arrays(table.columns, schema=bare))
        writer.add_key_value_metadata({METADATA_KEY: footer.to_json()})
    return sink.getvalue()


def _codec(column: pa.ChunkedArray, *, few_values: bool) -> str:
    """Return a column's codec. Dictionary indices and integer deltas are estimated at one byte per value."""
    is_byte = few_values or pa.types.is_integer(column.type)
    return "lz4" if (len(column) if is_byte else column.nbytes) < _SMALL_BYTES else "zstd"


def read_footer(raw: bytes) -> SegmentFooter:
    """Read a segment's footer. Raises `NotASegmentError`."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(raw)).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise NotASegmentError("not readable as Parquet") from error
    return SegmentFooter.from_json(metadata.get(METADATA_KEY, b""))


def losses_in(rows: Rows) -> dict[str, int]:
    """Return the number of rows that reading a file left out, by reason."""
    losses = {DAMAGED: rows.damaged, OUT_OF_RANGE: rows.out_of_range}
    return {reason: count for reason, count in losses.items() if count}
