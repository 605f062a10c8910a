"""Backlog: segments in the spool that no plan has named yet."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.ingestion_index import new_files, sort_out
from ranklake.lake.ingest.spool.listing_cache import ListingCache
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class Backlog:
    """What the next ingest has to bring in.

    Attributes
    ----------
    segments, rows, size_bytes
        Of the files that a plan may name; rows by their names: a file whose name is no segment's counts none.
    since
        When the oldest of them was written, as the store says; None where none waits, or the store does not say.
    left_alone
        Files that no plan may name: of a later contract, too large, or not readable.
    """

    segments: int
    rows: int
    size_bytes: int
    since: datetime | None
    left_alone: int


def read_backlog(lake: "Lake", spool: "Spool") -> Backlog:
    """Return what waits in a spool and its fallback spool. Raises `LakeUnreachableError`."""
    history = IngestionIndex(lake.store, delta_table(lake.store, "segments"))
    spooled = spool.waiting(history.recent_member_count, ListingCache.load(lake.store, spool.address))
    known = history.of(spooled)
    fit, held = sort_out(new_files(spooled, known), known, lake.config.ingest, lake.contracts())
    waiting = [claims[0] for claims in fit]
    return Backlog(
        segments=len(waiting),
        rows=sum(item.name.rows for item in waiting if item.name),
        size_bytes=sum(item.size_bytes for item in waiting),
        since=min((item.modified for item in waiting if item.modified is not None), default=None),
        left_alone=len(held) + len(spool.passed_over),
    )
