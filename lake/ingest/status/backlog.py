"""The backlog: segments in the spool that no plan has named yet."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.ingestion_index import new_files, select_readable
from ranklake.lake.ingest.spool.listing_cache import ListingCache
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class Backlog:
    """Size and age of the files that the next ingest will read.

    Attributes
    ----------
    segments, rows, size_bytes
        Number of files that a plan may name, and their rows and bytes. Rows are taken from file names; a file that is
        no segment counts 0 rows.
    since
        When the oldest of these files was written, from the store; None if there are none or the store has no times.
    left_alone
        Number of files that no plan may name: newer than the contract, too large, or unreadable.
    """

    segments: int
    rows: int
    size_bytes: int
    since: datetime | None
    left_alone: int


def read_backlog(lake: "Lake", spool: "Spool") -> Backlog:
    """Return the backlog of a spool and its fallback spool. Raises `LakeUnreachableError`."""
    index = IngestionIndex(lake.store, delta_table(lake.store, "segments"))
    spooled = spool.waiting(index.recent_member_count, ListingCache.load(lake.store, spool.address))
    known = index.rows_about(spooled)
    readable, held = select_readable(new_files(spooled, known), known, lake.config.ingest, lake.contracts())
    waiting = [copies[0] for copies in readable]
    return Backlog(
        segments=len(waiting),
        rows=sum(item.name.rows for item in waiting if item.name),
        size_bytes=sum(item.size_bytes for item in waiting),
        since=min((item.modified for item in waiting if item.modified is not None), default=None),
        left_alone=len(held) + len(spool.passed_over),
    )
