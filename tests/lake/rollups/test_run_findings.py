"""The rollup ``run_findings``: faults planted in rows of a run, and what the detectors say of them."""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from faulty_runs import FAULTS, planted, sound, table
from rollup_inputs import DAY, NOON, bring, computed, context, run_of

from ranklake.detection.declaration import Detection, Series, ThresholdError
from ranklake.lake.contracts.arrow import conform
from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.detectors.registry import DETECTORS, RUN_DETECTORS
from ranklake.lake.rollups.evaluate import evaluate_runs
from ranklake.lake.rollups.failures import library
from ranklake.lake.rollups.findings import finding, split
from ranklake.lake.rollups.registry import ROLLUPS, detectors_with, select_rollups
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import DetectorsSection, DetectorThreshold, LakeConfig
from ranklake.lake.tables.read import read

SECOND = timedelta(seconds=1)


def steps(count=300, *, run="r1", attempt=0, first=0, start=NOON, seconds=1.0, **columns):
    """Return rows of step_rollup; a column is a value, a sequence, or a function of the step's place."""
    rows = []
    for n in range(count):
        given = {
            name: value(n) if callable(value) else value[n] if isinstance(value, list | tuple) else value
            for name, value in columns.items()
        }
        ts = start + n * seconds * SECOND
        rows.append({
            "run": run, "attempt": attempt, "step": first + n, "ts": ts, "lead_ts": ts, "ranks": 2, "loss_ranks": 2,
            "sum_step_time_ns": 0, "sum_self_time_ns": 0, "lead_step_time_ns": 0, "non_finite_ranks": 0, **given,
        })  # fmt: skip
    return rows


def findings(runs=None, **tables):
    """Return the findings of runs, in order of time."""
    rows = computed(context(**tables), "run_findings", runs=runs).to_pylist()
    return sorted(rows, key=lambda row: (row["start_ts"], row["detector"]))


@pytest.mark.parametrize("text", [pa.string(), pa.string_view()])
def test_rows_in_any_order_become_series(text):
    """One series per subject; subjects and their rows in order, NULL last, and equal times in the order of reading."""
    rng = np.random.default_rng(5)
    hosts, numbers = ["b", None, "a", "é", "z"], [3, 1, None, 2]
    facts = [(hosts[rng.integers(5)], numbers[rng.integers(4)], int(rng.integers(9)), n) for n in range(300)]
    schema = pa.schema(
        [("host", text), ("number", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("value", pa.int64())]
    )
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*facts, strict=True), schema, strict=True)]
    found = list(split(pa.table(arrays, schema=schema), ("host", "number"), ("ts",)))
    expected = {}
    for host, number, ts, n in sorted(
        facts, key=lambda row: (row[0] is None, row[0] or "", row[1] is None, row[1] or 0, row[2])
    ):
        expected.setdefault((host, number), []).append((ts, n))
    assert [(series.subject["host"], series.subject["number"]) for series in found] == list(expected)
    assert [list(zip(series["ts"], series["value"], strict=True)) for series in found] == list(expected.values())


def test_a_loss_that_is_not_a_number_is_an_error():
    """From which step on, in how many; the query of its evidence shows the steps."""
    rows = steps(loss_flag=lambda n: "nan" if 100 <= n < 105 else None, non_finite_ranks=lambda n: 2 * (100 <= n < 105))
    (row,) = findings(step_rollup=rows)
    assert (row["detector"], row["severity"], row["run"], row["attempt"]) == ("non_finite", "error", "r1", 0)
    assert (row["step"], row["end_step"], row["effect"]) == (100, 104, 5)
    assert (row["start_ts"], row["end_ts"]) == (NOON + 100 * SECOND, NOON + 104 * SECOND)
    assert row["message"].startswith("The loss is NaN from step 100 on, in 5 steps (run r1, attempt 0")
    assert json.loads(row["evidence"])["steps"] == 5
    shown = context(step_rollup=rows).sql(row["evidence_sql"]).to_arrow_table().to_pylist()
    assert [one["step"] for one in shown if one["loss_flag"]] == [100, 101, 102, 103, 104]


def test_a_run_that_ends_in_nan_lasts_and_is_critical():
    """Nothing says that it is over."""
    (row,) = findings(step_rollup=steps(loss_flag=lambda n: "nan" if n >= 290 else None))
    assert (row["severity"], row["end_ts"]) == ("critical", None)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_short_series_say_nothing(count):
    """Nor does a run without steps."""
    assert findings(step_rollup=steps(count, mean_loss=2.0)) == []


def test_the_injected_fault_stands_with_its_finding():
    """Of its attempt."""
    attempts = [{"run": "r1", "attempt": 0, "ts": NOON, "end_ts": NOON, "date": DAY, "injected": "nan"}]
    (row,) = findings(step_rollup=steps(10, loss_flag=lambda n: "nan" if n == 5 else None), attempt_facts=attempts)
    assert row["injected"] == "nan"


