"""Finds refused segments that today's rules accept, and has the next ingest read them again.

Ingest skips a refused segment unless its file was written after the refusal
(`ranklake.lake.ingest.spool.packs.is_rewritten`). So `renew` sets the file's time to now, or writes the bytes back from
the lake's quarantine. The next ingest then checks the segment like any other one. This module stores no rows.

segments: rows with a reason ─▶ refused, no sound copy ─▶ bytes from quarantine/ ─▶ checks as of today ─▶ accepted
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.edge import row_texts
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.ingest_plan import candidates, plan_rows
from ranklake.lake.ingest.ingestion_index import known_processes, known_slots
from ranklake.lake.ingest.segment_reading import IncomingSegment, examine, recorded_table, segment_name
from ranklake.lake.ingest.spool.listing_cache import ListingCache
from ranklake.lake.ingest.spool.packs import SpoolFile, identities, pack_of
from ranklake.lake.store.writers import CONFLICT, REFUSED, Authenticator
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.segments.segment import SegmentName

_COLUMNS: Final = ("table", "sha256", "uri_name", "unreadable", "date")


@dataclass(frozen=True, slots=True)
class RefusedSegment:
    """A segment that was refused and would be ingested today.

    Attributes
    ----------
    path
        Path in the spool's file system where `renew` puts it. A former member of a pack gets a file of its own.
    day
        Date (UTC) of the plan that refused it.
    reason
        The reason in ``segments.unreadable``.
    """

    path: str
    table: str
    day: date
    reason: str
    name: "SegmentName"
    sha256: str


def passing(lake: "Lake", spool: "Spool", tables: Collection[str]) -> Iterator[RefusedSegment]:
    """Yield the refused segments of some tables that the operator's rules accept today, each once.

    Segments are left out if the lake no longer has their bytes, or if they contradict stored rows.
    """
    index = IngestionIndex(lake.store, delta_table(lake.store, "segments"))
    refused = _refused_rows(index.rows_about([]), tables)
    pairs = [pair for row in refused if (pair := _as_spooled(spool, row)) is not None]
    known = index.rows_about(item for item, _ in pairs)
    ingested, _ = identities(known)
    rules, _ = spool.writers.rules()
    authenticator = Authenticator(lake.config.encryption_key, tuple(rules.values()))
    seen = set[tuple[str, str]]()
    for item, segment in pairs:
        key = (item.table, item.sha256)
        if key in ingested or key in seen or not _would_ingest(lake, spool, known, item, segment, authenticator):
            continue
        seen.add(key)
        yield segment


def renew(store: "Store", spool: "Spool", segments: Collection[RefusedSegment]) -> None:
    """Have the next ingest check refused segments again. Raises what writing to the spool raises."""
    for segment in segments:
        spool.renew(segment.path, _bytes(store, segment))
    cache = ListingCache.load(store, spool.address)
    if cache.drop(spool.folder_of(segment.path) for segment in segments):
        cache.save(store)


def _refused_rows(known: pa.Table, tables: Collection[str]) -> list[dict[str, Any]]:
    mask = pc.and_(
        pc.fill_null(pc.starts_with(known["unreadable"], REFUSED), fill_value=False),
        pc.is_in(known["table"], value_set=pa.array(list(tables), known["table"].type)),
    )
    rows: list[dict[str, Any]] = known.filter(mask).select(_COLUMNS).to_pylist()
    return sorted(rows, key=lambda row: (row["table"], row["uri_name"], row["date"]))


def _as_spooled(spool: "Spool", row: dict[str, Any]) -> tuple[SpoolFile, RefusedSegment] | None:
    """Return a refused segment as the spool would list it now.

    None if its path is outside the spool or its name is no segment's.
    """
    name = segment_name(row["uri_name"])
    if name is None or spool.path_of(row["uri_name"]) == row["uri_name"]:
        return None
    pack = pack_of(row["uri_name"])
    day_folder = (pack or row["uri_name"]).rsplit("/", 2)[0]
    path = f"{day_folder}/{row['table']}/{name}" if pack else row["uri_name"]
    segment = RefusedSegment(path, row["table"], row["date"], row["unreadable"], name, row["sha256"])
    return SpoolFile(path, row["table"], 0, name, name.sha256, datetime.now(UTC)), segment


def _would_ingest(
    lake: "Lake",
    spool: "Spool",
    known: pa.Table,
    item: SpoolFile,
    refused: RefusedSegment,
    authenticator: Authenticator,
) -> bool:
    """Whether the next ingest would accept a segment, by its name and content and by the ingested segments."""
    (candidate,) = candidates(spool, [[item]])
    prefixes = [rule.prefix for rule in authenticator.rules]
    if candidate.refused or (candidate.prefix is not None and candidate.prefix not in prefixes):
        return False
    cuts = known_slots(known, [item])
    (row,) = plan_rows(spool, [candidate], cuts, known_processes(known, [item]), prefixes)
    if row["refused"] or (refused.reason == CONFLICT and cuts):
        return False
    try:
        raw = _bytes(lake.store, refused)
        segment = IncomingSegment(item.path, item.sha256, len(raw), item.name)
        target, limits = recorded_table(lake.contracts(), item.table), lake.config.ingest
        examine(raw, segment, target, row, authenticator, limits, is_known=True)
    except (RanklakeError, OSError, pa.ArrowException, MemoryError):  # on any error it stays refused
        return False
    return True


def _bytes(store: "Store", segment: RefusedSegment) -> bytes:
    """Read a segment's bytes from the quarantine. Raises `FileNotFoundError` if retention has deleted them."""
    return bytes(store.fs.cat_file(store.path("quarantine", segment.sha256)))


REJECTED_ROWS: Final = 50_000
"""Rows per call of `reject_rows`: a row takes some kilobytes of memory while it is converted to text."""


def reject_rows(
    rows: pa.Table,
    reasons: pa.Array,
    digests: Sequence[str | None],
    source: str,
    target: "Contract",
    plan: int,
    when: datetime,
) -> pa.Table:
    """Return rows of the table ``rejects``. Each contains the complete refused row as JSON, for a later replay.

    Parameters
    ----------
    rows, reasons, digests
        The refused rows; for each row, the reason and the digest of its segment, None if unknown.
    source
        The step that refused the rows, such as "ingest".
    target
        Contract of the rows' table.
    plan, when
        Number and time of the plan.
    """
    schema = arrow_schema(contract("rejects"))
    columns: dict[str, Any] = {
        name: rows[name] for name in ("run", "attempt", "rank", "incarnation", "segment", "slot")
    }
    columns["reason"] = reasons
    columns["row"] = row_texts(rows)
    columns["sha256"] = digests
    constants = {
        "plan": plan,
        "source": source,
        "table": target.table,
        "ts": when,
        "date": when.date(),
    }
    arrays = []
    for column in schema:
        if column.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[column.name], column.type), rows.num_rows))
        elif column.name in columns:
            values = columns[column.name]
            arrays.append(values.cast(column.type) if hasattr(values, "cast") else pa.array(values, column.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.type))
    return pa.table(arrays, schema=schema)
