"""Objectives: files with mistakes, and what is attained beside a plain computation."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollup_inputs import append

from ranklake.cli import run
from ranklake.config import load_config
from ranklake.context import Context
from ranklake.insight.runs.asking import asking
from ranklake.insight.slo.document import SloError, packaged_objectives, read_folder, read_text
from ranklake.insight.slo.evaluation import BURN_ALERTS, MOST_LOSSES, burn_alerts, evaluate
from ranklake.insight.slo.report import as_markdown, losses_of
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read
from ranklake.pipeline.calls import slo_once

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
TEXT = """apiVersion: openslo/v1
kind: SLO
metadata: {name: saves, labels: {owner: ml-platform}}
spec:
  service: training
  indicator:
    spec:
      ratioMetric:
        rawType: success
        raw: {metricSource: {type: ranklake, spec: {sql: "SELECT ts, subject, good, total FROM t"}}}
  timeWindow: [{duration: 28d, isRolling: true}]
  budgetingMethod: Occurrences
  objectives: [{target: 0.9}]
"""
THRESHOLD = """apiVersion: openslo/v1
kind: SLO
metadata: {name: queue}
spec:
  indicator: {spec: {thresholdMetric: {metricSource: {spec: {sql: "SELECT ts, subject, value FROM t"}}}}}
  timeWindow: [{duration: 4w, isRolling: true}]
  budgetingMethod: Occurrences
  objectives: [{targetPercent: 95, op: lte, value: 600}]
