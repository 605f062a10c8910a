"""The rollup `run_summary`: what a run did, in one row an attempt."""

import json
from datetime import timedelta

import pytest
from rollup_inputs import DAY, NOON, computed, context

from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.registry import select_rollups
from ranklake.lake.rollups.thresholds import WARMUP_STEPS

RUN = {"ts": NOON, "job": "demo", "world_size": 2, "device_count": 2, "device_type": "cpu", "device_name": "a CPU"}


def summaries(days=(DAY,), **tables):
    """Compute what `run_summary` reads, and it, in order; return its rows."""
    ctx = context(**tables)
    for rollup in select_rollups(["run_summary"]):
        replace_table(ctx, rollup.name, computed(ctx, rollup.name, days))
    found = ctx.sql("SELECT * FROM run_summary ORDER BY run, attempt").to_arrow_table()
    return found.to_pylist()


def steps(count, *, slow=1.0, attempt=0, first=0, start=0.0, run="r1"):
    """Return rows of `steps` of two ranks; rank 1 computes `slow` times as long, rank 0 waits for it."""
    found = []
    for n in range(count):
        begin = NOON + timedelta(seconds=start + 0.2 * n)
        facts = {
            "run": run,
            "attempt": attempt,
            "step": first + n,
            "ts": begin,
            "step_time_s": 0.1 * slow + 0.01,
            "tokens": 100,
        }
        loss = 5 - 0.01 * (first + n)
        found.append({**facts, "rank": 0, "collective_time_s": 0.1 * slow - 0.09, "loss": loss})
        found.append({**facts, "rank": 1, "collective_time_s": 0.01, "loss": loss + 1})
    return found


@pytest.mark.parametrize("before_midnight", [20, 15, 35])
def test_the_excess_does_not_depend_on_midnight(before_midnight):
    """A rank that is three times as slow, and then half as slow again: one excess, whichever steps a day has."""
    begin = 43_200 - before_midnight
    rows = [*steps(100, slow=3.0, start=begin), *steps(100, slow=1.5, first=100, start=begin + 20)]
    days = (DAY, DAY + timedelta(days=1))
    (row,) = summaries(days, runs=[{**RUN, "ts": NOON + timedelta(seconds=begin)}], steps=rows)
    warm = 100 - WARMUP_STEPS
    assert row["straggler_excess_ratio"] == pytest.approx((warm * 2 + 100 * 0.5) / (warm + 100), abs=0.01)


def event(name, attempt=0, rank=0, seconds=100.0):
    return {"event": name, "attempt": attempt, "rank": rank, "ts": NOON + timedelta(seconds=seconds)}


def test_a_healthy_run():
    """Counts, losses, pace, MFU and goodput of a run of 100 steps on two ranks; no straggler."""
    scalars = [
        {"metric": metric, "value": value, "rank": rank, "ts": NOON}
        for rank in (0, 1)
        for metric, value in (("model/flops_per_step", 1e9), ("device/peak_flops_measured", 2e10))
    ]
    (row,) = summaries(
        runs=[{**RUN, "compute_dtype": "float32"}],
        steps=steps(100),
        scalars=scalars,
        events=[event("run_end", seconds=30)],
    )
    assert (row["job"], row["status"], row["date"], row["injected"]) == ("demo", "finished", DAY, None)
    assert (row["steps"], row["rank_steps"], row["first_step"], row["last_step"]) == (100, 200, 0, 99)
    assert (row["ranks"], row["world_size"], row["tokens"]) == (2, 2, 20_000)
    assert (row["first_loss"], row["last_loss"]) == (pytest.approx(5.5), pytest.approx(4.51))
    assert row["mean_step_time_s"] == pytest.approx(0.11, rel=1e-6)
    assert row["tokens_per_s"] == pytest.approx(200 / 0.11, rel=1e-6)
    assert row["mfu_ratio"] == pytest.approx(1e9 / (0.11 * 2e10), rel=1e-6)
    assert row["mfu_ratio"] == row["model_flops"] / row["peak_flops"]
    assert (row["peak_source"], row["mfu_reason"]) == ("measured: calibration matrix product", None)
    assert row["goodput_ratio"] == row["productive_ns"] / row["wall_ns"] == pytest.approx(11 / 30, rel=1e-6)
    assert (row["stragglers"], row["straggler_rank"], row["straggler_reason"]) == (0, None, None)


