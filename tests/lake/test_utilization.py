"""The questions of docs/utilization.md, asked as they stand of a small cluster."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rollup_inputs import DAY, append

from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.quality.check import run_checks

DOC = (Path(__file__).resolve().parents[2] / "docs" / "utilization.md").read_text()
QUESTIONS = dict(re.findall(r"^## (.*?)\n(?:(?!^## ).)*?^```sql\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE))
MIDNIGHT = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of one pool of 4 devices with two jobs: team a uses its one device by half, team b not its other."""
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    own = {"cluster": "c", "pool": "p"}
    jobs = [
        {**own, "ts": MIDNIGHT + 3 * HOUR, "job_id": job, "team": team, "user": team, "state": state, "outcome": state,
         "submit_ts": MIDNIGHT, "start_ts": MIDNIGHT + HOUR, "end_ts": MIDNIGHT + 3 * HOUR, "gpu_count": 1}
        for job, team, state in (("1", "a", "completed"), ("2", "b", "failed"))
    ]  # fmt: skip
    pools = [
        {**own, "ts": MIDNIGHT + n * HOUR, "interval_ns": 3600 * 10**9, "gpu_total": 4.0, "gpu_idle": 4.0 - used,
         "gpu_allocated": used, "gpu_largest_free_block": 1.0}
        for n, used in enumerate((0.0, 2.0, 2.0))
    ]  # fmt: skip
    samples = [
        {"ts": MIDNIGHT + HOUR + timedelta(minutes=n), "host": f"n{team}", "device_uuid": f"G{team}", "source": "nvml",
         "interval_ns": 60 * 10**9 if n else None, "holder_run": team, "holder_attempt": 0, "holder_count": 1,
         "gpu_utilization_ratio": busy, "sm_active_ratio": busy / 2, "energy_joules": 1e6 + 30_000.0 * n, "slot": n,
         "incarnation": ord(team)}
        for team, busy in (("a", 0.5), ("b", 0.0)) for n in range(120)
    ]  # fmt: skip
    runs = [
        {**own, "ts": MIDNIGHT, "run": team, "team": team, "user": team, "scheduler_job_id": job}
        for team, job in (("a", "1"), ("b", "2"))
    ]
    for table, facts in {"jobs": jobs, "pools": pools, "gpu_samples": samples, "runs": runs}.items():
        append(lake, table, facts)
    run_rollups(lake, ["cluster_hourly"])
    return lake


ANSWERS = {
    "How much of what we have is put to use?": [
        {"gpu_hours_total": 12, "gpu_hours_open": 12, "gpu_hours_delivered": 4, "delivered_ratio": 4 / 12,
         "busy_ratio": 0.25, "sm_active_ratio": 0.125},
    ],
    "Which teams hold devices without using them?": [
        {"team": "b", "gpu_hours": 2, "busy_ratio": 0, "gpu_hours_idle": 119 / 60, "idle_ratio": 1},
        {"team": "a", "gpu_hours": 2, "busy_ratio": 0.5, "gpu_hours_idle": 0, "idle_ratio": 0},
    ],
    "How is utilisation spread?": [{"p10": 0, "p50": 0.25, "p90": 0.5}],
    "Which nodes are low all the time?": [{"host": "nb", "hours": 2, "busy_ratio": 0}],
    "How long do jobs wait?": [{"pool": "p", "mean_wait_s": 3600, "mean_depth": 2 / 4, "most_waiting": 2}],
    "What comes of jobs, by count and by device time?": [
        {"completed": 1, "cancelled": 0, "failed": 1, "failed_ratio_of_gpu_time": 0.5},
    ],
    "How much energy, and how many jobs for a kWh?": [
        {"device_kwh": 2 * 119 / 120, "facility_kwh": None, "jobs_per_kwh": 120 / 119 / 2},
    ],
    "Are free devices in one piece?": [{"pool": "p", "fragmentation": 1 - 3 / 8}],
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered(lake, question):
    """Each query runs as it stands, and its answer is what the little cluster did."""
    found = query(lake, QUESTIONS[question]).to_pylist()
    if question not in ANSWERS:
        assert Counter(row["is_idle_day"] for row in found)[True] == 0
        assert any("no sample of a device tells it" in row["unavailable"] for row in found)
        return
    for row, expected in zip(found, ANSWERS[question], strict=True):
        assert row == {name: pytest.approx(value) if isinstance(value, float) else value
                       for name, value in expected.items()}  # fmt: skip


def test_every_answer_is_asked_for():
    """No question of the page has lost its query, or its answer its question."""
    assert set(ANSWERS) < set(QUESTIONS)
    assert len(QUESTIONS) == DOC.count("\n## ")


@pytest.mark.slow
def test_checks_warn_of_an_idle_day(tmp_path):
    """`ranklake check` warns of a day on which snapshots know no job of any pool; nothing else is wrong with it."""
    lake = Lake.create(str(tmp_path / "lake"))
    idle = {"cluster": "c", "interval_ns": 3600 * 10**9, "gpu_total": 4.0, "gpu_allocated": 0.0, "gpu_idle": 4.0}
    append(lake, "pools", [{**idle, "pool": pool, "ts": MIDNIGHT + n * HOUR} for n in range(24) for pool in "pq"])
    run_rollups(lake, ["cluster_hourly"])
    report = run_checks(lake, ["cluster_hourly"])
    failed = [(one.check_id, one.severity, one.rows_failed) for one in report.results if one.status == "failed"]
    assert failed == [("not_idle_all_day", "warning", 72)]
    assert report.passed