@pytest.mark.parametrize(("at", "length"), [(154, 10**6), (147, 60), (161, 101), (200, 30)])
def test_waiting_for_input_begins_and_ends_at_its_steps(at, length):
    """Not with the window in which most steps are of that kind; single slow steps around it are none of it."""

    def waits(n):
        return 0.07 if at <= n < at + length or n in {at - 9, at - 17} else 0.001 * (n % 3)

    (row,) = findings(step_rollup=steps(400, mean_data_time_s=waits, mean_step_time_s=0.13))
    assert (row["detector"], row["step"]) == ("loader_share", at)
    assert row["end_step"] == min(399, at + length - 1)
    assert (row["end_ts"] is None) == (length == 10**6)
    assert row["baseline"] < 0.02


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_planted_fault_is_found_where_it_begins(name):
    """By its own detector, in its run, within 40 steps of where it was put; others say nothing of it."""
    runs = {f"{name}-{number}": planted(name, number) for number in range(len(FAULTS[name]))}
    rows = findings(step_rollup=table({run: steps for run, (steps, _) in runs.items()}), runs=dict.fromkeys(runs, DAY))
    loud = [row for row in rows if row["severity"] != "info"]
    assert {row["detector"] for row in loud} == {name}
    for run, (_, at) in runs.items():
        (row,) = [each for each in loud if each["run"] == run]
        assert abs(row["step"] - at) <= 40, row["message"]
        assert row["message"]
        assert row["evidence_sql"]
        assert row["runbook"] in library()


def thresholds_alone(run):
    """Return what fixed limits would say of a run: the step of each alarm, by the name of the fault it is about."""
    first = slice(20, 120)
    usual = {key: float(np.median(value[first])) for key, value in run.items() if value.dtype != object}
    time = run["mean_step_time_s"]
    limits = {
        "loss_spike": run["mean_loss"] > 1.5 * usual["mean_loss"],
        "divergence": run["mean_loss"] > 1.5 * usual["mean_loss"],
        "non_finite": np.array([flag is not None for flag in run["loss_flag"]]),
        "gradient_spike": run["max_grad_norm"] > 5 * usual["max_grad_norm"],
        "zero_gradients": run["max_grad_norm"] == 0,
        "learning_rate": np.zeros(len(time), bool),
        "throughput_drop": time > 1.5 * usual["mean_step_time_s"],
        "collective_share": run["mean_collective_time_s"] > 0.5 * time,
        "loader_share": run["mean_data_time_s"] > 0.3 * time,
        "data_stall": run.get("max_data_time_s", run["mean_data_time_s"]) > 5,
        "memory_growth": run["max_memory_allocated_bytes"] > 75 * 2**30,
        "rank_silence": run["ranks"] < usual["ranks"],
        "stall": run["pause_s"] > 600,
    }
    return {name: int(np.argmax(beyond)) for name, beyond in limits.items() if beyond.any()}


def measures(alarms, faults):
    """Return precision and recall: alarms by (run, fault) with their step, and the faults by run with theirs."""
    right = {(run, name) for (run, name), step in alarms.items() if name == faults.get(run, ("",))[0]
             and abs(step - faults[run][1]) <= 40}  # fmt: skip
    return len(right) / max(1, len(alarms)), len(right) / len(faults)


def test_precision_and_recall_beside_fixed_thresholds(record_property, capsys):
    """65 faults and 200 sound runs: at most one false finding that is a warning or worse, and few are missed."""
    faults, runs = {}, {f"sound-{seed}": sound(seed) for seed in range(200)}
    for name, ways in FAULTS.items():
        for number in range(len(ways)):
            run, at = planted(name, number)
            faults[f"{name}-{number}"], runs[f"{name}-{number}"] = (name, at), run
    rows = findings(step_rollup=table(runs), runs=dict.fromkeys(runs, DAY))
    loud = [row for row in rows if row["severity"] != "info"]
    assert sum(row["run"].startswith("sound") for row in loud) <= 1
    precision, recall = measures({(row["run"], row["detector"]): row["step"] for row in loud}, faults)
    fixed = {(run, name): step for run, steps in runs.items() for name, step in thresholds_alone(steps).items()}
    fixed_precision, fixed_recall = measures(fixed, faults)
    with capsys.disabled():
        print(f"\n{len(faults)} faults: precision {precision:.3f}, recall {recall:.3f}; "
              f"fixed thresholds {fixed_precision:.3f}, {fixed_recall:.3f}")  # fmt: skip
    record_property("precision", precision)
    record_property("recall", recall)
    assert precision >= 0.95
    assert recall >= 0.95
    assert fixed_recall < recall


