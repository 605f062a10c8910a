"""The rollups `run_facts` and `mfu`: sums over sums, with the source of every number."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, append, computed, context

from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.peaks import Peak, devices, find_peak
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.quality.check import run_checks

A100 = {"device_type": "cuda", "device_name": "NVIDIA A100-SXM4-80GB", "compute_dtype": "bfloat16"}


def run_row(**facts):
    return {"ts": NOON, "world_size": 2, "device_count": 2, **facts}


def step_row(rank, step, seconds, at=NOON, **facts):
    return {"rank": rank, "step": step, "ts": at, "step_time_s": seconds, **facts}


def said(metric, value, rank=0, at=NOON, **facts):
    return {"metric": metric, "value": value, "rank": rank, "ts": at, "kind": "gauge", **facts}


def mfu_of(days=(DAY,), **tables):
    """Compute run_facts, then mfu from it."""
    ctx = context(**tables)
    replace_table(ctx, "run_facts", computed(ctx, "run_facts", days))
    return computed(ctx, "mfu", days).sort_by([("hour", "ascending"), ("run", "ascending")]).to_pylist()


def test_flops_of_all_ranks_over_what_their_devices_could_have_done():
    """Two A100 for 1 s, 50 and 106 TFLOP done: 156 of 624 TFLOP are 25 %, with source, format and convention."""
    (row,) = mfu_of(
        runs=[run_row(**A100)],
        steps=[step_row(rank, 0, 1.0, tokens=10) for rank in (0, 1)],
        scalars=[said("model/flops_per_step", 50e12, 0), said("model/flops_per_step", 106e12, 1)],
    )
    assert (row["model_flops"], row["peak_flops"], row["mfu_ratio"]) == (156e12, 624e12, 0.25)
    assert (row["ranks"], row["rank_steps"], row["tokens"], row["step_time_ns"]) == (2, 2, 20, 2 * 10**9)
    assert (row["flops_per_step"], row["peak_flops_per_s"]) == (156e12, 312e12)
    assert row["peak_source"] == "table: NVIDIA A100 datasheet"
    assert (row["peak_dtype"], row["flops_convention"], row["n_convention"]) == ("bfloat16", "counted", None)
    assert (row["reason"], row["hfu_ratio"]) == (None, None)
    assert row["hfu_reason"] == "recomputed FLOPs are not recorded"


def test_hfu_where_recomputed_flops_are_recorded():
    """With a count that holds recomputed activations HFU is given beside MFU, from the same peak."""
    (row,) = mfu_of(
        runs=[run_row(**A100)],
        steps=[step_row(0, 0, 1.0)],
        scalars=[said("model/flops_per_step", 78e12), said("model/hardware_flops_per_step", 104e12)],
    )
    assert (row["mfu_ratio"], row["hfu_ratio"], row["hfu_reason"]) == (0.25, pytest.approx(1 / 3), None)


def test_tokens_times_the_runs_count_where_a_rank_has_no_count_of_its_own():
    """A count per token that rank 0 made serves all ranks, by their own tokens; not if a step's tokens are unknown."""
    tables = {
        "runs": [run_row(**A100)],
        "scalars": [said("model/flops_per_token", 1e12), said("model/flops_per_step", 7e12)],
    }
    steps = [step_row(0, 0, 1.0, tokens=3), step_row(1, 0, 1.0, tokens=5)]
    (row,) = mfu_of(steps=steps, **tables)
    assert row["model_flops"] == 7e12 + 5e12
    (row,) = mfu_of(steps=[*steps, step_row(1, 1, 1.0)], **tables)
    assert row["mfu_ratio"] is None
    assert row["reason"] == "model FLOPs are not recorded on 1 of 2 ranks"


def test_hfu_of_ranks_that_did_not_count():
    """A rank that goes by the run's count per token has the run's share of recomputed FLOPs, too."""
    (row,) = mfu_of(
        runs=[run_row(**A100)],
        steps=[step_row(0, 0, 1.0, tokens=3), step_row(1, 0, 1.0, tokens=6)],
        scalars=[
            said("model/flops_per_token", 1e12),
            said("model/flops_per_step", 3e12),
            said("model/hardware_flops_per_step", 4e12),
        ],
    )
    assert (row["model_flops"], row["hardware_flops"]) == (9e12, 12e12)


