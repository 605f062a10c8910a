"""Collectors, each of a part of the pipeline's health; errors are raised."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.capture.spool.locations import planned_root
from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.machine import existing_parent, local_folders
from ranklake.doctor.scheduling import api_url, schedules
from ranklake.insight.catalog.sizes import live_files, table_size
from ranklake.insight.overview.alerts import alert_counts
from ranklake.insight.overview.pipeline import (
    check_cost,
    ingest_lag,
    ingest_totals,
    newest_backups,
    stage_totals,
    table_sizes,
    unread_segments,
    unsound_condition,
)
from ranklake.insight.runs.asking import Ask, asking
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.vacuum import garbage
from ranklake.lake.ingest.status.backlog import Backlog, read_backlog
from ranklake.lake.ingest.status.reconciliation import lost_tables
from ranklake.lake.plans.kinds import INGEST
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.rollups.incidents import SEVERITIES
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.tables.read import read
from ranklake.pipeline.health.declaration import Sample
from ranklake.printable import counted
from ranklake.quality.results import last_checks
from ranklake.redaction.redact import redact_uri
from ranklake.retention.grants.grant import register
from ranklake.retention.report.facts import KINDS, waiting

DAILY: Final = 48
"""Factor on the allowed delay of daily stages."""
OUTPUTS: Final = {"check": "quality_results", "rollup": "lineage", "catalog": "catalog_tables"}
"""Table that each stage writes in every run with work."""
WORDS: Final = {"check": "to be checked", "rollup": "to be rolled up", "catalog": "to be in the catalog"}
_READ_BY_ROLLUPS: Final = pc.match_substring_regex(
    pc.field("tables"), f'"({"|".join(sorted({table for rollup in ROLLUPS for table in rollup.tables}))})":'
)
"""Condition for ingests with rows for rollups; on the text, since the ledger has a row for every ingest."""
_OFTEN_WRITTEN: Final = (LEDGER, "segments", "audit", "quality_results", "lineage")


@dataclass(frozen=True, slots=True)
class StageDelay:
    """Input that waits for a stage.

    Attributes
    ----------
    stage
        Its name.
    waits
        The input as text; empty for none.
    since
        When the first of it arrived; None if none waits.
    most
        How long it may wait.
    last_ts
        When the stage last wrote; None if unknown or never.
    """

    stage: str
    waits: str
    since: datetime | None
    most: timedelta
    last_ts: datetime | None = None

    def age(self, now: datetime) -> timedelta:
        """How long it has waited; zero if none waits."""
        return max(now - self.since, timedelta()) if self.since is not None else timedelta()

    def is_overdue(self, now: datetime) -> bool:
        """Whether it has waited for too long."""
        return self.since is not None and self.age(now) > self.most


def ingest_delay(backlog: "Backlog", overdue_s: float) -> StageDelay:
    """Return how long the oldest segment without a plan has waited in the spool."""
    words = f"{counted(backlog.segments, 'segment')} in the spool" if backlog.since is not None else ""
    return StageDelay("ingest", words, backlog.since, timedelta(seconds=overdue_s))


def output_delays(lake: "Lake", overdue_s: float, stages: Collection[str] = tuple(OUTPUTS)) -> Iterator[StageDelay]:
    """Yield how long ingested rows have waited for check, rollup and catalog.

    The wait begins with the first ingest after a stage's last run. Stages without new rows are left out.
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
    """Return whether upkeep is overdue, by unreferenced files that it should have deleted.

    Only tables that every plan writes are listed, not the whole lake. Files show only that upkeep is overdue, not by
    how much, so the wait is the limit plus one second.
    """
    now = now or datetime.now(UTC)
    most = timedelta(seconds=overdue_s * DAILY)
    stray = next(garbage(lake, now=now - most, tables=_OFTEN_WRITTEN), None)
    if stray is None:
        return StageDelay("upkeep", "", None, most)
    return StageDelay("upkeep", f"{stray.path} should have gone", now - most - timedelta(seconds=1), most)