ODD = {
    "three points": sound(1, steps=3),
    "one point": sound(1, steps=1),
    "constant": {**sound(1), **{name: np.full(1200, 1.0) for name in ("mean_loss", "max_grad_norm", "lr")}},
    "all NaN": {**sound(1), "mean_loss": np.full(1200, np.nan), "max_grad_norm": np.full(1200, np.nan)},
    "no times": {**sound(1), **{name: np.full(1200, np.nan) for name in (
        "median_step_time_s", "mean_data_time_s", "mean_collective_time_s")}},
    "gaps": {name: column[np.r_[0:200, 500:700, 1000:1200]] for name, column in sound(1).items()},
    "steps begin at a billion": {**sound(1), "step": 10**9 + np.arange(1200)},
    "steps begin again after a restart": {**sound(1), "step": np.arange(1200) % 600, "attempt": np.arange(1200) // 600},
    "steps go on elsewhere": {
        **sound(1), "step": np.r_[0:600, 50_000:50_600], "attempt": np.arange(1200) // 600,
    },
    "thirty days": sound(2, steps=130_000, seconds=20),
    "negative loss": {**sound(1), "mean_loss": -sound(1)["mean_loss"][::-1]},
    "loss of nought": {**sound(1), "mean_loss": np.zeros(1200), "max_memory_allocated_bytes": np.zeros(1200)},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ODD))
def test_an_odd_series_says_nothing(name):
    """Nor does a detector fail on it."""
    rows = findings(step_rollup=table({"r1": ODD[name]}))
    assert [row["message"] for row in rows if row["severity"] != "info"] == []


def test_a_restart_continues_the_series_of_its_run():
    """An attempt that begins anew at a step of the one before has its loss for a baseline; sound, it says nothing."""
    first, second = (
        {name: column[part] for name, column in sound(3).items()} for part in (slice(600), slice(500, None))
    )
    second["attempt"] = np.ones(700, int)
    both = {name: np.concatenate([first[name], second[name]]) for name in first}
    assert findings(step_rollup=table({"r1": both})) == []
    second["mean_loss"] = second["mean_loss"] * 4
    both = {name: np.concatenate([first[name], second[name]]) for name in first}
    (row,) = findings(step_rollup=table({"r1": both}))
    assert (row["detector"], row["attempt"]) == ("divergence", 1)
    assert 500 <= row["step"] <= 520
    second["mean_loss"], second["lr"] = second["mean_loss"] / 4, second["lr"] * 2
    both = {name: np.concatenate([first[name], second[name]]) for name in first}
    (row,) = findings(step_rollup=table({"r1": both}))
    assert (row["detector"], row["step"], round(row["effect"], 3)) == ("learning_rate", 500, 2)


@pytest.mark.parametrize("hours", [1, 24])
def test_a_clock_that_is_set_back_says_nothing_of_steps(hours):
    """Steps from there on have times of before; sound, they are no stall, no silence and no change of pace."""
    rows = table({"r1": sound(1)})
    for name in ("ts", "lead_ts"):
        field = rows.schema.field(name)
        times = rows[name].cast(pa.int64()).to_numpy().copy()
        times[600:] -= hours * 3_600_000_000
        rows = rows.set_column(rows.schema.get_field_index(name), field, pa.array(times).cast(field.type))
    assert findings(step_rollup=rows) == []


@pytest.mark.slow
def test_of_ten_thousand_metrics_the_one_that_left_its_range_is_named():
    """Each of the others has few values; all are looked at together."""
    many, values = 10_000, np.r_[np.random.default_rng(1).normal(0, 1, 500), np.full(100, 40.0)]
    metrics = [*(f"data/m{number}" for number in range(many) for _ in range(10)), *["data/queue_depth"] * 600]
    levels = np.r_[np.random.default_rng(2).normal(0, 1, 10 * many), values]
    steps_of = np.r_[np.tile(np.arange(10), many), np.arange(600)]
    begin = int(NOON.timestamp() * 1e6)
    times = pa.array(begin + steps_of * 1_000_000).cast(pa.timestamp("us", tz="UTC"))
    count = len(metrics)
    nought = dict.fromkeys(("attempt", "rank", "incarnation", "segment"), np.zeros(count, np.int64))
    rows = pa.table({
        **nought, "slot": np.arange(count), "run": ["r1"] * count, "ts": times, "date": times.cast(pa.date32()),
        "step": steps_of, "metric": metrics, "kind": ["gauge"] * count, "value": levels,
    })  # fmt: skip
    (row,) = findings(scalars=conform(rows, contract("scalars")))
    assert row["message"].startswith("data/queue_depth went from")


