"""Probes of stages: overdue stages, failing checks, altered artifacts, missing rows.

A stage may run in time and still give wrong results.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from ranklake.artifacts import last_verdicts
from ranklake.capture.common.gaps import AFTER_CLOSE
from ranklake.context import Context
from ranklake.doctor.examination import Finding, Patient, alerted, failed, ok, skipped, warning
from ranklake.lake.contracts.model import ALARMS
from ranklake.lake.ingest.status.backlog import read_backlog
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.query.sql import query
from ranklake.pipeline.health.collectors import WORDS, StageDelay, ingest_delay, output_delays, upkeep_delay
from ranklake.printable import counted
from ranklake.quality.results import last_checks
from ranklake.segments.segment import SAMPLED_OUT

_SCHEDULE: Final = "'ranklake pipeline' from cron, systemd or Prefect does it; look why it does not run, or fails"


def ingest(patient: Patient) -> Iterator[Finding]:
    """Report how long the oldest segment without a plan has waited in the spool; skipped files do not count."""
    context = Context.of(patient.config)
    if not context.has_spool:
        yield skipped("see spool")
        return
    delay = ingest_delay(read_backlog(context.open_lake(), context.spool()), patient.overdue_s)
    yield _judge(delay) if delay.since is not None else ok("nothing waits in the spool")


def check(patient: Patient) -> Iterator[Finding]:
    """Report how long ingested rows have waited for a check."""
    yield _lag_s(patient, "check")


def rollup(patient: Patient) -> Iterator[Finding]:
    """Report how long ingested rows have waited for the rollups that read them."""
    yield _lag_s(patient, "rollup")


def catalog(patient: Patient) -> Iterator[Finding]:
    """Report how long the catalog has waited for a refresh after an ingest."""
    yield _lag_s(patient, "catalog")


def upkeep(patient: Patient) -> Iterator[Finding]:
    """Check for unreferenced files that upkeep should have deleted long ago."""
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


_NAMED: Final = 3
_DAYS: Final = 7
"""Days for which unrecorded rows are reported."""
_LOST_RATIO: Final = 0.01
"""Share of a run's rows in a table that may be lost before it is reported."""
_NOT_LOST: Final = (SAMPLED_OUT, AFTER_CLOSE)
"""Reasons of intentional gaps: sampling, or a closed run."""
_LEFT_OUT: Final = "".join(
    f""" - coalesce(CAST(regexp_match(gaps, '"{reason}": ([0-9]+)')[1] AS BIGINT), 0)""" for reason in _NOT_LOST
)
_LOST: Final = f"""
WITH segments_of_late AS (
  SELECT run, "table", rows, gaps,
    gap_rows{_LEFT_OUT} AS gap_rows
  FROM segments
  WHERE unreadable IS NULL AND date >= current_date() - INTERVAL '{_DAYS} days'
), runs_of_late AS (
  SELECT run, "table", CAST(sum(rows) AS DOUBLE) AS stored, CAST(sum(gap_rows) AS DOUBLE) AS lost,
    first_value(gaps ORDER BY gap_rows DESC) AS gaps
  FROM segments_of_late
  GROUP BY run, "table"
)
SELECT run, "table", lost, stored + lost AS recorded, gaps FROM runs_of_late
WHERE lost > {_LOST_RATIO} * (stored + lost)
ORDER BY lost / (stored + lost) DESC, run, "table" """  # noqa: S608 - constants


def checks(patient: Patient) -> Iterator[Finding]:
    """Report checks of existing rows that fail or could not be computed."""
    lake = Context.of(patient.config).open_lake()
    known = last_checks(lake, list(lake.contracts()))
    results = [result for last in known.values() for result in last.open]
    for status, words in (("failed", "fail"), ("errored", "could not be computed")):
        alarms = [
            result
            for result in results
            if result.status == status and (result.severity in ALARMS or status == "errored")
        ]
        if alarms:
            alarms.sort(key=lambda result: (result.severity != ALARMS[0], -(result.rows_failed or 0)))
            names = _first(f"{result.table} {result.partition_date} {result.check_id}" for result in alarms)
            finding = failed(f"{counted(len(alarms), 'check')} {words}: {names}", "see 'ranklake check', worst first")
            yield alerted(finding) if all(result.severity in ALARMS for result in alarms) else finding
    lower = [result for result in results if result.severity not in ALARMS and result.status == "failed"]
    if len(lower) == len(results):
        more = f"; {counted(len(lower), 'check')} of lower severity fail" if lower else ""
        yield (
            ok(f"none of severity error fails on {counted(len(known), 'partition')}{more}")
            if known
            else skipped("nothing was checked yet", "'ranklake check' does it, as does the pipeline")
        )


def artifacts(patient: Patient) -> Iterator[Finding]:
    """Report artifacts whose bytes differed from the record at their last verification."""
    known = last_verdicts(Context.of(patient.config).open_lake())
    altered = [artifact for artifact in known if artifact["verified"] is False]
    if altered:
        names = _first(f"{artifact['name']} of {artifact['run']} ({artifact['verdict']})" for artifact in altered)
        yield failed(
            f"{counted(len(altered), 'artifact')} not as recorded: {names}",
            "restore it from a backup; 'ranklake verify-artifact NAME --run RUN' looks again",
        )
    never = sum(artifact["verified"] is None for artifact in known)
    if never:
        yield skipped(
            f"{counted(never, 'artifact')} of {len(known):,} never verified", "'ranklake verify-artifact --all' does it"
        )
    if not altered and not never:
        yield ok(f"{counted(len(known), 'artifact')} as recorded") if known else skipped("none is recorded")


def rows(patient: Patient) -> Iterator[Finding]:
    """Report tables with inconsistent row counts, and unreadable segments in quarantine."""
    lake = Context.of(patient.config).open_lake()
    is_sound = True
    for item in balance(lake):
        for fault in item.faults:
            is_sound = False
            yield failed(f"{item.table}: {fault}", "'ranklake status' shows all, and docs/operate.md what to do")
        for reason, count in item.unreadable.items():
            is_sound = False
            message = f"{item.table}: {counted(count, 'segment')} in quarantine could not be read: {reason}"
            yield alerted(failed(message, "send it again from its node, or set it aside by 'ranklake disown'"))
    if is_sound:
        yield ok("those of all tables add up, and all segments could be read")


def lost_rows(patient: Patient) -> Iterator[Finding]:
    """Report recent runs with unrecorded rows, such as after a full disk."""
    result = query(Context.of(patient.config).open_lake(), _LOST).to_pylist()
    for row in result[:_NAMED]:
        yield warning(
            f"run {row['run']}: {row['lost'] / row['recorded']:.0%} of its rows of {row['table']} were not recorded"
            f"{_reasons(row['gaps'])}",
            "find out why on its node, by 'ranklake doctor' there; such rows are lost",
        )
    if len(result) > _NAMED:
        yield warning(f"{len(result) - _NAMED:,} more tables of runs are like that", "the table segments has all")
    if not result:
        yield ok(f"no run of the last {_DAYS} days lost more than {_LOST_RATIO:.0%} of its rows")


def _reasons(gaps: str | None) -> str:
    reasons = json.loads(gaps) if gaps else {}
    names = [name for name in reasons if name not in _NOT_LOST] if isinstance(reasons, dict) else []
    return f" ({', '.join(names[:_NAMED])})" if names else ""


def _first(names: Iterator[str]) -> str:
    texts = list(names)
    more = f" and {len(texts) - _NAMED:,} more" if len(texts) > _NAMED else ""
    return f"{'; '.join(texts[:_NAMED])}{more}"