_FATES: Final = ("stored", "rejected", "duplicate")
_PERCENTILES: Final = {"50": "p50_s", "90": "p90_s", "99": "p99_s"}
_REVIEW: Final = "grant review"
"""Break-glass grants that wait for a review."""
_CHECK_SEVERITIES: Final = ("warning", "error", "critical")


@dataclass(slots=True)
class Look:
    """One collection of the pipeline's health.

    Attributes
    ----------
    context
        Lake, spool and configuration.
    now
        Time to which ages are computed.
    home
        Folder of ``ranklake up``.
    """

    context: Context
    now: datetime
    home: Path
    _lake: Lake | None = field(default=None, repr=False)
    _backlog: Backlog | None = field(default=None, repr=False)
    _ask: Ask | None = field(default=None, repr=False)
    _lost: list[str] | None = field(default=None, repr=False)

    @property
    def overdue_s(self) -> float:
        """How long input may wait for a stage."""
        return float(self.context.config.health.overdue_s)

    @property
    def lake(self) -> Lake:
        """The lake, opened once. Raises what `Context.open_lake` does."""
        if self._lake is None:
            self._lake = self.context.open_lake()
        return self._lake

    @property
    def ask(self) -> Ask:
        """Answers queries of the lake; each table is opened once."""
        if self._ask is None:
            self._ask = asking(self.lake)
        return self._ask

    @property
    def backlog(self) -> Backlog:
        """Segments in the spool, listed once. Raises `LakeUnreachableError`, and `ConfigError` without a spool."""
        if self._backlog is None:
            self._backlog = read_backlog(self.lake, self.context.spool())
        return self._backlog

    @property
    def lost(self) -> list[str]:
        """Lost tables, cached. Raises as `lake`."""
        if self._lost is None:
            self._lost = lost_tables(self.lake)
        return self._lost

    def patient(self) -> Patient:
        """Return the input of the doctor's probes."""
        return Patient(self.context.config, home=self.home)

    def delays(self) -> Iterator[StageDelay]:
        """Yield the waiting input of each stage. Raises as `lake` and `backlog` do."""
        if self.context.has_spool:
            yield ingest_delay(self.backlog, self.overdue_s)
        yield from output_delays(self.lake, self.overdue_s)
        yield upkeep_delay(self.lake, self.overdue_s, self.now)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def lake(look: Look) -> Iterator[Sample]:
    """Yield whether the lake can be opened."""
    assert look.lake
    yield Sample("lake_up", 1)


def logs(look: Look) -> Iterator[Sample]:
    """Yield the number of lost tables. Raises `LakeError` if there are any."""
    yield Sample("tables_lost", len(look.lost))
    refuse_lost(look, look.lost)


def refuse_lost(look: Look, names: Collection[str]) -> None:
    """Raise `LakeError` if one of some tables was lost: it would count as empty."""
    lost = sorted(set(names) & set(look.lost)) if names else []
    if lost:
        raise LakeError(f"{', '.join(lost)}: the log is gone, or the first commit is under way", where="tables")


def ingests(look: Look) -> Iterator[Sample]:
    """Yield totals of ingests, and their lag."""
    row = ingest_totals(look.ask, look.now).first_row
    yield Sample("ingest_plans_total", row["plans"])
    yield Sample("ingest_segments_total", row["segments"] or 0)
    yield from (Sample("ingest_rows_total", row[fate] or 0, {"fate": fate}) for fate in _FATES)
    yield Sample("ingest_duration_seconds_total", row["duration_s"] or 0)
    yield Sample("ingest_last_commit_timestamp_seconds", _seconds(row["last_ts"]), reason="nothing was ingested yet")
    lag = ingest_lag(look.ask, look.now, row["first_plan"], "table")
    if not lag.rows:
        reason = lag.reason or "what came in the last hour was imported, or not read"
        yield Sample("ingest_lag_seconds", None, reason=reason)
    for of_table in lag.rows:
        for percentile, column in _PERCENTILES.items():
            label = {"table": str(of_table["table"]), "percentile": percentile}
            yield Sample("ingest_lag_seconds", of_table[column], label)
    unread = unread_segments(look.ask, look.now, unsound_condition(look.lake)).first_row
    yield Sample("segments_unreadable", unread["unreadable"])
    yield Sample("segments_refused", unread["refused"])