def test_steps_in_any_order_give_the_same_findings():
    """Rows arrive as they do."""
    rows = table({"r1": planted("loss_spike", 0)[0]})
    mixed = rows.take(np.random.default_rng(0).permutation(rows.num_rows))

    def plain(some):
        return [{**row, "computed_ts": None} for row in some]

    assert plain(findings(step_rollup=mixed)) == plain(findings(step_rollup=rows))


def test_a_detector_that_raises_is_contained(monkeypatch, caplog):
    """It is logged, a finding says so, and the others go on."""

    def fails(series, thresholds):
        raise ZeroDivisionError("secret of a user")

    rollup = next(each for each in ROLLUPS if each.name == "run_findings")
    detectors = tuple(replace(each, find=fails) if each.name == "loss_spike" else each for each in RUN_DETECTORS)
    body = replace(rollup.body, detectors=detectors)
    ctx = context(step_rollup=table({"r1": planted("non_finite", 0)[0]}))
    rows = evaluate_runs(ctx, replace(rollup, body=body), {"r1": DAY}).to_pylist()
    assert {row["detector"] for row in rows} == {"non_finite", "detector_failed"}
    (failed,) = [row for row in rows if row["detector"] == "detector_failed"]
    assert failed["message"].startswith("Detector loss_spike failed with ZeroDivisionError, and says nothing")
    assert "secret" not in json.dumps(failed, default=str)
    assert "loss_spike" in caplog.text


def _spins(series, thresholds):
    """Never end, and handle faults of its own."""
    while True:
        try:
            sum(range(1000))
        except ValueError:
            continue


def _yields(series, thresholds):
    moment = int(series["ts"][0])
    while True:
        yield Detection(moment, moment, "Again")


@pytest.mark.parametrize("thread", [False, True])
def test_a_detector_that_never_ends_is_contained(monkeypatch, caplog, thread):
    """In the main thread or a worker's: it is interrupted and asked no more; others go on; endless ones are cut."""
    monkeypatch.setattr("ranklake.lake.rollups.findings.MOST_DETECTIONS", 50)
    rollup = next(each for each in ROLLUPS if each.name == "run_findings")
    finds = {"loss_spike": _spins, "loss_plateau": _yields}
    detectors = tuple(replace(each, find=finds.get(each.name, each.find)) for each in RUN_DETECTORS)
    body = replace(rollup.body, detectors=detectors, limit_s=0.2)
    ctx = context(step_rollup=table({name: planted("non_finite", 0)[0] for name in ("r1", "r2")}))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit if thread else lambda function, *arguments: SimpleNamespace(
            result=lambda: function(*arguments))  # fmt: skip
        rows = call(evaluate_runs, ctx, replace(rollup, body=body), {"r1": DAY, "r2": DAY}).result().to_pylist()
        assert call(sum, range(10_000)).result() == 49_995_000  # nothing arrives later
    assert Counter(row["detector"] for row in rows) == {"non_finite": 2, "detector_failed": 2, "loss_plateau": 2}
    failed = sorted((row["run"], row["message"]) for row in rows if row["detector"] == "detector_failed")
    assert failed[0][1].startswith("Detector loss_spike did not end within 0.2 s of CPU time, and says nothing (run r1")
    assert failed[1][1].startswith("Detector loss_spike is not asked again, since it did not end before")
    assert "loss_spike did not end" in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name == "ranklake-deadline"]


@pytest.mark.parametrize(("seconds", "named"), [(0.005, []), (1.0, ["throughput_drop"])])
def test_steps_that_are_long_for_a_moment_are_no_drop(seconds, named):
    """Sixty steps are a third of a second of others' work on the machine, or a minute of slow training."""
    times = [seconds * (3 if 150 <= n < 210 else 1) for n in range(300)]
    rows = steps(seconds=seconds, median_step_time_s=times, mean_step_time_s=times)
    assert [row["detector"] for row in findings(step_rollup=rows)] == named


@pytest.mark.parametrize(("share", "named"), [(0.55, []), (1.0, ["throughput_drop"])])
def test_a_busy_minute_is_no_drop(share, named):
    """Where others' work slows one step in ten, and then one in two: that comes and goes. A slower rank slows all."""
    rng = np.random.default_rng(3)
    slow = np.r_[rng.random(120) < 0.12, rng.random(120) < share]
    times = (np.where(slow, 1.6, 1.0) * rng.lognormal(0, 0.05, 240)).tolist()
    rows = steps(240, median_step_time_s=times, mean_step_time_s=times)
    assert [row["detector"] for row in findings(step_rollup=rows)] == named


def saved(minutes, seconds=10.0, action="created", **more):
    """Return a row of artifacts: a checkpoint that was saved."""
    return {"ts": NOON + minutes * 60 * SECOND, "name": f"c{minutes}", "kind": "checkpoint", "action": action,
            "duration_ns": int(seconds * 1e9), "step": minutes, **more}  # fmt: skip


