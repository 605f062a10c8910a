"""Probes of the stages: which of them is behind what was spooled or ingested, and for how long.

Only what the lake and the spool say counts, whoever runs the stages: by cron, systemd or Prefect.

A stage is overdue where something has waited for it for longer than an hour, or as long as the operator says: a segment
for ingest; an ingest that stored rows for check and rollup. The catalog and upkeep have 48 times as long: for these, an
ingest, and files that should have gone.
"""

import json
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, ok, skipped, warning
from ranklake.insight.catalog.sizes import live_files, table_size
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.ingestion_index import sort_out, unknown
from ranklake.lake.ingest.maintenance.vacuum import garbage
from ranklake.lake.ingest.spool.listing_cache import Rounds
from ranklake.lake.plans.kinds import INGEST
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.printable import counted

DAILY: Final = 48
"""How many times as long as the others the stages may be behind that run once a day."""
_OFTEN_WRITTEN: Final = (LEDGER, "segments", "audit", "quality_results", "lineage")
_SCHEDULE: Final = "'ranklake pipeline' from cron, systemd or Prefect does it; look why it does not run, or fails"


def ingest(patient: Patient) -> Iterator[Finding]:
    """Say how long the oldest segment waits in the spool that no plan has named; what is left alone does not wait."""
    context = Context.of(patient.config)
    if not context.has_spool:
        yield skipped("see spool")
        return
    lake, spool = context.open_lake(), context.spool()
    history = IngestionIndex(lake.store, delta_table(lake.store, "segments"))
    spooled = spool.listing(history.near, Rounds.load(lake.store, spool.address))
    known = history.of(spooled)
    fit, _ = sort_out(unknown(spooled, known), known, context.config.ingest, lake.contracts())
    waiting = [some[0] for some in fit]
    since = min((one.modified for one in waiting if one.modified is not None), default=None)
    if since is None:
        yield ok("nothing waits in the spool")
        return
    yield _judged(patient, since, f"{counted(len(waiting), 'segment')} in the spool")


def check(patient: Patient) -> Iterator[Finding]:
    """Say for how long ingested rows have waited to be checked."""
    yield _behind(patient, "quality_results", lambda _: True, "to be checked")


def rollup(patient: Patient) -> Iterator[Finding]:
    """Say for how long ingested rows of what rollups read have waited to be rolled up."""
    read_by = {table for one in ROLLUPS for table in one.tables}
    yield _behind(patient, "lineage", lambda tables: not read_by.isdisjoint(tables), "to be rolled up")


def catalog(patient: Patient) -> Iterator[Finding]:
    """Say for how long the catalog has not been renewed after an ingest."""
    yield _behind(patient, "catalog_tables", lambda _: True, "to be in the catalog", DAILY)


def upkeep(patient: Patient) -> Iterator[Finding]:
    """Check whether files that nothing refers to any more should have gone long ago: upkeep alone deletes them.

    Of the tables that every plan writes, so that a look does not list the whole lake.
    """
    lake = Context.of(patient.config).open_lake()
    late = timedelta(seconds=patient.overdue_s * DAILY)
    result = next(garbage(lake, now=datetime.now(UTC) - late, tables=_OFTEN_WRITTEN), None)
    if result is None:
        yield ok("no file should have been removed by now")
    else:
        message = f"overdue: {result.path} should have gone more than {late.total_seconds():,.0f} s ago"
        yield warning(message, "schedule 'ranklake upkeep' once a day; look why it does not run, or fails")


def _behind(
    patient: Patient, output: str, counts: Callable[[Collection[str]], bool], what: str, times: int = 1
) -> Finding:
    """Return how long the first ingest has waited that came after a stage's last rows."""
    lake = Context.of(patient.config).open_lake()
    rows = read(lake.tables, contract(LEDGER), ["kind", "committed_ts", "tables", "rows_stored"]).to_pylist()
    stored = [
        row["committed_ts"]
        for row in rows
        if row["kind"] == INGEST.name and row["rows_stored"] and counts(json.loads(row["tables"]))
    ]
    if not stored:
        return skipped("nothing was ingested yet")
    last = table_size(output, *live_files(lake.store, output)).last_ts
    waiting = [when for when in stored if last is None or when > last]
    if not waiting:
        return ok(f"nothing waits {what}")
    return _judged(patient, min(waiting), f"rows of {counted(len(waiting), 'ingest')} {what}", times)


def _judged(patient: Patient, since: datetime, what: str, times: int = 1) -> Finding:
    age, most = datetime.now(UTC) - since, timedelta(seconds=patient.overdue_s * times)
    message = f"{what}, since {age.total_seconds():,.0f} s"
    if age <= most:
        return ok(f"{message}: not overdue")
    return warning(f"overdue: {message}", _SCHEDULE)
