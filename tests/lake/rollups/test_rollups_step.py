"""The rollup `step_rollup`, against an oracle in numpy."""

import math
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, computed, context, rows

MIDNIGHT = NOON.replace(hour=0)
PHASES = ("data", "forward", "backward", "optimizer", "collective", "checkpoint", "evaluation")


def steps_of(seed, ranks, steps, start=NOON, missing=0.3):
    """Return random rows of `steps`: any phase, loss or token count may be missing on any rank."""
    rng = np.random.default_rng(seed)
    found = []
    for step in range(steps):
        for rank in range(ranks):
            if ranks > 1 and rng.random() < 0.1:
                continue
            total = float(np.float32(rng.gamma(20, 0.05)))
            row = {"rank": rank, "step": step, "step_time_s": total}
            row["ts"] = start + timedelta(seconds=1.5 * step, microseconds=int(rng.integers(0, 900_000)))
            for phase in PHASES:
                if rng.random() > missing:
                    row[f"{phase}_time_s"] = float(np.float32(total * rng.random() * 0.5))
            if rng.random() > missing:
                row |= {"tokens": int(rng.integers(1, 5000)), "loss": float(np.float32(rng.normal(3, 1)))}
            if rng.random() < 0.05:
                row["non_finite"] = "grad_norm:nan"
            found.append(row)
    return found


def ns(value):
    """Return whole nanoseconds of a float32 in seconds; halves go up, as SQL rounds."""
    return math.floor(float(np.float32(value)) * 1e9 + 0.5)


def oracle(facts):
    """Return {step: row} by plain loops over the ranks of each step."""
    found = {}
    for step in sorted({row["step"] for row in facts}):
        ranks = [row for row in facts if row["step"] == step]
        times = np.array([ns(row["step_time_s"]) for row in ranks], float)
        own = np.array([max(ns(row["step_time_s"]) - ns(row.get("collective_time_s", 0)), 0) for row in ranks])
        order = sorted(range(len(ranks)), key=lambda at: (-(own[at] // 1000), ranks[at]["rank"]))
        zero = next((row for row in ranks if row["rank"] == 0), None)
        expected = {
            "ts": min(row["ts"] for row in ranks),
            "lead_ts": zero["ts"] if zero else min(row["ts"] for row in ranks),
            "lead_step_time_ns": ns(zero["step_time_s"]) if zero else int(times.max()),
            "ranks": len(ranks),
            "sum_step_time_ns": int(times.sum()),
            "min_step_time_s": times.min() / 1e9,
            "median_step_time_s": float(np.median(times)) / 1e9,
            "mean_step_time_s": times.mean() / 1e9,
            "max_step_time_s": times.max() / 1e9,
            "std_step_time_s": times.std() / 1e9,
            "imbalance_ratio": times.max() / times.mean(),
            "sum_self_time_ns": int(own.sum()),
            "max_self_time_s": own.max() / 1e9,
            "slowest_rank": ranks[order[0]]["rank"] if len(ranks) > 1 else None,
            "slowest_excess_s": (own.max() - np.delete(own, own.argmax()).mean()) / 1e9 if len(ranks) > 1 else None,
            "tokens": sum(row["tokens"] for row in ranks if "tokens" in row) or None,
            "loss_ranks": sum("loss" in row for row in ranks),
            "non_finite_ranks": sum("non_finite" in row for row in ranks),
        }
        losses = [row["loss"] for row in ranks if "loss" in row]
        expected["mean_loss"] = float(np.mean(losses)) if losses else None
        for phase in PHASES:
            values = [row[f"{phase}_time_s"] for row in ranks if f"{phase}_time_s" in row]
            expected[f"mean_{phase}_time_s"] = float(np.mean(values)) if values else None
            expected[f"max_{phase}_time_s"] = max(values) if values else None
        for phase in ("checkpoint", "evaluation"):
            whose = [zero] if zero else ranks
            values = [ns(row[f"{phase}_time_s"]) for row in whose if f"{phase}_time_s" in row]
            expected[f"lead_{phase}_time_ns"] = max(values) if values else None
        found[step] = expected
    return found


def assert_same(row, expected):
    for name, value in expected.items():
        if isinstance(value, float):
            assert row[name] == pytest.approx(value, rel=2e-6, abs=2e-8), name
        else:
            assert row[name] == value, name


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 9), steps=st.integers(1, 12))
@pytest.mark.slow
def test_each_column_is_what_plain_loops_give(seed, ranks, steps):
    """Every statistic of random steps equals the oracle's: NULL where nothing was recorded, never 0."""
    facts = steps_of(seed, ranks, steps)
    found = {row["step"]: row for row in computed(context(steps=facts), "step_rollup").to_pylist()}
    expected = oracle(facts)
    assert found.keys() == expected.keys()
    for step, row in expected.items():
        assert_same(found[step], row)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.integers(0, 2**32))
@pytest.mark.slow
def test_no_order_of_rows_changes_a_digit(seed, order):
    """The same rows in another order, in other batches and with other parallelism, give equal bytes."""
    table = rows("steps", steps_of(seed, 5, 20))
    shuffled = table.take(np.random.default_rng(order).permutation(table.num_rows))
    one = computed(context(steps=table, threads=1), "step_rollup").sort_by("step")
    other = computed(context(steps=shuffled, threads=4), "step_rollup").sort_by("step")
    assert one.equals(other)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), before=st.integers(0, 14), offset=st.integers(-900, 100))