def test_a_cpu_is_held_against_its_own_calibration():
    """No table has a peak of a CPU: the rank's best measured rate stands in, and the row says so."""
    (row,) = mfu_of(
        runs=[run_row(device_type="cpu", device_name="AMD EPYC 7763", compute_dtype="float32")],
        steps=[step_row(rank, 0, 2.0) for rank in (0, 1)],
        scalars=[
            said("model/flops_per_step", 10e9, 0),
            said("model/flops_per_step", 10e9, 1),
            said("device/peak_flops_measured", 40e9, 0),
            said("device/peak_flops_measured", 50e9, 0, incarnation=8),
            said("device/peak_flops_measured", 50e9, 1),
        ],
    )
    assert row["mfu_ratio"] == pytest.approx(20e9 / (2 * 2 * 50e9))
    assert row["peak_source"] == "measured: calibration matrix product"
    assert (row["peak_dtype"], row["peak_flops_per_s"]) == ("float32", 50e9)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (None, "the run's device is not recorded"),
        (
            {"device_type": "cuda", "device_name": "NVIDIA H100X", "compute_dtype": "bfloat16"},
            "NVIDIA H100X in bfloat16",
        ),
        ({"device_type": "cuda", "device_name": "NVIDIA A100-SXM4-80GB", "compute_dtype": "float8"}, "in float8"),
        ({"device_type": "cuda", "device_name": "NVIDIA A100-SXM4-80GB"}, "number format is not recorded"),
    ],
)
def test_an_unknown_peak_is_null_with_its_reason(run, reason):
    """Unknown device, precision that it has no peak in, no run row: no ratio, FLOPs kept, and why."""
    (row,) = mfu_of(
        runs=[] if run is None else [run_row(**run)],
        steps=[step_row(0, 0, 1.0)],
        scalars=[said("model/flops_per_step", 1e12)],
    )
    assert (row["mfu_ratio"], row["peak_flops"], row["peak_source"], row["peak_dtype"]) == (None, None, None, None)
    assert row["model_flops"] == 1e12
    assert reason in row["reason"]


def test_every_name_of_every_device_is_found_by_sql_as_by_python():
    """The SQL's spelling of names is Python's: each alias and number format gives the same peak, or none."""
    cases = [
        (name, dtype)
        for device in devices()
        for name in (*device.names, f"  {device.names[0].upper()} ")
        for dtype in ("bfloat16", "torch.float32", "FP8", "tf32")
    ]
    runs = [
        run_row(run=f"{n:05}", device_type="cuda", device_name=name, compute_dtype=dtype)
        for n, (name, dtype) in enumerate(cases)
    ]
    steps = [step_row(0, 0, 1.0, run=f"{n:05}") for n in range(len(cases))]
    found = {row["run"]: row["peak_flops_per_s"] for row in mfu_of(runs=runs, steps=steps)}
    for number, (name, dtype) in enumerate(cases):
        peak = find_peak(name, dtype)
        assert found[f"{number:05}"] == (pytest.approx(peak.flops_per_s) if isinstance(peak, Peak) else None), (
            name,
            dtype,
        )


CPU = {"device_type": "cpu", "device_name": "AMD EPYC 7763"}


@pytest.mark.parametrize(
    ("runs", "peak_dtype", "is_other"),
    [
        ([{**CPU, "compute_dtype": "fp32"}], "float32", False),
        ([{**CPU, "compute_dtype": "bfloat16"}], "float32", True),
        ([CPU], "float32", None),
        ([A100], "bfloat16", False),
        ([A100, {**A100, "compute_dtype": "bf16"}], "bfloat16", False),
        ([A100, {**A100, "compute_dtype": "torch.float32"}], "bfloat16", True),
        ([{**A100, "compute_dtype": "float8"}], "float32", True),
    ],
)
def test_a_peak_of_another_precision_is_found(runs, peak_dtype, is_other):
    """A measured peak is of float32, whatever the run computes in; a run that says two formats has a peak of one."""
    (row,) = mfu_of(
        runs=[run_row(**facts, incarnation=number) for number, facts in enumerate(runs, 1)],
        steps=[step_row(0, 0, 1.0)],
        scalars=[said("model/flops_per_step", 1e9), said("device/peak_flops_measured", 1e10)],
    )
    assert row["mfu_ratio"] is not None
    assert (row["peak_dtype"], row["is_peak_of_other_dtype"]) == (peak_dtype, is_other)