def test_the_straggler_and_what_was_injected():
    """A rank that computes twice as long is named with its excess; the label of the injected fault stands beside."""
    (row,) = summaries(runs=[{**RUN, "injected": "slow rank 1"}], steps=steps(100, slow=2.0))
    assert (row["stragglers"], row["straggler_rank"], row["injected"]) == (1, 1, "slow rank 1")
    assert row["straggler_excess_ratio"] == pytest.approx(1.0, abs=0.01)
    assert row["straggler_reason"].startswith("straggler: +100")


def test_unknown_is_null_with_a_reason():
    """Without device, FLOPs, tokens or steps there are no numbers, and MFU says why."""
    bare = [{**row, "tokens": None, "loss": None} for row in steps(5)]
    (row,) = summaries(steps=bare)
    assert row["mfu_reason"] == "model FLOPs are not recorded on 2 of 2 ranks"
    for name in (
        "job",
        "tokens",
        "tokens_per_s",
        "first_loss",
        "mfu_ratio",
        "model_flops",
        "peak_flops",
        "peak_source",
    ):
        assert row[name] is None, name
    (row,) = summaries(events=[event("run_start")])
    assert (row["steps"], row["mean_step_time_s"], row["ranks"], row["mfu_reason"]) == (0, None, None, "no steps")


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], "running"),
        (["heartbeat"], "running"),
        (["run_end"], "finished"),
        (["abandoned"], "abandoned"),
        (["interruption", "run_end"], "interrupted"),
        (["interruption", "failure", "run_end"], "failed"),
        (["failure", "run_end"], "failed"),
        (["step_failed", "run_end"], "finished"),
        (["run_end", "abandoned"], "finished"),
    ],
)
def test_how_a_run_ended(events, status):
    """A failure outweighs an orderly end, that the find of remains; a run of which nothing is told is running."""
    (row,) = summaries(steps=steps(3), events=[event(name) for name in events])
    assert row["status"] == status


def test_a_thread_that_failed_did_not_fail_the_run():
    """The process goes on without it; a run whose main thread failed is another thing."""
    failed = {
        **event("failure"),
        "attributes": json.dumps({"exception": "KeyError", "thread": "loader"}, separators=(",", ":")),
    }
    (row,) = summaries(steps=steps(3), events=[failed, event("run_end")])
    assert row["status"] == "finished"


@pytest.mark.parametrize(("told", "status"), [({"signal": "SIGTERM"}, "abandoned"), ({"exit_code": 0}, "running")])
def test_what_a_signal_ended_is_abandoned(told, status):
    """A rank that died of a signal says so at its end, and nobody says that the run came to its own."""
    ended = {**event("rank_end"), "attributes": json.dumps(told, separators=(",", ":"))}
    (row,) = summaries(steps=steps(3), events=[ended])
    assert row["status"] == status


def test_an_attempt_with_a_later_one_is_not_running():
    """Whatever became of attempt 0, attempt 1 shows that it is over; attempts have a row each, on the run's date."""
    found = summaries(steps=[*steps(10), *steps(10, attempt=1, first=5, start=60)])
    assert [(row["attempt"], row["status"], row["steps"]) for row in found] == [
        (0, "abandoned", 10),
        (1, "running", 10),
    ]
    assert found[0]["wall_ns"] + found[1]["wall_ns"] == pytest.approx(62e9, rel=0.01)


def test_days_are_put_together():
    """A run across midnight is one row, on its first date; the straggler of the day with most steps is its own."""
    start = 12 * 3600 - 30.0
    facts = [{**row, "date": row["ts"].date()} for row in steps(400, slow=1.5, start=start)]
    (row,) = summaries(days=[DAY, DAY + timedelta(days=1)], steps=facts)
    assert (row["date"], row["steps"], row["straggler_rank"]) == (DAY, 400, 1)
    assert row["end_ts"].date() == DAY + timedelta(days=1)