"""
MISTAKES = {
    "targetPercent": ("target: 0.9", "targetPercent: 100", "x.yaml:13: spec.objectives[0].targetPercent must be more"),
    "both targets": ("target: 0.9", "target: 0.9, targetPercent: 90", "x.yaml:13: spec.objectives[0]: needs either"),
    "no target": ("[{target: 0.9}]", "[{displayName: a}]", "x.yaml:13: spec.objectives[0]: needs either target"),
    "no objective": ("[{target: 0.9}]", "[]", "x.yaml:13: spec.objectives must have an item"),
    "op": ("target: 0.9", "target: 0.9, op: lte", "x.yaml:13: spec.objectives[0].op and value belong together"),
    "threshold": ("target: 0.9", "target: 0.9, op: lte, value: 3", "x.yaml:13: spec.objectives of a thresholdMetric"),
    "text": ("target: 0.9", "target: ninety", "x.yaml:13: spec.objectives[0].target must be a number, not text"),
    "slices": ("Occurrences", "Timeslices", "x.yaml:13: spec.objectives need timeSliceTarget and timeSliceWindow"),
    "method": ("Occurrences", "Ocurrences", "did you mean 'Occurrences'?"),
    "duration": ("28d", "28x", "x.yaml:11: spec.timeWindow[0].duration '28x' is not a duration such as 5m"),
    "calendar": ("isRolling: true", "isRolling: false", "calendar windows are not computed"),
    "no window": (
        "  timeWindow: [{duration: 28d, isRolling: true}]\n",
        "",
        "x.yaml:4: spec lacks the key 'timeWindow'",
    ),
    "raw type": ("rawType: success", "rawTyp: success", "x.yaml:9: unknown key 'rawTyp'"),
    "two kinds": ("rawType: success", "good: {metricSource: {spec: {sql: a}}}", "raw stands alone"),
    "source": ("type: ranklake", "type: prometheus", "type cannot be 'prometheus'; known: ranklake"),
    "no SQL": ("sql:", "sq:", "x.yaml:10: unknown key 'sq'"),
    "version": ("openslo/v1", "openslo/v2alpha", "x.yaml:1: apiVersion cannot be 'openslo/v2alpha'"),
    "kind": ("kind: SLO", "kind: SLI", "x.yaml:2: kind cannot be 'SLI'; did you mean 'SLO'?"),
    "name": ("name: saves", "name: My saves", "x.yaml:3: metadata.name must be 1 to 63 lower-case letters"),
    "unknown key": ("service:", "servce:", "x.yaml:5: unknown key 'servce' in spec; did you mean 'service'?"),
    "twice": ("service: training", "service: a\n  service: b", "x.yaml:6:"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_line(mistake):
    """Line, what is wrong, and what to do."""
    old, new, expected = MISTAKES[mistake]
    assert old in TEXT
    with pytest.raises(SloError) as raised:
        read_text(Path("x.yaml"), TEXT.replace(old, new))
    assert any(expected in str(each) for each in (raised.value, *raised.value.others)), raised.value


def test_all_files_of_a_folder_are_looked_at(tmp_path):
    """Faults of several files come at once; a name twice is one."""
    (tmp_path / "a.yaml").write_text(TEXT)
    assert list(read_folder(tmp_path)) == ["saves"]
    (tmp_path / "b.yaml").write_text(TEXT)
    (tmp_path / "c.yaml").write_text(TEXT.replace("28d", "28x"))
    with pytest.raises(SloError) as raised:
        read_folder(tmp_path)
    both = [str(each) for each in (raised.value, *raised.value.others)]
    assert any("a second objective 'saves'" in each and "a.yaml" in each for each in both)
    assert any("c.yaml:11" in each for each in both)
    with pytest.raises(SloError, match="no such folder"):
        read_folder(tmp_path / "none")


def table(names, rows):
    """Return SQL that gives rows."""
    texts = [
        f"(CAST('{ts.isoformat()}' AS TIMESTAMP(6)), '{subject}', {', '.join(map(repr, more))})"
        for ts, subject, *more in rows
    ]
    return f"SELECT * FROM (VALUES {', '.join(texts)}) AS t({names})"


def statuses_of(lake, text, names, rows, **changes):
    """Evaluate an objective over rows."""
    slo = read_text(Path("x.yaml"), text)
    sql = table(names, rows)
    spec = slo.spec.indicator.spec
    metric = spec.thresholdMetric or spec.ratioMetric.raw
    metric = replace(metric, metricSource=replace(metric.metricSource, spec=replace(metric.metricSource.spec, sql=sql)))
    spec = (
        replace(spec, thresholdMetric=metric)
        if spec.thresholdMetric
        else replace(spec, ratioMetric=replace(spec.ratioMetric, raw=metric))
    )
    changed = replace(slo.spec, indicator=replace(slo.spec.indicator, spec=spec), **changes)
    return list(evaluate(asking(lake), replace(slo, spec=changed), NOW))


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 30 * 1440).map(lambda minutes: NOW - timedelta(minutes=minutes)),
        st.sampled_from(["a", "b"]),
        st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: pair),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(events=EVENTS)
def test_what_is_attained_beside_a_plain_computation(lake, events):
    """Counts, budget, burn rates and the alert, for each subject."""
    rows = [(ts, subject, good, good + bad) for ts, subject, (good, bad) in events]
    statuses = {status.subject: status for status in statuses_of(lake, TEXT, "ts, subject, good, total", rows)}
    inside = [row for row in rows if NOW - timedelta(days=28) < row[0] <= NOW]
    assert set(statuses) == ({row[1] for row in inside} or {""})
    for subject, status in statuses.items():
        own = [row for row in inside if row[1] == subject]
        good, total = sum(row[2] for row in own), sum(row[3] for row in own)
        if not total:
            assert (status.status, status.attained_ratio) == ("no_data", None)
            continue
        assert (status.good_count, status.total_count) == (good, total)
        assert status.budget_used_ratio == pytest.approx((total - good) / total / 0.1)

        def burn(span, own=own):
            late = [row for row in own if row[0] > NOW - timedelta(seconds=span)]
            every = sum(row[3] for row in late)
            return None if not every else (every - sum(row[2] for row in late)) / every / 0.1

        firing = [
            alert.kind
            for alert in BURN_ALERTS
            if None not in (burn(alert.long_s), burn(alert.short_s))
            and min(burn(alert.long_s), burn(alert.short_s)) > alert.rate * (1 + 1e-12)
        ]
        assert status.burn_rate == pytest.approx(burn(3 * 86_400))
        assert status.alert == (firing[0] if firing else "")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(events=EVENTS)
def test_what_used_up_a_budget_beside_a_plain_computation(lake, events):
    """Bad events by day and subject, worst first; their shares of the whole budget add up to what is used."""
    rows = [(ts, subject, good, good + bad) for ts, subject, (good, bad) in events]
    slo = read_text(
        Path("x.yaml"), TEXT.replace("SELECT ts, subject, good, total FROM t", table("ts, subject, good, total", rows))
    )
    inside = [row for row in rows if NOW - timedelta(days=28) < row[0] <= NOW]
    bad = Counter()
    for ts, subject, good, total in inside:
        bad[ts.date(), subject] += total - good
    expected = sorted(
        ((day, subject, count) for (day, subject), count in bad.items() if count),
        key=lambda each: (-each[2], -each[0].toordinal(), each[1]),
    )
    losses = losses_of(asking(lake), slo, "saves", NOW)
    assert losses.days.reason == ""
    got = losses.days.rows
    assert [(row["day"], row["subject"], row["bad_count"]) for row in got] == expected[:MOST_LOSSES]
    budget = 0.1 * sum(row[3] for row in inside)
    assert [row["budget_ratio"] for row in got] == pytest.approx([row["bad_count"] / budget for row in got])
    assert len(as_markdown(losses).splitlines()) == (4 + len(got) if got else 3)


def test_limits_of_burn_rates_are_settings(lake):
    """The same events are a page at the workbook's limit, and a ticket above it."""
    rows = [(NOW - timedelta(minutes=1), "", 0, 10)]
    slo = read_text(
        Path("x.yaml"), TEXT.replace("SELECT ts, subject, good, total FROM t", table("ts, subject, good, total", rows))
    )
    alerts = [
        next(evaluate(asking(lake), slo, NOW, burn_alerts(*limits))).alert
        for limits in ((14.4, 6, 1), (14.4, 10.5, 1), (10.5, 10.5, 10.5))
    ]
    assert alerts == ["page", "ticket", ""]


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({"status": "passed"}, 1),
        ({"status": "errored"}, 0),
        ({"status": "failed", "rows_failed": 2}, 0),
        ({"status": "failed", "rows_failed": 2, "quarantined_rows": 2}, 1),
        ({"status": "failed", "rows_failed": 2, "quarantined_rows": 1}, 0),
        ({"status": "failed", "rows_failed": 2, "severity": "warning"}, 1),
        ({"status": "failed", "rows_failed": 0}, 0),
    ],
)
def test_partitions_are_sound_by_their_last_check(tmp_path, changes, good):
    """What an older check said does not count; failing rows that are in quarantine do not either."""
    lake = Lake.create(str(tmp_path / "lake"))
    result = {
        "table": "steps", "partition_date": NOW.date() - timedelta(days=1), "check_id": "c", "severity": "error",
        "suite": "s", "expectation": "e", "layer": "rows", "table_version": 0,
        "rows_checked": 9, "rows_failed": 0, "date": NOW.date(),
    }  # fmt: skip
    append(lake, "quality_results", [
        result | {"check_run": "1", "ts": NOW - timedelta(hours=2), "status": "errored"},
        result | {"check_run": "2", "ts": NOW - timedelta(hours=1)} | changes,
    ])  # fmt: skip
    (status,) = evaluate(asking(lake), packaged_objectives()["data-quality"], NOW)
    assert (status.good_count, status.total_count) == (good, 1)