def test_checkpoints_that_fail_take_long_or_do_not_come():
    """A failed save and a digest that differs at once; slow and late ones against those before."""
    sound_saves = [saved(10 * n) for n in range(10)]
    assert findings(artifacts=sound_saves) == []
    rows = findings(artifacts=[
        *sound_saves, saved(95, action="save_failed", exception_type="OSError"), saved(100, 90.0),
        saved(101, action="loaded", verified=False), saved(102, action="verified", verified=True),
        saved(103, action="verified", verified=False), saved(300),
    ])  # fmt: skip
    named = {row["detector"]: row for row in rows}
    assert set(named) == {"checkpoint_failure", "checkpoint_corruption", "checkpoint_duration", "checkpoint_age"}
    assert (named["checkpoint_failure"]["severity"], named["checkpoint_failure"]["step"]) == ("error", 95)
    corrupt = named["checkpoint_corruption"]
    assert (corrupt["severity"], json.loads(corrupt["evidence"])["times"]) == ("critical", 2)
    assert corrupt["message"].startswith("The checkpoint of step 101 is not what was written")
    assert corrupt["runbook"] == "checkpoint-corruption"
    assert (named["checkpoint_duration"]["effect"], named["checkpoint_duration"]["step"]) == (9, 100)
    assert (named["checkpoint_age"]["value"], named["checkpoint_age"]["baseline"]) == (200 * 60, 600)


def test_ranks_that_are_slow_or_differ():
    """What rank_health is certain of, and versions that are not those of most."""
    health = [{"run": "r1", "attempt": 0, "rank": rank, "date": DAY + timedelta(day), "ranks": 4, "steps": 100,
               "steps_compared": 100, "steps_slower": 99, "steps_slowest": 99, "excess_ratio": 0.3, "reason": "why",
               "is_straggler": rank == 2, "cause": "input" if rank == 2 else None, "p_value": 1e-9}
              for rank in range(4) for day in range(2)]  # fmt: skip
    ranks = [{"run": "r1", "rank": rank, "ts": NOON, "nccl_version": "2.19" if rank == 3 else "2.20",
              "lockfile_sha256": "a" * 64} for rank in range(4)]  # fmt: skip
    slow, skewed = findings(rank_health=health, ranks=ranks)
    assert (slow["detector"], slow["rank"], slow["effect"], json.loads(slow["evidence"])["days"]) == (
        "straggler", 2, 0.3, 2)  # fmt: skip
    assert (skewed["detector"], skewed["rank"]) == ("version_skew", 3)
    assert skewed["message"].startswith("The NCCL of rank 3 is 2.19, 2.20 on 3 others")


def test_ends_and_clocks():
    """An attempt that failed, and a clock that was set; what lasted ends with its attempt."""
    ended = NOON + 3600 * SECOND
    goodput = [{"run": "r1", "attempt": 0, "date": DAY, "ts": NOON, "end_ts": ended, "wall_ns": 1, "checkpoint_ns": 0,
                "stall_ns": 0, "unattributed_ns": 0, "restart_ns": 0, "status": "failed",
                "lost_work_ns": 600 * 10**9}]  # fmt: skip
    events = [{"ts": NOON, "event": "clock_step", "rank": 3, "attributes": '{"step_s": -5.5}'}]
    flagged = steps(100, loss_flag=lambda n: "nan" if n > 50 else None)
    rows = {row["detector"]: row for row in findings(goodput=goodput, events=events, step_rollup=flagged)}
    assert set(rows) == {"run_failed", "clock_skew", "non_finite"}
    assert rows["run_failed"]["message"].startswith("Attempt 0 failed, 10 min of work were lost")
    assert (rows["clock_skew"]["rank"], rows["clock_skew"]["effect"]) == (3, -5.5)
    assert rows["non_finite"]["end_ts"] == ended


def test_one_hard_batch_is_no_warning():
    """A step of half as much again, with the next as usual; two in a row, or one far out, are."""

    def spiking(values):
        return steps(300, mean_loss=lambda n: values[n - 200] if 200 <= n < 200 + len(values) else 3.0)

    severities = [findings(step_rollup=spiking(values))[0]["severity"] for values in ([5.0], [5.0, 4.9], [9.0])]
    assert severities == ["info", "warning", "warning"]


def test_the_first_batch_of_each_epoch_is_no_stall():
    """A wait of 6 s each 700 steps is told twice; ones that cost much, or one that is longer, each time."""

    def stalls(waits):
        given = {"median_step_time_s": 1.0, "max_data_time_s": lambda n: waits.get(n, 0.01)}
        return [row["step"] for row in findings(step_rollup=steps(2500, **given)) if row["detector"] == "data_stall"]

    epochs = dict.fromkeys(range(300, 2500, 700), 6.0)
    assert stalls(epochs) == [300, 1000]
    assert stalls({**epochs, 2000: 30.0}) == [300, 1000, 2000]
    assert stalls(dict.fromkeys(range(300, 2500, 700), 20.0)) == [300, 1000, 1700, 2400]


