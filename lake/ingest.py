"""Ingest: new segments of the spool become rows of the tables, exactly once."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ranklake.lake import ingest_plan
from ranklake.lake.contracts.load import contract
from ranklake.lake.driver import drive
from ranklake.lake.read import read
from ranklake.lake.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.plan import Progress
    from ranklake.lake.spool import Spool
    from ranklake.lake.store import Lake
    from ranklake.lake.workers import Workers


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one call of `ingest` did.

    Attributes
    ----------
    plans
        Numbers of the plans this call proposed and finished; empty if the spool held nothing new.
    segments, unreadable
        Segments in them, and how many of those could not be read.
    rows_stored, rows_rejected, rows_duplicate
        Rows by fate.
    purged
        Old segments removed from the spool.
    elapsed_s
        Wall seconds.
    """

    plans: list[int]
    segments: int
    unreadable: int
    rows_stored: int
    rows_rejected: int
    rows_duplicate: int
    purged: int
    elapsed_s: float


def ingest(
    lake: "Lake", spool: "Spool", workers: "Workers", *, keep_days: int = 7, progress: "Progress | None" = None
) -> Ingested:
    """Bring everything new in the spool into the lake.

    Parameters
    ----------
    keep_days
        Segments stay in the spool that long after their plan is finished, for replay.
    """
    started = time.monotonic()
    plans, rows = [], []
    while True:
        driven = drive(lake, lambda number: ingest_plan.compose(lake, spool, number), workers, progress)
        if driven is None:
            break
        plans.append(driven.plan.number)
        rows += driven.outcomes
    purged = 0
    if delta_table(lake, "segments") is not None:
        kept = read(lake, contract("segments"), ["uri_name", "date"])
        purged = spool.purge(kept, datetime.now(UTC).date(), keep_days)
    return Ingested(
        plans=plans,
        segments=len(rows),
        unreadable=sum(row["unreadable"] is not None for row in rows),
        rows_stored=sum(row["rows_stored"] for row in rows),
        rows_rejected=sum(row["rows_rejected"] for row in rows),
        rows_duplicate=sum(row["rows_duplicate"] for row in rows),
        purged=purged,
        elapsed_s=time.monotonic() - started,
    )