def test_values_are_held_against_a_threshold(lake):
    """NULL and NaN are no events; the limit itself is good under lte."""
    rows = [(NOW - timedelta(hours=1), "a", value) for value in (599.0, 600.0, 601.0)]
    sql_rows = [*rows, (NOW - timedelta(hours=1), "b", 5.0)]
    statuses = {status.subject: status for status in statuses_of(lake, THRESHOLD, "ts, subject, value", sql_rows)}
    assert (statuses["a"].good_count, statuses["a"].total_count) == (2, 3)
    assert statuses["a"].status == "missed"
    assert statuses["b"].status == "met"


def test_time_slices(lake):
    """A slice is good if its share of good events is; one without events counts for nothing."""
    slo = read_text(Path("x.yaml"), TEXT)
    (objective,) = slo.spec.objectives
    rows = [
        *((NOW - timedelta(hours=2, minutes=minute), "", good, 10) for minute, good in ((1, 10), (2, 0))),
        (NOW - timedelta(hours=5), "", 9, 10),
    ]
    changes = {
        "budgetingMethod": "Timeslices",
        "objectives": (replace(objective, timeSliceTarget=0.9, timeSliceWindow="1h"),),
    }
    (status,) = statuses_of(lake, TEXT, "ts, subject, good, total", rows, **changes)
    assert (status.good_count, status.total_count) == (1, 2)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT 1", "the indicator cannot be computed"),
        ("SELEC ts", "the indicator cannot be computed"),
        ("SELECT ts, subject, good, total FROM nowhere", "unknown table 'nowhere'"),
        ("SELECT ts, run AS subject, 1 AS good, 1 AS total FROM steps", "the indicator gave no events in the window"),
        (table("ts, subject, good, total", [(NOW, "", 3, 2)]), "the indicator gives 3 good of 2 events"),
        (table("ts, subject, good, total", [(NOW, "", -1, 2)]), "the indicator gives -1 good of 2 events"),
        ("DROP TABLE steps", "the indicator cannot be computed"),
    ],
)
def test_what_cannot_be_measured_says_why(lake, sql, reason):
    """No number is made up, and nothing is raised."""
    text = TEXT.replace("SELECT ts, subject, good, total FROM t", sql)
    (status,) = evaluate(asking(lake), read_text(Path("x.yaml"), text), NOW)
    assert (status.status, status.attained_ratio, status.alert) == ("no_data", None, "")
    assert reason in status.reason