def test_a_run_that_restarts_every_minute_has_the_rates_of_a_thousand_attempts():
    """Each attempt goes back two steps; the rate of one is off, and the next one's, which comes back."""
    rows = []
    for attempt in range(1000):
        start = NOON + attempt * 60 * SECOND
        rate = 2e-3 if attempt == 700 else 1e-3
        rows += steps(4, attempt=attempt, first=2 * attempt, start=start, lr=rate)
    assert [(row["attempt"], row["step"]) for row in findings(step_rollup=rows)] == [(700, 1400), (701, 1402)]


@pytest.mark.parametrize("norms", [49, 60])
def test_a_norm_that_a_framework_does_not_know_is_none_of_zero(norms):
    """The loss falls all the same; where it does not, gradients are zero."""
    zeros = {"max_grad_norm": 0.0, "loss_ranks": 1}
    assert findings(step_rollup=steps(norms, mean_loss=lambda n: 7 + 40 * 0.9**n, **zeros)) == []
    (row,) = findings(step_rollup=steps(norms, mean_loss=lambda n: 7 + 0.1 * (n % 3), **zeros))
    assert row["detector"] == "zero_gradients"


def test_a_late_attempt_whose_norms_are_unknown_as_before_is_none_of_zero():
    """Its own loss hardly falls any more; after attempts whose norms were known, zeros are a fault."""

    def attempts(norm):
        parts = ((0, 200, lambda n: 9 - n / 40, norm), (1, 60, lambda n: 4 + 0.01 * (n % 3), 0.0))
        return [row for attempt, count, loss, value in parts for row in steps(
            count, attempt=attempt, first=200 * attempt, start=NOON + 300 * attempt * SECOND, mean_loss=loss,
            max_grad_norm=value)]  # fmt: skip

    assert findings(step_rollup=attempts(0.0)) == []
    assert [(row["detector"], row["attempt"]) for row in findings(step_rollup=attempts(1.0))] == [("zero_gradients", 1)]


@pytest.mark.parametrize(("decay", "detector"), [(8, "loss_spike"), (60, "divergence"), (400, "divergence")])
def test_the_spike_of_a_published_run_is_found(decay, detector):
    """Of BigScience's 13B: 2.77, 7.34, 8.72, 7.65, 7.19, 6.85 at every tenth iteration; then it came back."""
    spike = [7.34, 8.72, 7.65, 7.19, 6.85]

    def loss(n):
        after = n - 300
        if after < 0:
            return 2.78 + 0.02 * np.sin(7.0 * n)
        return spike[after] if after < len(spike) else 2.76 + 4.1 * np.exp(-(after - 4) / decay)

    rows = [row for row in findings(step_rollup=steps(1200, mean_loss=loss)) if row["severity"] != "info"]
    assert detector in {row["detector"] for row in rows}
    assert all(abs(row["step"] - 300) <= 10 for row in rows)


@pytest.mark.parametrize(
    "text", [None, "", "[1]", "3", "{", '{"step_s": "x"}', '{"step_s": 1e999}', '{"step_s": true}']
)
def test_events_of_clocks_that_say_nothing_stop_nothing(text):
    """Another rank's clock was set as well, and is told."""
    events = [{"ts": NOON, "event": "clock_step", "rank": 1, "attributes": text},
              {"ts": NOON + 7200 * SECOND, "event": "clock_step", "rank": 3,
               "attributes": '{"step_s": -5.5}'}]  # fmt: skip
    assert [(row["detector"], row["rank"], row["effect"]) for row in findings(events=events)] == [
        ("clock_skew", 1, None), ("clock_skew", 3, -5.5)]  # fmt: skip


@pytest.mark.parametrize("year", [1, 1970, 9999])
def test_a_clock_may_say_any_year(year):
    """A finding at either end of time costs nobody else's findings."""
    at = NOON.replace(year=year, month=12, day=31, hour=23, minute=59, second=59)
    events = [{"ts": at, "event": "clock_step", "rank": 3, "attributes": '{"step_s": -5.5}'}]
    assert {row["detector"] for row in findings(events=events)} == {"clock_skew"}


def test_saves_that_took_no_time_before_are_compared_all_the_same():
    """A duration of nought is nothing to divide by."""
    saves = [{"ts": NOON + n * 60 * SECOND, "kind": "checkpoint", "action": "created", "name": f"{n}", "step": n,
              "duration_ns": 9 * 10**9 if n == 8 else 0} for n in range(10)]  # fmt: skip
    assert "checkpoint_duration" in {row["detector"] for row in findings(artifacts=saves)}


