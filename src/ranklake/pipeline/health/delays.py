"""Delays of stages: since when something waits for each, by what lake and spool say, whoever runs the stages.

A stage is overdue where something has waited for it for longer than an hour, or as long as the operator says: a segment
for ingest; an ingest that stored rows for check and rollup. The catalog and upkeep have 48 times as long: for these, an
ingest, and files that should have gone.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.insight.catalog.sizes import live_files, table_size
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.vacuum import garbage
from ranklake.lake.plans.kinds import INGEST
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.tables.read import read
from ranklake.printable import counted

if TYPE_CHECKING:
    from ranklake.lake.ingest.status.backlog import Backlog
    from ranklake.lake.store.lake import Lake

DAILY: Final = 48
"""How many times as long as the others the stages may be behind that run once a day."""
OUTPUTS: Final = {"check": "quality_results", "rollup": "lineage", "catalog": "catalog_tables"}
"""Table that a stage writes whenever it does something."""
WORDS: Final = {"check": "to be checked", "rollup": "to be rolled up", "catalog": "to be in the catalog"}
_READ_BY_ROLLUPS: Final = pc.match_substring_regex(
    pc.field("tables"), f'"({"|".join(sorted({table for rollup in ROLLUPS for table in rollup.tables}))})":'
)
"""Whether an ingest stored rows of what rollups read; by the text, since the ledger has a row for each ingest ever."""
_OFTEN_WRITTEN: Final = (LEDGER, "segments", "audit", "quality_results", "lineage")


@dataclass(frozen=True, slots=True)
class StageDelay:
    """What waits for a stage.

    Attributes
    ----------
    stage
        Its name.
    waits
        What waits, in words; empty for nothing.
    since
        When the first of it came; None where nothing waits.
    most
        How long it may wait.
    last_ts
        When the stage last wrote something; None where nobody knows, or it never did.
    """

    stage: str
    waits: str
    since: datetime | None
    most: timedelta
    last_ts: datetime | None = None

    def age(self, now: datetime) -> timedelta:
        """How long it has waited; zero where nothing waits."""
        return max(now - self.since, timedelta()) if self.since is not None else timedelta()

    def is_overdue(self, now: datetime) -> bool:
        """Whether it has waited for too long."""
        return self.since is not None and self.age(now) > self.most


def ingest_delay(backlog: "Backlog", overdue_s: float) -> StageDelay:
    """Return how long the oldest segment waits in the spool that no plan has named."""
    words = f"{counted(backlog.segments, 'segment')} in the spool" if backlog.since is not None else ""
    return StageDelay("ingest", words, backlog.since, timedelta(seconds=overdue_s))


def output_delays(lake: "Lake", overdue_s: float, stages: Collection[str] = tuple(OUTPUTS)) -> Iterator[StageDelay]:
    """Yield for how long ingested rows have waited to be checked, rolled up, and in the catalog.

    That is since the first ingest that came after a stage's last rows. A stage for which nothing was ingested has none.
    """
    rows = read(lake.tables, contract(LEDGER), ["kind", "committed_ts", "tables", "rows_stored"])
    ingests = rows.filter((pc.field("kind") == INGEST.name) & (pc.field("rows_stored") > 0))
    for stage in stages:
        stored = (ingests.filter(_READ_BY_ROLLUPS) if stage == "rollup" else ingests)["committed_ts"]
        if not len(stored):
            continue
        output = OUTPUTS[stage]
        last = table_size(output, *live_files(lake.tables, output)).last_ts
        waiting = stored if last is None else stored.filter(pc.greater(stored, pa.scalar(last, stored.type)))
        words = f"rows of {counted(len(waiting), 'ingest')} {WORDS[stage]}" if len(waiting) else ""
        most = timedelta(seconds=overdue_s * (DAILY if stage == "catalog" else 1))
        yield StageDelay(stage, words, pc.min(waiting).as_py(), most, last)


def upkeep_delay(lake: "Lake", overdue_s: float, now: datetime | None = None) -> StageDelay:
    """Return whether files that nothing refers to any more should have gone long ago: upkeep alone deletes them.

    Of the tables that every plan writes, so that a look does not list the whole lake. Files tell that they are overdue,
    and not by how much: so they have waited for a second more than they may.
    """
    now = now or datetime.now(UTC)
    most = timedelta(seconds=overdue_s * DAILY)
    stray = next(garbage(lake, now=now - most, tables=_OFTEN_WRITTEN), None)
    if stray is None:
        return StageDelay("upkeep", "", None, most)
    return StageDelay("upkeep", f"{stray.path} should have gone", now - most - timedelta(seconds=1), most)
