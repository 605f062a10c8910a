"""Declaration of metrics of the pipeline's health, and the samples that collectors give."""

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
        What it is, in a sentence.
    labels
        Names of labels. None of them has the name of a run, a person or a node: there are as many series as tables.
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
        """A counter never falls."""
        return "counter" if self.name.endswith("_total") else "gauge"


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric.

    Attributes
    ----------
    metric
        Name without the prefix.
    value
        None where it is not known.
    labels
        Values by name.
    reason
        Why it is not known, or why something failed; else empty.
    """

    metric: str
    value: float | None
    labels: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


METRICS: Final = (
    Metric("collector_success", "1 if a part of these metrics could be found out, else 0.", ("collector",)),
    Metric("collector_duration_seconds", "How long it took to find a part out.", ("collector",)),
    Metric("look_timestamp_seconds", "When `ranklake up` last found out what its metrics say."),
    Metric("child_up", "1 while the server or the worker of `ranklake up` runs and is not stopped.", ("child",)),
    Metric("child_restarts_total", "How often `ranklake up` started it again.", ("child",)),
    Metric("lake_up", "1 if the lake can be opened."),
    Metric("tables_lost", "Tables that have files, or rows by the ledger, and no log: it is gone, or not begun yet."),
    Metric("ingest_plans_total", "Ingests that were committed."),
    Metric("ingest_segments_total", "Segments that ingests brought in."),
    Metric("ingest_rows_total", "Rows of ingests by fate: stored, rejected, duplicate.", ("fate",)),
    Metric("ingest_duration_seconds_total", "Time from the plans of ingests to their last commit."),
    Metric("ingest_last_commit_timestamp_seconds", "When the last ingest that brought something was committed."),
    Metric(
        "ingest_lag_seconds",
        "From the last row of a segment to the commit that made it queryable: percentiles of the segments of the last "
        "hour, without imported ones. A table into which none came has none.",
        ("table", "percentile"),
    ),
    Metric(
        "segments_unreadable", "Segments of the last seven days that could not be read, and that nothing has put right."
    ),
    Metric("segments_refused", "Segments of the last seven days that a rule refused, and that nothing has put right."),
    Metric("spool_backlog_segments", "Segments in the spool that wait for an ingest."),
    Metric("spool_backlog_rows", "Rows in them, by their names."),
    Metric("spool_backlog_bytes", "Their size."),
    Metric("spool_backlog_age_seconds", "Age of the oldest of them; 0 if none waits."),
    Metric("spool_left_alone_files", "Files of the spool that no ingest may take: of a later version, too large."),
    Metric("stage_waiting_seconds", "For how long something has waited for a stage; 0 if nothing does.", ("stage",)),
    Metric("stage_overdue", "1 if something has waited for a stage for too long.", ("stage",)),
    Metric("stage_last_write_timestamp_seconds", "When a stage last wrote something.", ("stage",)),
    Metric("stage_runs_total", "Runs of a stage by outcome: ok, findings, failed.", ("stage", "outcome")),
    Metric("stage_duration_seconds_total", "Time that they took.", ("stage", "outcome")),
    Metric("stage_cpu_seconds_total", "CPU time that they took, workers included.", ("stage", "outcome")),
    Metric(
        "stage_store_requests_total",
        "Requests to stores of S3's protocol that they made, by kind: gets, puts, lists, deletes; delta-rs's not among "
        "them.",
        ("stage", "outcome", "kind"),
    ),
    Metric("stage_store_errors_total", "Requests of them that failed.", ("stage", "outcome")),
    Metric("stage_store_retries_total", "Requests of them that repeated one that failed.", ("stage", "outcome")),
    Metric("stage_store_bytes_total", "Bytes by direction: read, written.", ("stage", "outcome", "direction")),
    Metric("table_rows", "Rows of a table, as the catalog last saw it.", ("table",)),
    Metric("table_bytes", "Size of its files.", ("table",)),
    Metric("table_files", "Its files.", ("table",)),
    Metric("table_daily_growth_bytes", "What a day adds to it, as the mean of the last seven.", ("table",)),
    Metric(
        "checks_unsound", "Checks that fail or could not be computed on rows that are there.", ("severity", "status")
    ),
    Metric("checks_total", "Checks that were computed."),
    Metric("checks_duration_seconds_total", "Time that they took."),
    Metric("alerts_firing", "Alerts that fire.", ("severity",)),
    Metric("notifications_total", "Messages on alerts by outcome: delivered, lost.", ("outcome",)),
    Metric("backup_age_seconds", "Age of what the newest backup in a place of `[backup] to` restores.", ("place",)),
    Metric("disk_free_bytes", "Room that is left on a disk of this machine.", ("place",)),
    Metric("disk_size_bytes", "Size of that disk.", ("place",)),
    Metric("proposals_waiting", "Proposals that wait for a person.", ("kind",)),
    Metric("proposals_waiting_seconds", "For how long the oldest of them has waited.", ("kind",)),
    Metric("prefect_up", "1 if the Prefect server answers."),
    Metric("pool_polled", "1 if a worker polls a work pool; else its runs wait.", ("pool",)),
    Metric("deployment_failed", "1 if the last run of a deployment that is over failed.", ("deployment",)),
    Metric("deployment_last_run_timestamp_seconds", "When that run ended.", ("deployment",)),
)
"""All of them, in the order in which they are shown."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