def test_detectors_have_names_of_their_own():
    """Thresholds and settings go by the name; each runbook is a page of the failure library."""
    names = [each.name for each in DETECTORS]
    assert len(set(names)) == len(names)
    assert {each.runbook for each in DETECTORS} <= set(library())


def test_every_query_of_evidence_runs():
    """Over empty tables, too, for each detector, with what a finding may lack."""
    ctx = context()
    for detector in RUN_DETECTORS:
        row = finding(detector, Series({"run": "r'1"}, {}), Detection(0, None, "x"), NOON)
        ctx.sql(row["evidence_sql"]).to_arrow_table()


def test_settings_change_thresholds_and_switch_detectors_off():
    """A threshold of the operator's, and a detector that is off; a wrong name is refused with the nearest."""
    config = LakeConfig(detectors=DetectorsSection(off=("loss_spike",), thresholds=(
        DetectorThreshold("non_finite", "min_steps", 7.0),)))  # fmt: skip
    listed = {each.name: limits for each, limits in detectors_with(config)}
    assert "loss_spike" not in listed
    assert listed["non_finite"]["min_steps"] == 7
    (rollup,) = [each for each in select_rollups(["run_findings"], config) if each.name == "run_findings"]
    assert rollup.parameters["non_finite.min_steps"] == 7
    assert "loss_spike" not in {each.name for each in rollup.body.detectors}
    (default,) = [each for each in select_rollups(["run_findings"]) if each.name == "run_findings"]
    assert rollup.sha256 != default.sha256
    for wrong in (DetectorsSection(off=("loss_spyke",)),
                  DetectorsSection(thresholds=(DetectorThreshold("loss_spike", "deviation", 1),))):  # fmt: skip
        with pytest.raises(ThresholdError) as error:
            select_rollups(["run_findings"], LakeConfig(detectors=wrong))
        assert "did you mean" in error.value.hint


def hung(rank, minute=0, event="hang", number=None, *, ended=False, **more):
    """Return an event of a rank that hangs."""
    attributes = None
    if number is not None:
        facts = {"group": "0 default_pg", "collective": "nccl:all_reduce", "collective_number": number, "ended": ended}
        attributes = json.dumps(facts)
    return {
        "ts": NOON + timedelta(minutes=minute), "rank": rank, "event": event, "severity": "error", "step": 40,
        "message": "no step or phase began for 300 s", "attributes": attributes, **more,
    }  # fmt: skip


def test_a_hang_names_the_rank_that_did_not_arrive():
    """Those that wait are its victims; the query of the evidence shows what each said."""
    events = [hung(rank, number=123) for rank in range(7)] + [hung(7, number=122, ended=True)]
    (row,) = findings(events=[one | {"event": "flight_recorder"} for one in events])
    assert row["message"].startswith(
        "Ranks 0 to 6 wait in collective 123 of their group, nccl:all_reduce; rank 7 did not begin it"
    )
    assert (row["detector"], row["severity"], row["rank"], row["effect"], row["step"]) == ("hang", "error", 7, 8, 40)
    assert context(events=events).sql(row["evidence_sql"]).count() == 8


def test_a_hang_without_a_flight_recorder_names_the_ranks():
    """Two hangs an hour apart are two; one of all ranks in the same collective says that none is missing."""
    first, second, third = findings(events=[
        *(hung(rank) for rank in (0, 1, 2, 3, 9)), *(hung(rank, 60) for rank in range(2)),
        *(hung(rank, 180, "flight_recorder", 5) for rank in range(2)),
    ])  # fmt: skip
    assert first["message"].startswith("Nothing begins any more on ranks 0 to 3, 9 (")
    assert (second["effect"], second["rank"]) == (2, None)
    assert third["message"].startswith("All of ranks 0, 1 wait in nccl:all_reduce, collective 5")


def test_a_hang_lasts_from_the_last_step_until_all_ranks_go_on():
    """Not from its report, and not for as long as reports come; while a rank hangs, it has no end."""
    still = json.dumps({"still_s": 300.0})
    reports = [hung(rank, attributes=still, step=40 + (rank == 0)) for rank in range(2)]
    over = [hung(rank, 20 + rank, "hang_end", severity="info") for rank in range(2)]
    (row,) = findings(events=reports + over)
    assert (row["start_ts"], row["end_ts"]) == (NOON - timedelta(minutes=5), NOON + timedelta(minutes=21))
    assert row["message"].startswith("Nothing begins any more on ranks 0, 1; rank 1 is behind, at step 40")
    assert row["rank"] == 1
    (lasting,) = findings(events=reports + over[:1])
    assert lasting["end_ts"] is None
    assert findings(events=over) == []