def spool(look: Look) -> Iterator[Sample]:
    """Yield the spool's backlog."""
    backlog = look.backlog
    yield Sample("spool_backlog_segments", backlog.segments)
    yield Sample("spool_backlog_rows", backlog.rows)
    yield Sample("spool_backlog_bytes", backlog.size_bytes)
    if backlog.segments and backlog.since is None:
        yield Sample("spool_backlog_age_seconds", None, reason="the store does not say when files were written")
    else:
        age_s = 0.0 if backlog.since is None else (look.now - backlog.since).total_seconds()
        yield Sample("spool_backlog_age_seconds", max(age_s, 0.0))
    yield Sample("spool_left_alone_files", backlog.left_alone)


def stages(look: Look) -> Iterator[Sample]:
    """Yield runs and costs of stages, and their waiting input."""
    for row in stage_totals(look.ask).rows:
        label = {"stage": str(row["stage"]), "outcome": str(row["outcome"])}
        yield Sample("stage_runs_total", row["runs"], label)
        yield Sample("stage_duration_seconds_total", row["duration_s"], label)
        yield Sample("stage_cpu_seconds_total", row["cpu_s"], label, "its workers are on a cluster elsewhere")
        yield from _stage_requests(row, label)
    yield from waiting_stages(look)


def _stage_requests(row: Mapping[str, Any], label: Mapping[str, str]) -> Iterator[Sample]:
    """Yield a stage's requests to stores; none if they are not counted, as for a lake in a folder."""
    if row["store_gets"] is None:
        return
    for kind in ("gets", "puts", "lists", "deletes"):
        yield Sample("stage_store_requests_total", row[f"store_{kind}"], {**label, "kind": kind})
    yield Sample("stage_store_errors_total", row["store_errors"], label)
    yield Sample("stage_store_retries_total", row["store_retries"], label)
    for direction in ("read", "written"):
        yield Sample("stage_store_bytes_total", row[f"store_{direction}_bytes"], {**label, "direction": direction})


def waiting_stages(look: Look) -> Iterator[Sample]:
    """Yield how long input has waited for each stage."""
    for delay in look.delays():
        label = {"stage": delay.stage}
        yield Sample("stage_waiting_seconds", delay.age(look.now).total_seconds(), label)
        yield Sample("stage_overdue", float(delay.is_overdue(look.now)), label)
        if delay.last_ts is not None:
            yield Sample("stage_last_write_timestamp_seconds", _seconds(delay.last_ts), label)


def tables(look: Look) -> Iterator[Sample]:
    """Yield sizes and growth of tables, from the catalog's last refresh, without reading logs."""
    rows = table_sizes(look.ask).rows
    if not rows:
        yield Sample("table_rows", None, reason="the catalog was never renewed: 'ranklake pipeline' does it")
    for row in rows:
        label = {"table": str(row["table"])}
        yield Sample("table_rows", row["rows"], label)
        yield Sample("table_bytes", row["stored_bytes"], label)
        yield Sample("table_files", row["files"], label)
        yield Sample(
            "table_daily_growth_bytes", row["daily_growth_bytes"], label, reason="it has no rows of days until now"
        )


def checks(look: Look) -> Iterator[Sample]:
    """Yield failing checks, and the cost of checks."""
    unsound = {(severity, status): 0 for severity in _CHECK_SEVERITIES for status in ("failed", "errored")}
    for last in last_checks(look.lake, list(look.lake.contracts())).values():
        for result in last.open:
            unsound[result.severity, result.status] = unsound.get((result.severity, result.status), 0) + 1
    for (severity, status), count in unsound.items():
        yield Sample("checks_unsound", count, {"severity": severity, "status": status})
    row = check_cost(look.ask).first_row
    yield Sample("checks_total", row["checks"])
    yield Sample("checks_duration_seconds_total", row["duration_s"] or 0)