@pytest.mark.slow
def test_checks_name_a_peak_that_cannot_be_right(tmp_path):
    """`ranklake check` fails on an MFU above 1, and warns of a peak of another precision."""
    lake = Lake.create(str(tmp_path / "lake"))
    facts = {
        "runs": [run_row(**A100), run_row(**CPU, compute_dtype="bfloat16", run="r2")],
        "steps": [step_row(0, 0, 1.0), step_row(0, 0, 1.0, run="r2")],
        "scalars": [
            said("model/flops_per_step", 600e12),
            said("model/flops_per_step", 1e9, run="r2"),
            said("device/peak_flops_measured", 1e10, run="r2"),
        ],
    }
    for table, rows in facts.items():
        append(lake, table, rows)
    run_rollups(lake, ["mfu"])
    results = run_checks(lake, ["mfu"]).results
    failed = {(one.check_id, one.severity, one.rows_failed) for one in results if one.unsound}
    assert failed == {
        ("mfu_range", "error", 1),
        ("peak_of_same_dtype", "warning", 1),
        ("plausible_ratio", "warning", 1),
    }


def test_two_devices_a_rank_double_its_peak():
    """A rank that drives two devices is held against both."""
    (row,) = mfu_of(
        runs=[{**run_row(**A100), "world_size": 2, "device_count": 4}],
        steps=[step_row(0, 0, 1.0)],
        scalars=[said("model/flops_per_step", 312e12)],
    )
    assert row["mfu_ratio"] == 0.5


def test_what_was_said_once_holds_on_later_days():
    """A run that said its FLOPs on its first day has its MFU on the second; a later word replaces the earlier."""
    later = NOON + timedelta(days=1)
    tables = {
        "runs": [run_row(**A100)],
        "steps": [step_row(0, 0, 1.0), step_row(0, 1, 1.0, later), step_row(0, 2, 1.0, later + timedelta(days=1))],
        "scalars": [
            said("model/flops_per_step", 156e12),
            said("model/flops_per_step", 78e12, at=later + timedelta(days=1)),
        ],
    }
    found = mfu_of(days=[DAY + timedelta(days=number) for number in range(3)], **tables)
    assert [row["mfu_ratio"] for row in found] == [0.5, 0.5, 0.25]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_hours_add_up_to_any_coarser_ratio(data):
    """Numerators and denominators of hours and runs, added up, give the ratio of all steps computed at once."""
    count = data.draw(st.integers(1, 40))
    numbers = st.floats(0.125, 10, width=32)
    steps = [
        step_row(n % 3, n, data.draw(numbers), NOON + timedelta(minutes=data.draw(st.integers(0, 600))))
        for n in range(count)
    ]
    counts = {rank: data.draw(st.integers(1, 10**15)) for rank in range(3)}
    found = mfu_of(
        runs=[run_row(**A100)],
        steps=steps,
        scalars=[said("model/flops_per_step", float(value), rank) for rank, value in counts.items()],
    )
    flops = sum(counts[row["rank"]] for row in steps)
    seconds = sum(row["step_time_s"] for row in steps)
    assert sum(row["rank_steps"] for row in found) == count
    ratio = sum(row["model_flops"] for row in found) / sum(row["peak_flops"] for row in found)
    assert ratio == pytest.approx(flops / (seconds * 312e12), rel=1e-6)