def test_a_step_across_midnight_is_one_step(seed, before, offset):
    """Ranks that begin a step on different dates make one row, on the date of the first; no step is lost or doubled."""
    start = MIDNIGHT + timedelta(days=1, seconds=-1.5 * before, milliseconds=offset)
    facts = steps_of(seed, 4, 15, start=start)
    days = [DAY + timedelta(days=number) for number in range(-1, 3)]
    found = computed(context(steps=facts), "step_rollup", days=days).to_pylist()
    expected = oracle(facts)
    assert sorted(row["step"] for row in found) == sorted(expected)
    for row in found:
        assert row["date"] == row["ts"].date()
        assert_same(row, expected[row["step"]])


def test_attempts_and_runs_do_not_mix():
    """Equal step numbers of another attempt or run are other steps."""
    facts = [
        {"run": run, "attempt": attempt, "rank": rank, "step": 1, "ts": NOON, "step_time_s": 1.0}
        for run in ("a", "b")
        for attempt in (0, 1)
        for rank in (0, 1)
    ]
    found = computed(context(steps=facts), "step_rollup").to_pylist()
    assert sorted((row["run"], row["attempt"], row["ranks"]) for row in found) == [
        ("a", 0, 2),
        ("a", 1, 2),
        ("b", 0, 2),
        ("b", 1, 2),
    ]


def test_an_absurd_time_does_not_stop_the_day():
    """A step time of a billion seconds is clamped in the integer sums instead of failing the whole date."""
    facts = [{"rank": rank, "step": 1, "ts": NOON, "step_time_s": value} for rank, value in enumerate((1.0, 1e9))]
    (row,) = computed(context(steps=facts), "step_rollup").to_pylist()
    assert row["max_step_time_s"] == 1e9
    assert row["sum_step_time_ns"] == 10**15 + 10**9


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(1, 6), steps=st.integers(1, 30))
@pytest.mark.slow
def test_steps_add_up_to_any_coarser_figure(seed, ranks, steps):
    """Sums and weighted means of steps give, digit for digit, the sums of all ranks' rows, and their means."""
    facts = steps_of(seed, ranks, steps)
    found = computed(context(steps=facts), "step_rollup").to_pylist()
    times = [ns(row["step_time_s"]) for row in facts]
    own = [max(ns(row["step_time_s"]) - ns(row.get("collective_time_s", 0)), 0) for row in facts]
    losses = [row["loss"] for row in facts if "loss" in row]
    assert sum(row["ranks"] for row in found) == len(facts)
    assert sum(row["sum_step_time_ns"] for row in found) == sum(times)
    assert sum(row["sum_self_time_ns"] for row in found) == sum(own)
    assert sum(row["tokens"] or 0 for row in found) == sum(row.get("tokens", 0) for row in facts)
    assert sum(row["loss_ranks"] for row in found) == len(losses)
    if losses:
        weighted = sum(row["mean_loss"] * row["loss_ranks"] for row in found if row["loss_ranks"])
        assert weighted / len(losses) == pytest.approx(np.mean(losses), rel=1e-5, abs=1e-6)
    mean_s = sum(row["mean_step_time_s"] * row["ranks"] for row in found) / len(facts)
    assert mean_s == pytest.approx(np.mean(times) / 1e9, rel=1e-6)


def test_sums_that_64_bits_do_not_hold_are_unknown():
    """Counts that rows of an older lake may hold do not wrap round to a negative or a small sum: it is NULL."""
    facts = [
        {"rank": rank, "step": step, "step_time_s": 0.5, "ts": NOON + timedelta(seconds=step), "tokens": tokens}
        for step, tokens in enumerate((2**63 - 1, 2**62, 5))
        for rank in range(4)
    ]
    found = computed(context(steps=facts), "step_rollup").sort_by("step").to_pylist()
    assert [row["tokens"] for row in found] == [None, None, 20]
    assert all(row["tokens"] is None for row in computed(context(steps=facts), "mfu").to_pylist())


def test_step_times_that_64_bits_do_not_sum_make_no_row():
    """Ranks that all claim a step of eleven days are summed as long as 64 bits hold it; beyond, the step has no row."""
    facts = [
        {"rank": rank, "step": step, "step_time_s": 1e6, "ts": NOON}
        for step, ranks in enumerate((4, 9_199, 9_300, 18_500))
        for rank in range(ranks)
    ]
    facts += [{"rank": rank, "step": 9, "step_time_s": 1e9 * (rank == 0), "ts": NOON} for rank in range(9_300)]
    found = computed(context(steps=facts), "step_rollup").sort_by("step").to_pylist()
    assert [row["step"] for row in found] == [0, 1, 9]
    assert [row["sum_step_time_ns"] for row in found] == [4 * 10**15, 9_199 * 10**15, 10**15]
    assert [row["sum_self_time_ns"] for row in found] == [4 * 10**15, 9_199 * 10**15, 10**15]
    assert found[2]["slowest_excess_s"] == pytest.approx(1e6)


@pytest.mark.parametrize("phase", ["collective", "data", "checkpoint", "evaluation"])
def test_a_time_that_no_integer_holds_stops_nobody(phase):
    """A phase of minus ten to the 38 seconds, which its contract lets pass, is none: the day is rolled up."""
    facts = [
        {"rank": rank, "step": 1, "step_time_s": 0.5, "ts": NOON, f"{phase}_time_s": -1e38 if rank else 0.1}
        for rank in range(2)
    ]
    (row,) = computed(context(steps=facts), "step_rollup").to_pylist()
    assert row["sum_self_time_ns"] <= row["sum_step_time_ns"] == 10**9
    assert computed(context(steps=facts), "rank_health").num_rows == 2
