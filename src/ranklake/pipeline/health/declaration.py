"""The metrics of the pipeline's health, and the type of their samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

PREFIX: Final = "ranklake_"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as Prometheus knows it.

    Attributes
    ----------
    name
        Without `PREFIX`; its end is the unit, or ``_total`` of a counter.
    doc
        Its description, in a sentence.
    labels
        Names of labels. No label holds a run, person or node, so that the number of series stays small.
    """

    name: str
    doc: str
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Its name in Prometheus."""
        return f"{PREFIX}{self.name}"

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """Its type: a counter never falls."""
        return "counter" if self.name.endswith("_total") else "gauge"


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric.

    Attributes
    ----------
    metric
        Name without the prefix.
    value
        None if unknown.
    labels
        Values by name.
    reason
        Why the value is unknown, or why a collector failed; else empty.
    """

    metric: str
    value: float | None
    labels: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


METRICS: Final = (
    Metric("collector_success", "1 if a collector's metrics could be computed, else 0.", ("collector",)),
    Metric("collector_duration_seconds", "How long a collector took.", ("collector",)),
    Metric("look_timestamp_seconds", "When `ranklake up` last computed its metrics."),
    Metric("child_up", "1 while the server or the worker of `ranklake up` runs and is not stopped.", ("child",)),
    Metric("child_restarts_total", "Restarts of a child process by `ranklake up`.", ("child",)),
    Metric("lake_up", "1 if the lake can be opened."),
    Metric("tables_lost", "Tables without a Delta log, though files exist or the ledger counts rows."),
    Metric("ingest_plans_total", "Ingests that were committed."),
    Metric("ingest_segments_total", "Segments that were ingested."),
    Metric("ingest_rows_total", "Rows of ingests by fate: stored, rejected, duplicate.", ("fate",)),
    Metric("ingest_duration_seconds_total", "Time from the plans of ingests to their last commit."),
    Metric("ingest_last_commit_timestamp_seconds", "When the last ingest with new segments was committed."),
    Metric(
        "ingest_lag_seconds",
        "Time from a segment's last row to the commit that made it queryable: percentiles over segments of an hour, "
        "without imported ones. Tables without such segments are left out.",
        ("table", "percentile"),
    ),
    Metric("segments_unreadable", "Segments of the last seven days that could not be read and are not repaired."),
    Metric("segments_refused", "Segments of the last seven days that a rule refused, and still refuses."),
    Metric("spool_backlog_segments", "Segments that wait in the spool."),
    Metric("spool_backlog_rows", "Rows of the segments that wait in the spool, by the counts in their names."),
    Metric("spool_backlog_bytes", "Size of the segments that wait in the spool."),
    Metric("spool_backlog_age_seconds", "Age of the oldest segment that waits in the spool; 0 if none waits."),
    Metric("spool_left_alone_files", "Files of the spool that ingest skips: of a later version, or too large."),
    Metric("stage_waiting_seconds", "How long the oldest input of a stage has waited; 0 if none waits.", ("stage",)),
    Metric("stage_overdue", "1 if an input of a stage has waited too long.", ("stage",)),
    Metric("stage_last_write_timestamp_seconds", "When a stage last wrote a row or file.", ("stage",)),
    Metric("stage_runs_total", "Runs of a stage by outcome: ok, findings, failed.", ("stage", "outcome")),
    Metric("stage_duration_seconds_total", "Duration of runs of a stage.", ("stage", "outcome")),
    Metric("stage_cpu_seconds_total", "CPU time of runs of a stage, workers included.", ("stage", "outcome")),
    Metric(
        "stage_store_requests_total",
        "Requests of a stage to S3-compatible stores, by kind: gets, puts, lists, deletes. Those of delta-rs are not "
        "counted.",
        ("stage", "outcome", "kind"),
    ),
    Metric("stage_store_errors_total", "Failed requests of a stage to stores.", ("stage", "outcome")),
    Metric("stage_store_retries_total", "Repeated requests of a stage to stores.", ("stage", "outcome")),
    Metric(
        "stage_store_bytes_total",
        "Bytes that a stage moved, by direction: read, written.",
        ("stage", "outcome", "direction"),
    ),
    Metric("table_rows", "Rows of a table, as of the catalog's last refresh.", ("table",)),
    Metric("table_bytes", "Size of a table's files, as of the catalog's last refresh.", ("table",)),
    Metric("table_files", "Number of a table's files, as of the catalog's last refresh.", ("table",)),
    Metric("table_daily_growth_bytes", "Mean growth of a table per day, over the last seven days.", ("table",)),
    Metric("checks_unsound", "Checks of existing rows that fail or could not be computed.", ("severity", "status")),
    Metric("checks_total", "Checks that were computed."),
    Metric("checks_duration_seconds_total", "Duration of computing checks."),
    Metric("alerts_firing", "Alerts that fire.", ("severity",)),
    Metric("notifications_total", "Messages about alerts by outcome: delivered, lost.", ("outcome",)),
    Metric("backup_age_seconds", "Age of the data in the newest backup in a place of `[backup] to`.", ("place",)),
    Metric("disk_free_bytes", "Free space on a disk of this machine.", ("place",)),
    Metric("disk_size_bytes", "Size of a disk of this machine.", ("place",)),
    Metric("proposals_waiting", "Proposals that wait for a person.", ("kind",)),
    Metric("proposals_waiting_seconds", "How long the oldest proposal has waited for a person.", ("kind",)),
    Metric("prefect_up", "1 if the Prefect server answers."),
    Metric("pool_polled", "1 if a worker polls the work pool; else its runs wait.", ("pool",)),
    Metric("deployment_failed", "1 if the last finished run of a deployment failed.", ("deployment",)),
    Metric(
        "deployment_last_run_timestamp_seconds", "When the last finished run of a deployment ended.", ("deployment",)
    ),
)
"""All metrics, in the order in which they are listed."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
