"""The cookbook: each of its questions is answered as it stands, by what was put into the lake."""

import json
import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from rollup_inputs import DAY, NOON, told

from ranklake.lake.query.sql import query
from ranklake.lake.storage.store import Lake

COOKBOOK = Path(__file__).resolve().parents[2] / "docs" / "cookbook.md"
RECIPES = dict(
    re.findall(r"^### (.+?)\n(?:(?!^### ).)*?^```sql\n(.*?)^```", COOKBOOK.read_text(), re.DOTALL | re.MULTILINE)
)
HOUR = 3600 * 10**9
STEP = {"run": "gpt-1", "mean_step_time_s": 2.0, "mean_data_time_s": 0.5, "mean_loss": 2.0, "non_finite_ranks": 0}
LATER = NOON + timedelta(hours=1)
ROWS = {
    "step_rollup": [
        {**STEP, "step": n, "ts": NOON, **more}
        for n, more in enumerate([{}] * 8 + [{"mean_loss": 4.0, "mean_step_time_s": 4.0}, {"non_finite_ranks": 1}])
    ],
    "rank_health": [
        {"run": run, "rank": rank, "date": DAY, "is_straggler": rank == 1, "excess_ratio": 0.25 * rank,
         "cause": "compute"}
        for run in ("gpt-1", "gpt-2")
        for rank in range(3)
    ],
    "ranks": [{"run": run, "rank": n, "host": f"node-{n}"} for run in ("gpt-1", "gpt-2") for n in range(3)],
    "steps": [
        {"run": run, "step": n, "step_time_s": 1.0, "data_time_s": data, "collective_time_s": 0.125}
        for run, data in (("gpt-1", 0.5), ("gpt-2", 0.25), ("gpt-3", None))
        for n in range(4)
    ],
    "run_summary": [
        {"run": "gpt-1", "job": "gpt", "mfu_ratio": 0.25, "device_name": "H100", "last_loss": 2.0,
         "tokens_per_s": 100.0},
        {"run": "gpt-2", "job": "gpt", "mfu_ratio": 0.5, "last_loss": 1.0, "tokens_per_s": 300.0, "ts": LATER},
        {"run": "gpt-3", "job": "bert", "mfu_reason": "no peak"},
    ],
    "runs": [
        {"run": f"gpt-{n}", "git_commit": commit, "config": json.dumps({"opt": {"lr": lr}})}
        for n, commit, lr in ((1, "a1", 1e-3), (2, "b2", 2e-3), (3, None, 1))
    ],
    "mfu": [
        {"run": run, "device_name": name, "model_flops": flops, "peak_flops": 100.0, "mfu_ratio": flops / 100}
        for run, name, flops in (("gpt-1", "H100", 40.0), ("gpt-2", "H100", 60.0), ("gpt-3", "A100", 30.0))
    ]
    + [{"run": "gpt-4", "device_name": "TPU", "model_flops": 3.0, "peak_flops": None}],
    "run_goodput": [
        {"run": "gpt-1", "restarts": 2, "failures": 2, "wall_ns": 10 * HOUR, "productive_ns": 7 * HOUR,
         "restart_ns": HOUR, "lost_work_ns": 2 * HOUR, "device_s": 36_000.0 * 8, "checkpoints": 5,
         "checkpoint_mean_s": 50.0, "mttf_s": 10_000.0, "checkpoint_interval_s": 600.0, "checkpoint_ratio": 0.0625},
        {"run": "gpt-2", "wall_ns": HOUR, "productive_ns": HOUR},
    ],
    "cost": [
        {"team": team, "run": run, "currency": "EUR", "device_s": Decimal(7200), "cost_total": Decimal(total),
         "cost_idle": Decimal(1), "cost_lost_work": Decimal(2), "tokens": tokens, "date": DAY + timedelta(days=later)}
        for team, run, total, tokens, later in
        (("vision", "gpt-1", 30, 10**6, 0), ("vision", "gpt-1", 10, 10**6, 1), ("text", "gpt-2", 20, 0, 0),
         ("text", "gpt-2", 99, 0, 60))
    ],
    "gpu_hourly": [
        {"host": f"node-{n}", "device_uuid": f"GPU-{n}", "allocated_s": 3600.0, "idle_allocated_s": 1800.0 * n,
         "throttled_s": 100.0 * n, "temperature_max_celsius": 90.0 if n == 0 else 60.0, "ecc_uncorrected_count": n // 2,
         "xid_count": 0}
        for n in range(3)
    ],
    "cluster_hourly": [
        {"scope": scope, "scope_name": scope, "hour": NOON, "gpu_busy_s": 900.0, "gpu_busy_observed_s": 1800.0,
         "gpu_delivered_s": 7200.0}
        for scope in ("cluster", "pool")
    ],
    "job_facts": [{"job_id": str(n), "pool": "p", "queue_time_s": float(n)} for n in range(11)],
    "events": [
        {"run": f"gpt-{n % 2}", "event": "failure", "severity": "error", "message": "out of memory"} for n in range(3)
    ]
    + [{"event": "retry", "severity": "warning"}],
    "artifacts": [
        {"run": "gpt-1", "kind": "checkpoint", "action": action, "name": f"step-{n}.pt", "uri": f"s3://c/{n}",
         "step": n, "ts": ts, "bytes": None if action == "deleted" else 8}
        for n, action, ts in ((1, "created", NOON), (1, "deleted", LATER), (2, "created", NOON), (2, "tagged", LATER))
    ],
    "datasets": [
        {"run": run, "name": "web", "version": "3", "role": role, "merkle_root_sha256": "ab"}
        for run, role in (("gpt-1", "train"), ("gpt-2", "train"), ("gpt-3", "test"))
    ],
    "segments": [
        {"table": table, "rows": 10, "gap_rows": gap, "sha256": table * 2, "ts_max": NOON}
        for table, gap in (("steps", 3), ("spans", 0))
    ],
}  # fmt: skip
ANSWERS = {
    "Why is this run slow?": [{"step_s": 2.2, "data_s": 0.5, "forward_s": None}],
    "Which rank slows the run, and by what?": [{"rank": 1, "excess_ratio": 0.25, "cause": "compute"}],
    "Which node is chronically slow?": [{"host": "node-1", "runs": 2, "days": 1}],
    "Is data loading the bottleneck?": [{"run": "gpt-1", "data_ratio": 0.5}, {"run": "gpt-2", "data_ratio": 0.25}],
    "How much of a step is communication?": [{"collective_ratio": 0.125}] * 3,
    "Did a commit change the pace?": [
        {"git_commit": "a1", "tokens_per_s": 100.0},
        {"git_commit": "b2", "tokens_per_s": 300.0},
    ],
    "What is MFU by device?": [
        {"device_name": "H100", "mfu_ratio": 0.5, "runs": 2},
        {"device_name": "A100", "mfu_ratio": 0.3},
    ],
    "Which runs are below 30 % MFU?": [{"run": "gpt-1", "mfu_ratio": 0.25}],
    "Why is MFU unknown?": [{"mfu_reason": "no peak", "attempts": 1}],
    "Where did the wall time of a run go?": [{"wall_h": 10, "productive_h": 7, "restart_h": 1, "lost_work_h": 2}],
    "Which runs lost most to restarts?": [{"run": "gpt-1", "lost_device_h": 24.0}],
    "How much do checkpoints hold up training?": [{"run": "gpt-1", "best_interval_s": 1000.0}],
    "What did last quarter cost, by team?": [
        {"team": "vision", "cost": 40.0, "device_h": 4.0},
        {"team": "text", "cost": 20.0},
    ],
    "What did idle devices and lost work cost?": [{"idle": 4.0, "lost_work": 8.0, "total": 159.0}],
    "What does a million tokens cost?": [{"run": "gpt-1", "cost_per_million_tokens": 20.0}],
    "Which devices are allocated and idle?": [{"host": "node-2", "idle_h": 1.0}, {"host": "node-1", "idle_h": 0.5}],
    "Which devices throttle or run hot?": [{"host": "node-2"}, {"host": "node-1"}, {"host": "node-0"}],
    "Which devices report errors?": [{"host": "node-2", "ecc_uncorrected": 1, "xids": 0}],
    "At which hours is the cluster busy?": [{"hour_utc": 12, "utilization_ratio": 0.5, "delivered_h": 2.0}],
    "How long do jobs wait in the queue?": [{"pool": "p", "jobs": 11, "median_s": 5.0}],
    "Where did the loss jump or stop being a number?": [
        {"step": 8, "mean_loss": 4.0, "before": 2.0},
        {"step": 9, "non_finite_ranks": 1},
    ],
    "How does the loss depend on a setting?": [{"lr": "0.002", "best_loss": 1.0}, {"lr": "0.001", "best_loss": 2.0}],
    "What failed, and how often?": [{"event": "failure", "message": "out of memory", "events": 3, "runs": 2}],
    "Which checkpoints are still there?": [{"name": "step-2.pt", "bytes": 8}],
    "Which runs trained on this version of a dataset?": [{"version": "3", "runs": 2}],
    "Is the record complete, and how old is it?": [{"table": "steps", "missing": 3}, {"table": "spans", "missing": 0}],
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with rows that have an answer to each question, and some that must not count."""
    lake = Lake.create(str(tmp_path_factory.mktemp("cookbook") / "lake"))
    for table, facts in ROWS.items():
        told(lake, table, facts)
    return lake


def test_every_question_has_an_answer_here():
    """None is in the cookbook whose answer nobody looked at."""
    assert list(RECIPES) == list(ANSWERS)
    assert len(RECIPES) >= 25


@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_is_answered(lake, question):
    """Its SQL runs as it stands and gives what was put there, in this order and nothing beside it."""
    found = query(lake, RECIPES[question]).to_pylist()
    wanted = ANSWERS[question]
    assert [{name: row[name] for name in one} for row, one in zip(found, wanted, strict=True)] == [
        pytest.approx(one) if all(isinstance(value, int | float) for value in one.values()) else one for one in wanted
    ]