def steps_of(**tables):
    """Compute what step_mfu reads, then it; return its rows and those of mfu."""
    ctx = context(**tables)
    for name in ("run_facts", "mfu", "step_rollup"):
        replace_table(ctx, name, computed(ctx, name))
    found = computed(ctx, "step_mfu").sort_by([("attempt", "ascending"), ("step", "ascending")]).to_pylist()
    return found, ctx.sql("SELECT * FROM mfu").to_arrow_table().to_pylist()


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_steps_add_up_to_their_hour(data):
    """Each step has its MFU; numerators and denominators of steps sum up to the hour's, whose ratio is their mean."""
    numbers = st.floats(0.125, 10, width=32)
    times = [[data.draw(numbers) for _ in range(2)] for _ in range(data.draw(st.integers(1, 12)))]
    tokens = data.draw(st.none() | st.lists(st.integers(1, 9), min_size=len(times), max_size=len(times)))
    steps = [
        step_row(rank, number, seconds, NOON + timedelta(minutes=10 * number), tokens=tokens and tokens[number])
        for number, both in enumerate(times)
        for rank, seconds in enumerate(both)
    ]
    said_once = [said("model/flops_per_step", 100e12, rank) for rank in (0, 1)]
    found, hours = steps_of(runs=[run_row(**A100)], steps=steps, scalars=said_once)
    assert [row["step"] for row in found] == list(range(len(times)))
    for row in found:
        in_hour = range(row["step"] // 6 * 6, min(len(times), row["step"] // 6 * 6 + 6))
        share = tokens[row["step"]] / sum(tokens[step] for step in in_hour) if tokens else 1 / len(in_hour)
        could = 312e12 * sum(times[row["step"]])
        assert row["peak_flops"] == pytest.approx(could, rel=1e-6)
        done = 200e12 * len(in_hour) * share
        assert row["model_flops"] == pytest.approx(done, rel=1e-6)
        (hour,) = (hour for hour in hours if hour["hour"] <= row["ts"] < hour["hour"] + timedelta(hours=1))
        if done > could and hour["mfu_ratio"] <= 1:  # no device computes above its peak: the host ran ahead of it
            assert (row["mfu_ratio"], "ahead of the device" in row["reason"]) == (None, True)
        else:
            assert (row["mfu_ratio"], row["reason"]) == (pytest.approx(done / could, rel=1e-6), None)
    for name in ("model_flops", "peak_flops"):
        assert sum(row[name] for row in found) == pytest.approx(sum(row[name] for row in hours), rel=1e-9)


def test_a_step_that_the_host_ran_ahead_in_has_no_mfu():
    """After a wait for the device a step is over at once; the hour is as it is, unless it is above the peak, too."""
    steps = [step_row(0, n, seconds, NOON + timedelta(seconds=n)) for n, seconds in enumerate((1.0, 0.125, 1.0))]
    scalars = [said("model/flops_per_step", 78e12), said("model/hardware_flops_per_step", 78e12)]
    found, (hour,) = steps_of(runs=[run_row(**A100)], steps=steps, scalars=scalars)
    assert [row["mfu_ratio"] for row in found] == [pytest.approx(0.25), None, pytest.approx(0.25)]
    assert [row["hfu_ratio"] is None for row in found] == [False, True, False]
    assert found[1]["reason"] == found[1]["hfu_reason"]
    assert "ahead of the device" in found[1]["reason"]
    assert hour["mfu_ratio"] == pytest.approx(3 * 78 / (2.125 * 312))
    found, (hour,) = steps_of(runs=[run_row(**A100)], steps=steps, scalars=[said("model/flops_per_step", 312e12)])
    assert [row["mfu_ratio"] for row in found] == pytest.approx([1, 8, 1])
    assert hour["mfu_ratio"] > 1


def test_a_step_says_why_it_has_no_mfu():
    """The hour's reason is the step's; a step whose tokens are unknown shares by ranks with all of its hour."""
    (row,), _ = steps_of(steps=[step_row(0, 0, 1.0)])
    assert (row["mfu_ratio"], row["reason"]) == (None, "model FLOPs are not recorded on 1 of 1 ranks")
    steps = [step_row(0, 0, 1.0, tokens=30), step_row(0, 1, 3.0, NOON + timedelta(seconds=1))]
    scalars = [said("model/flops_per_step", 78e12), said("model/hardware_flops_per_step", 104e12)]
    found, _ = steps_of(runs=[run_row(**A100)], steps=steps, scalars=scalars)
    assert [row["mfu_ratio"] for row in found] == pytest.approx([78 / 312, 78 / 936])
    assert [row["hfu_ratio"] for row in found] == pytest.approx([104 / 312, 104 / 936])
    assert {(row["flops_convention"], row["peak_source"]) for row in found} == {
        ("counted", "table: NVIDIA A100 datasheet")
    }
