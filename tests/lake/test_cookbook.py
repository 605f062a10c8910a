"""The cookbook: each of its questions is answered as it stands, by what was put into the lake."""

import pytest
from known_lake import known_lake
from packaged_queries import RECIPES

from ranklake.lake.query.sql import query

ANSWERS = {
    "Why is this run slow?": [{"step_s": 2.2, "data_s": 0.5, "forward_s": None}],
    "Which rank slows the run, and by what?": [{"rank": 1, "excess_ratio": 0.25, "cause": "compute"}],
    "Which node is chronically slow?": [{"host": "node-1", "runs": 2, "days": 1}],
    "Is data loading the bottleneck?": [{"run": "gpt-1", "data_ratio": 0.5}, {"run": "gpt-2", "data_ratio": 0.25}],
    "How much of a step is communication?": [{"collective_ratio": 0.125}] * 3,
    "What bandwidth do collectives reach?": [
        {"collective": "all_gather", "ranks": 8, "mean_gb_per_s": 70.0},
        {"collective": "all_reduce", "ranks": 8, "mean_gb_per_s": 140.0, "best_gb_per_s": 175.0, "collectives": 2},
        {"collective": "reduce_scatter", "ranks": 8, "mean_gb_per_s": 87.5},
    ],
    "Did a commit change the pace?": [
        {"git_commit": "a1", "tokens_per_s": 100.0},
        {"git_commit": "b2", "tokens_per_s": 300.0},
    ],
    "What is MFU by device?": [
        {"device_name": "H100", "mfu_ratio": 0.5, "runs": 2},
        {"device_name": "A100", "mfu_ratio": 0.3},
    ],
    "What was MFU by run and day?": [
        {"run": "gpt-1", "mfu_ratio": 0.4},
        {"run": "gpt-2", "mfu_ratio": 0.6},
        {"run": "gpt-3", "mfu_ratio": 0.3},
    ],
    "Which runs are below 30 % MFU?": [{"run": "gpt-1", "mfu_ratio": 0.25}],
    "Why is MFU unknown?": [{"mfu_reason": "no peak", "attempts": 1}],
    "What was goodput in a week?": [{"goodput_ratio": 0.7, "device_h": 80.0}],
    "Where did the wall time of a run go?": [{"wall_h": 10, "productive_h": 7, "restart_h": 1, "lost_work_h": 2}],
    "Which runs lost most to restarts?": [{"run": "gpt-1", "lost_device_h": 24.0}],
    "What is the MLPerf score of a set of runs?": [{"job": "bert", "runs": 4, "score_min": 5.0}],
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
    "How do the losses of two runs compare, step by step?": [
        {"step": 0, "loss_1": 2.0, "loss_2": 3.0},
        *({"step": n, "loss_1": 2.0, "loss_2": None} for n in range(1, 8)),
        {"step": 8, "loss_1": 4.0, "loss_2": None},
        {"step": 9, "loss_1": 2.0, "loss_2": None},
    ],
    "How does the loss depend on a setting?": [{"lr": 0.002, "best_loss": 1.0}, {"lr": 0.001, "best_loss": 2.0}],
    "What failed, and how often?": [{"event": "failure", "message": "out of memory", "events": 3, "runs": 2}],
    "Which checkpoints are still there?": [{"name": "step-2.pt", "bytes": 8}],
    "Which runs trained on this version of a dataset?": [{"version": "3", "runs": 2}],
    "Is the record complete, and how old is it?": [{"table": "steps", "missing": 3}, {"table": "spans", "missing": 0}],
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with rows that have an answer to each question, and some that must not count."""
    return known_lake(tmp_path_factory.mktemp("cookbook"))


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
