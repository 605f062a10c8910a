"""The rules that docs/deploy/prometheus ships: PromQL, of metrics that are there, silent while all is well."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql import answered, labels_of, metrics_of, parsed

from ranklake.capture.node.agent_metrics import AgentMetrics, prometheus
from ranklake.pipeline.health.declaration import METRICS, Sample
from ranklake.pipeline.health.exposition import exposition

FILE = Path(__file__).resolve().parents[2] / "docs" / "deploy" / "prometheus" / "rules.yml"
GROUPS = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
NOW = 1_800_000_000.0
SOUND = (
    Sample("lake_up", 1), Sample("tables_lost", 0), Sample("prefect_up", 1), Sample("look_timestamp_seconds", NOW - 60),
    *(Sample("child_up", 1, {"child": name}) for name in ("server", "worker")),
    *(Sample("child_restarts_total", 1, {"child": name}) for name in ("server", "worker")),
    Sample("pool_polled", 1, {"pool": "p"}), Sample("deployment_failed", 0, {"deployment": "pipeline"}),
    *(Sample("stage_runs_total", 12, {"stage": "check", "outcome": outcome}) for outcome in ("ok", "findings")),
    *(Sample("stage_overdue", 0, {"stage": name}) for name in ("ingest", "check")),
    *(Sample("ingest_lag_seconds", 90, {"table": "steps", "percentile": str(share)}) for share in (50, 90, 99)),
    Sample("spool_backlog_age_seconds", 300), Sample("spool_left_alone_files", 0),
    Sample("segments_unreadable", 0), Sample("segments_refused", 0),
    *(Sample("ingest_rows_total", rows, {"fate": fate}) for fate, rows in (("stored", 1e6), ("rejected", 0))),
    *(Sample("checks_unsound", 2, {"severity": "warning", "status": status}) for status in ("failed", "errored")),
    *(Sample("checks_unsound", 0, {"severity": "error", "status": status}) for status in ("failed", "errored")),
    Sample("proposals_waiting_seconds", 3600, {"kind": "erasure"}),
    Sample("alerts_firing", 1, {"severity": "warning"}), Sample("backup_age_seconds", 90_000, {"place": "s3://b/k"}),
    *(Sample("notifications_total", count, {"outcome": name}) for name, count in (("delivered", 9), ("lost", 0))),
    Sample("collector_success", 1, {"collector": "lake"}),
    Sample("disk_free_bytes", 5e11, {"place": "lake"}), Sample("disk_size_bytes", 1e12, {"place": "lake"}),
)  # fmt: skip
"""A day on which nothing is wrong: some checks of severity warning fail, and an erasure was proposed an hour ago."""
WRONG = {
    "RanklakeLookIsOld": Sample("look_timestamp_seconds", NOW - 601),
    "RanklakeLakeDown": Sample("lake_up", 0),
    "RanklakeTableLost": Sample("tables_lost", 1),
    "RanklakeChildDown": Sample("child_up", 0, {"child": "worker"}),
    "RanklakeChildRestarts": Sample("child_restarts_total", 4, {"child": "server"}),
    "RanklakePrefectDown": Sample("prefect_up", 0),
    "RanklakePoolNotPolled": Sample("pool_polled", 0, {"pool": "p"}),
    "RanklakeRunFailed": Sample("deployment_failed", 1, {"deployment": "pipeline"}),
    "RanklakeStageFails": Sample("stage_runs_total", 3, {"stage": "ingest", "outcome": "failed"}),
    "RanklakeStageOverdue": Sample("stage_overdue", 1, {"stage": "check"}),
    "RanklakeRowsAreLate": Sample("ingest_lag_seconds", 7201, {"table": "steps", "percentile": "90"}),
    "RanklakeBacklogGrows": Sample("spool_backlog_age_seconds", 1801),
    "RanklakeFilesLeftAlone": Sample("spool_left_alone_files", 1),
    "RanklakeSegmentsUnreadable": Sample("segments_unreadable", 1),
    "RanklakeSegmentsRefused": Sample("segments_refused", 1),
    "RanklakeRowsRejected": Sample("ingest_rows_total", 3, {"fate": "rejected"}),
    "RanklakeChecksFail": Sample("checks_unsound", 1, {"severity": "error", "status": "failed"}),
    "RanklakeProposalWaits": Sample("proposals_waiting_seconds", 259_201, {"kind": "erasure"}),
    "RanklakeNotificationsLost": Sample("notifications_total", 1, {"outcome": "lost"}),
    "RanklakeBackupOverdue": Sample("backup_age_seconds", 172_801, {"place": "s3://b/k"}),
    "RanklakePartUnknown": Sample("collector_success", 0, {"collector": "lake"}),
    "RanklakeDiskNearlyFull": Sample("disk_free_bytes", 4e10, {"place": "lake"}),
    "RanklakeDiskFillsUp": Sample("disk_free_bytes", -1, {"place": "lake"}),
}
AGENTS = {
    "RanklakeAgentIsLate": AgentMetrics(lag_s=601),
    "RanklakeAgentUploadsFail": AgentMetrics(breaker_open=1),
    "RanklakeAgentUsesFallback": AgentMetrics(fallback_segments=1),
    "RanklakeRowsNotRecorded": AgentMetrics(gaps={("steps", "spool full"): 1}),
}


def series(text):
    """Return {(name, labels): value} of what is exposed."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def pipeline(*changed):
    """Return the series of a sound day, some of them changed."""
    keyed = {(sample.metric, frozenset(sample.labels.items())): sample for sample in (*SOUND, *changed)}
    return series(exposition(keyed.values()))