def test_ranks_that_do_not_answer_ncclras():
    """Each report names who does not answer and who reports an error; ranks that are behind are none of it."""

    def reported(rank, severity, minute=0, **facts):
        return hung(rank, minute, "nccl_ras", severity=severity) | {"attributes": json.dumps({"group": "0x8f"} | facts)}

    rows = findings(events=[
        reported(0, "info"), reported(1, "warning", behind={"AllReduce": {"launched": 3, "most": 4}}),
        reported(2, "error", async_error=6), reported(3, "error", missing=True), reported(5, "error", missing=True),
        reported(3, "error", 60, missing=True),
    ])  # fmt: skip
    first, second = rows
    assert first["message"].startswith("NCCL's RAS: ranks 3, 5 do not answer, rank 2 reports an error")
    assert (first["detector"], first["effect"], first["rank"]) == ("nccl_ras", 3, None)
    assert second["message"].startswith("NCCL's RAS: rank 3 does not answer")
    assert second["rank"] == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"group": 3, "collective": null}', "[" * 5000])
def test_events_that_say_nothing_of_collectives_stop_nothing(text):
    """A foreign event of the same name is a hang of its rank."""
    (row,) = findings(events=[hung(3, attributes=text, step=None)])
    assert (row["message"][:34], row["step"]) == ("Nothing begins any more on rank 3 ", None)


@pytest.mark.parametrize(
    ("excess", "seconds", "severities"),
    [(0.3, 0.008, []), (0.3, 0.35, []), (0.3, 0.45, ["warning"]), (None, 0.008, []), (None, 0.45, ["warning"]),
     (0.59, 0.008, ["warning"]), (0.59, 0.45, ["error"])],
)  # fmt: skip
def test_nobody_gets_up_for_a_rank_that_is_slow_for_a_moment(excess, seconds, severities):
    """Less than 40 s of its own time is a warning where it is severely slower, and else nothing."""
    health = [{"run": "r1", "attempt": 0, "rank": 1, "date": DAY, "ranks": 2, "steps": 110, "steps_compared": 100,
               "steps_slower": 99, "steps_slowest": 99, "excess_ratio": excess, "self_time_median_s": seconds,
               "reason": "why", "is_straggler": True}]  # fmt: skip
    assert [row["severity"] for row in findings(rank_health=health)] == severities


def test_a_finding_of_a_day_lies_within_its_attempt():
    """A straggler is known by the day: it begins with its attempt, and ends with it."""
    goodput = [{"run": "r1", "attempt": 0, "date": DAY, "ts": NOON, "end_ts": NOON + 60 * SECOND, "wall_ns": 1,
                "checkpoint_ns": 0, "stall_ns": 0, "unattributed_ns": 0, "restart_ns": 0, "lost_work_ns": 0,
                "status": "finished"}]  # fmt: skip
    health = [{"run": "r1", "attempt": 0, "rank": 1, "date": DAY, "ranks": 4, "steps": 100, "steps_compared": 100,
               "steps_slower": 99, "steps_slowest": 99, "excess_ratio": 0.3, "reason": "why",
               "is_straggler": True}]  # fmt: skip
    (row,) = findings(goodput=goodput, rank_health=health)
    assert (row["start_ts"], row["end_ts"]) == (NOON, NOON + 60 * SECOND)


def spoilt(name, at, seed):
    """Return a run of which one step has a loss that is no number."""
    run = run_of(name, steps=60, seed=seed)
    for row in run["steps"]:
        if row["step"] == at:
            row.update(loss=None, non_finite="loss:nan")
    return run


def test_more_runs_add_findings_and_keep_when_others_were_first_computed(lake, tmp_path):
    """Incremental equals full, row for row; ``computed_ts`` is that of the first time, whatever the thresholds."""

    def held(of):
        run_rollups(of, ["run_findings"])
        return read(of.tables, contract("run_findings")).sort_by("finding_id").to_pylist()

    bring(lake, spoilt("r1", 30, 1))
    (first,) = held(lake)
    assert (first["detector"], first["step"]) == ("non_finite", 30)
    bring(lake, spoilt("r2", 40, 2))
    second = held(lake)
    assert {(row["run"], row["step"]) for row in second} == {("r1", 30), ("r2", 40)}
    assert first in second
    section = DetectorsSection(thresholds=(DetectorThreshold("non_finite", "cooldown_s", 7),))
    assert held(Lake.open(lake.uri, config=LakeConfig(detectors=section))) == second
    other = Lake.create(str(tmp_path / "other"))
    bring(other, spoilt("r1", 30, 1), spoilt("r2", 40, 2))
    assert [{**row, "computed_ts": None} for row in held(other)] == [{**row, "computed_ts": None} for row in second]