def test_good_and_bad_events_in_two_queries(lake):
    """Good over total, and bad over total, say the same as both in one query."""
    total = table("ts, subject, value", [(NOW, "a", 10)])
    for side, value, good in (("good", 7, 7), ("bad", 7, 3)):
        counted = table("ts, subject, value", [(NOW, "a", value)])
        queries = {"total": total, side: counted}
        lines = [f'{name}: {{metricSource: {{spec: {{sql: "{sql}"}}}}}}' for name, sql in queries.items()]
        metrics = "\n        ".join(lines)
        head, tail = TEXT.split("        rawType")
        text = f"{head}        {metrics}\n  timeWindow{tail.split('timeWindow')[1]}"
        (status,) = evaluate(asking(lake), read_text(Path("x.yaml"), text), NOW)
        assert (status.good_count, status.total_count) == (good, 10), side


def test_packaged_objectives_are_sound(lake):
    """Each has an owner and a description, and its SQL runs in an empty lake."""
    for slo in packaged_objectives().values():
        assert slo.owner
        assert slo.spec.description
        for status in evaluate(asking(lake), slo, NOW):
            assert status.reason == "the indicator gave no events in the window", status


def test_the_command_and_the_table(lake, tmp_path, capfd, monkeypatch):
    """The pipeline's stage writes what the command shows; an alert exits 1; a wrong name is one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slo").mkdir()
    rows = table("ts, subject, good, total", [(datetime.now(UTC) - timedelta(seconds=5), "a", 1, 10)])
    text = TEXT.replace("SELECT ts, subject, good, total FROM t", rows)
    (tmp_path / "slo/saves.yaml").write_text(text.replace("target: 0.9", "target: 0.999"))
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{lake.uri}"\n[slo]\nfiles = "slo"\n')
    assert run(["slo"]) == 1
    out = capfd.readouterr().out
    assert out.split("\n")[1].split()[:4] == ["saves", "a", "missed", "page"]
    assert run(["slo", "savs"]) == 2
    assert "did you mean 'saves'?" in capfd.readouterr().err
    (done,) = slo_once(Context.of(load_config()))["objectives"]
    (row,) = read(lake.tables, contract("slo")).to_pylist()
    assert (row["slo"], row["subject"], row["alert"]) == (done["slo"], done["subject"], "page")
    assert row["burn_rate"] == pytest.approx(900)
    assert row["date"] == row["window_end_ts"].date()
    assert run(["slo", "--retrospective"]) == 0
    assert f"| {row['date']} | a | 9 | 10 | 90000.0% |" in capfd.readouterr().out
    assert run(["slo", "--retrospective", "--json"]) == 0
    (losses,) = json.loads(capfd.readouterr().out)
    assert (losses["slo"], losses["days"][0]["bad_count"]) == ("saves", 9)
    (tmp_path / "slo/saves.yaml").write_text("kind: SLO")
    assert run(["slo"]) == 2
    assert capfd.readouterr().err.startswith("ranklake: slo/saves.yaml:1: the file lacks the key 'metadata'")


def test_a_budget_that_is_just_used_up_is_not_missed(lake):
    """One bad event of ten where 90 % are promised: a burn rate of 1 is no alert, whatever floats make of 1 - 0.9."""
    rows = [(NOW - timedelta(minutes=1), "", 9, 10)]
    (status,) = statuses_of(lake, TEXT, "ts, subject, good, total", rows)
    assert (status.status, status.alert) == ("at_risk", "")


@pytest.mark.parametrize(("name", "good"), [("job-success", 1), ("preemption-rate", 3), ("queue-time", 2)])
def test_a_run_and_its_job_count_once(tmp_path, name, good):
    """Of a job whose run was recorded the run counts, of others the job; a cancelled one neither succeeds nor fails."""
    lake = Lake.create(str(tmp_path / "lake"))
    ended = NOW - timedelta(hours=1)
    of = {"run": "r", "attempt": 0, "date": NOW.date()}
    required = (each for each in contract("run_goodput").columns if each.required)
    numbers = {each.name: 0 for each in required if each.type.startswith("int")}
    row = of | numbers | {"ts": ended, "end_ts": ended, "status": "finished", "queue_ns": 10**9}
    append(lake, "run_goodput", [{name: row[name] for name in row if name != "attempt"}])
    append(lake, "attempt_facts", [of | {"ts": ended, "end_ts": ended, "scheduler_job_id": "1"}])
    outcomes = {"1": "failed", "2": "failed", "3": "cancelled"}
    append(lake, "job_facts", [
        {"job_id": job, "begin_ts": ended, "until_ts": ended, "submit_ts": ended - timedelta(hours=2 * int(job) - 4),
         "start_ts": ended, "end_ts": ended, "outcome": outcome, "state": outcome, "date": NOW.date()}
        for job, outcome in outcomes.items()
    ])  # fmt: skip
    (status,) = evaluate(asking(lake), packaged_objectives()[name], NOW)
    assert (status.reason, status.good_count, status.total_count) == ("", good, 2 if name == "job-success" else 3)