def firing(known):
    """Return the alerts whose expressions give something, whatever their `for` is."""
    return {name for name, rule in RULES.items() if answered(rule["expr"], known, NOW)}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_reads_metrics_that_are_there(name):
    """Its expression is PromQL; each metric and label in it is declared."""
    expr = RULES[name]["expr"]
    labels = {metric.full_name: set(metric.labels) for metric in METRICS}
    for metric, of in series(prometheus(AgentMetrics(gaps={("t", "r"): 1}))):
        labels[metric] = {label for label, _ in of}
    assert metrics_of(expr) <= labels.keys()
    for label, metrics in labels_of(expr):
        assert all(label in {*labels[metric], "instance"} for metric in metrics), label


def test_a_broken_expression_would_be_seen():
    """The parser is one: half an expression is refused."""
    with pytest.raises(ValueError, match="unclosed"):
        parsed("sum by (x) (rate(ranklake_ingest_rows_total[5m])")


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_what_and_what_to_do(name):
    """Severity is page or ticket; summary and description are there, with labels that what fires has."""
    rule = RULES[name]
    wrong = series(exposition([WRONG[name]])) if name in WRONG else series(prometheus(AGENTS.get(name, AgentMetrics())))
    has = {label for _, labels in wrong for label, _ in labels} | {"instance"}
    assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= has
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"].keys() == {"summary", "description"}


def test_a_sound_day_fires_nothing():
    """Neither of the pipeline's rules nor of the agents'; but where nothing is scraped at all, that is told."""
    sound = pipeline() | series(prometheus(AgentMetrics(queue_segments=3, lag_s=60, retries=2)))
    assert firing(sound) == set()
    assert firing({}) == {"RanklakeNotScraped"}


@pytest.mark.parametrize("name", WRONG)
def test_each_fault_of_the_pipeline_fires_its_rule_alone(name):
    """One figure passes its limit: that rule fires, and no other but one that is about the same figure."""
    same = {"RanklakeDiskNearlyFull", "RanklakeDiskFillsUp"}
    fired = firing(pipeline(WRONG[name]))
    assert fired == {name} or (name in same and name in fired <= same)


@pytest.mark.parametrize("name", AGENTS)
def test_each_fault_of_an_agent_fires_its_rule_alone(name):
    """Likewise on the nodes."""
    assert firing(pipeline() | series(prometheus(AGENTS[name]))) == {name}


def test_each_rule_was_seen_to_fire():
    """No rule is without a fault that it is about."""
    assert RULES.keys() == {*WRONG, *AGENTS, "RanklakeNotScraped"}
