"""Probes of the stages: which of them is behind what was spooled or ingested, and for how long.

Only what the lake and the spool say counts, whoever runs the stages: by cron, systemd or Prefect
(`ranklake.pipeline.health.delays`).
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from ranklake.context import Context
from ranklake.doctor.examination import Finding, Patient, ok, skipped, warning
from ranklake.lake.ingest.status.backlog import read_backlog
from ranklake.pipeline.health.delays import WORDS, StageDelay, ingest_delay, output_delays, upkeep_delay

_SCHEDULE: Final = "'ranklake pipeline' from cron, systemd or Prefect does it; look why it does not run, or fails"


def ingest(patient: Patient) -> Iterator[Finding]:
    """Say how long the oldest segment waits in the spool that no plan has named; what is left alone does not wait."""
    context = Context.of(patient.config)
    if not context.has_spool:
        yield skipped("see spool")
        return
    delay = ingest_delay(read_backlog(context.open_lake(), context.spool()), patient.overdue_s)
    yield _judge(delay) if delay.since is not None else ok("nothing waits in the spool")


def check(patient: Patient) -> Iterator[Finding]:
    """Say for how long ingested rows have waited to be checked."""
    yield _lag_s(patient, "check")


def rollup(patient: Patient) -> Iterator[Finding]:
    """Say for how long ingested rows of what rollups read have waited to be rolled up."""
    yield _lag_s(patient, "rollup")


def catalog(patient: Patient) -> Iterator[Finding]:
    """Say for how long the catalog has not been renewed after an ingest."""
    yield _lag_s(patient, "catalog")


def upkeep(patient: Patient) -> Iterator[Finding]:
    """Check whether files that nothing refers to any more should have gone long ago: upkeep alone deletes them."""
    delay = upkeep_delay(Context.of(patient.config).open_lake(), patient.overdue_s)
    if delay.since is None:
        yield ok("no file should have been removed by now")
    else:
        message = f"overdue: {delay.waits} more than {delay.most.total_seconds():,.0f} s ago"
        yield warning(message, "schedule 'ranklake upkeep' once a day; look why it does not run, or fails")


def _lag_s(patient: Patient, stage: str) -> Finding:
    delays = list(output_delays(Context.of(patient.config).open_lake(), patient.overdue_s, (stage,)))
    if not delays:
        return skipped("nothing was ingested yet")
    return _judge(delays[0]) if delays[0].since is not None else ok(f"nothing waits {WORDS[stage]}")


def _judge(delay: StageDelay) -> Finding:
    now = datetime.now(UTC)
    message = f"{delay.waits}, since {delay.age(now).total_seconds():,.0f} s"
    if not delay.is_overdue(now):
        return ok(f"{message}: not overdue")
    return warning(f"overdue: {message}", _SCHEDULE)