def alerts(look: Look) -> Iterator[Sample]:
    """Yield the number of firing alerts, and of messages by outcome."""
    rows = {row["severity"]: row for row in alert_counts(look.ask).rows}
    for severity in (*SEVERITIES, *(name for name in rows if name not in SEVERITIES)):
        yield Sample("alerts_firing", rows[severity]["firing"] if severity in rows else 0, {"severity": severity})
    for outcome, column in (("delivered", "messages"), ("lost", "failures")):
        yield Sample("notifications_total", sum(row[column] for row in rows.values()), {"outcome": outcome})


def backups(look: Look) -> Iterator[Sample]:
    """Yield the age of the newest backup in each configured place, from the lake's records."""
    known = {row["place"]: row["as_of_ts"] for row in newest_backups(look.ask).rows}
    for uri in look.context.lake_config.backup.to:
        place = redact_uri(uri)
        age_s = max((look.now - known[place]).total_seconds(), 0.0) if place in known else None
        yield Sample(
            "backup_age_seconds", age_s, {"place": place}, "" if place in known else "no backup was made there"
        )


def disks(look: Look) -> Iterator[Sample]:
    """Yield free space on the local disks of lake, spool, ranks and Prefect."""
    config = look.context.config
    folders = {"local_spool": planned_root(config.spool.local), **local_folders(config)}
    if (home := look.home.expanduser()).is_dir():
        folders["home"] = home
    for place, folder in sorted(folders.items()):
        disk = os.statvfs(existing_parent(folder))
        yield Sample("disk_free_bytes", disk.f_bavail * disk.f_frsize, {"place": place})
        yield Sample("disk_size_bytes", disk.f_blocks * disk.f_frsize, {"place": place})


def people(look: Look) -> Iterator[Sample]:
    """Yield proposals that wait for a person."""
    since: dict[str, list[datetime | None]] = {noun: [] for noun in (*(kind.noun for kind in KINDS), _REVIEW)}
    for proposal in waiting(look.lake):
        since[proposal.noun].append(proposal.since)
    since[_REVIEW] = [grant.proposed for grant in register(look.lake).values() if grant.awaits_review()]
    for kind, moments in since.items():
        known = [moment for moment in moments if moment is not None]
        age_s = (look.now - min(known)).total_seconds() if known else 0.0
        yield Sample("proposals_waiting", len(moments), {"kind": kind})
        yield Sample("proposals_waiting_seconds", max(age_s, 0.0), {"kind": kind})


def prefect(look: Look) -> Iterator[Sample]:
    """Yield whether the Prefect server answers, whether its pools are polled, and results of last runs."""
    url = api_url(look.patient())
    if not url:
        yield Sample("prefect_up", None, reason="PREFECT_API_URL is not set, and no 'ranklake up' runs here")
        return
    try:
        state = schedules(url)
    except (OSError, ValueError):
        yield Sample("prefect_up", 0)
        raise
    yield Sample("prefect_up", 1)
    for pool, is_polled in state.is_polled.items():
        yield Sample("pool_polled", float(is_polled), {"pool": pool})
    for run in state.last_runs:
        label = {"deployment": run.deployment}
        yield Sample("deployment_failed", float(bool(run.failure)), label, run.failure)
        yield Sample("deployment_last_run_timestamp_seconds", _seconds(run.ended), label, "the server does not say")


Collector = Callable[[Look], Iterator[Sample]]
COLLECTORS: Final[tuple[Collector, ...]] = (
    *(disks, prefect, lake, logs, spool, ingests, stages, tables, checks, people, alerts, backups),
)
"""Collectors without a lake come first, so that they run even if the lake is unreachable."""
NEEDS_LAKE: Final[Mapping[Any, Collection[str]]] = {
    logs: (),
    spool: ("segments",),
    ingests: (LEDGER, "segments"),
    stages: (LEDGER, "stage_runs", *OUTPUTS.values()),
    tables: ("catalog_tables",),
    checks: ("quality_results",),
    people: (LEDGER, "audit"),
    alerts: ("alerts",),
    backups: ("backups",),
}
"""Tables that collectors read; if one is lost, the collector fails."""
