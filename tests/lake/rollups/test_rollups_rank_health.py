"""The rollup `rank_health`: a straggler is named when it is one, and never else."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, computed, context
from sync_runs import health, synchronous, table_of

from ranklake.lake.rollups.thresholds import MIN_STEPS, WARMUP_STEPS

STEPS = 250
DAY_START = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC)


def noisy_compute(rng, ranks, steps=STEPS):
    """Return (steps, ranks) seconds of compute on a machine that others use too.

    Log-normal jitter of a random size up to 25 %, slow drift shared by all, bursts in which one rank's core is taken
    from it for a while, and a fixed difference of up to 3 % between ranks.
    """
    jitter = rng.lognormal(0, rng.uniform(0.01, 0.25), (steps, ranks))
    drift = np.exp(np.cumsum(rng.normal(0, 0.01, steps)))[:, None]
    fixed = 1 + rng.uniform(0, 0.03, ranks)
    bursts = np.ones((steps, ranks))
    for _ in range(rng.integers(0, 4)):
        start, rank = rng.integers(0, steps), rng.integers(0, ranks)
        bursts[start : start + rng.integers(5, steps // 5), rank] = rng.uniform(1.2, 3)
    return 0.1 * jitter * drift * fixed * bursts


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.slow
def test_no_clean_run_has_a_straggler(ranks):
    """In 200 clean runs on noisy machines no rank is named, though in many one rank is slowest for a while."""
    rng = np.random.default_rng(ranks)
    found = health([synchronous(f"clean-{n}", noisy_compute(rng, ranks)) for n in range(200)])
    assert len(found) == 200 * ranks
    assert [key for key, row in found.items() if row["is_straggler"]] == []
    assert max(row["excess_ratio"] for row in found.values()) > 0.02


def test_a_rank_that_is_far_slower_may_be_faster_now_and_then():
    """On a machine that others use, too, its peers are held up in some steps."""
    rng = np.random.default_rng(1)
    held = np.ones((STEPS, 2))
    held[60:106, 0] = 5  # as measured on two busy cores

    def run(factor):
        return synchronous(f"x{factor}", 0.1 * rng.lognormal(0, 0.05, (STEPS, 2)) * held * np.array([[1.0, factor]]))

    found = health([run(2.8), run(1.4)])
    assert [key for key, row in found.items() if row["is_straggler"]] == [("x2.8", 1)]
    assert 0.78 < found["x2.8", 1]["slower_step_ratio"] < 0.84


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.2), (2, 1.35), (8, 1.2)])
def test_a_slowed_rank_is_named_and_only_that_one(ranks, factor):
    """A rank whose compute takes 20 % longer is named in every run of moderate noise; its peers never."""
    rng = np.random.default_rng(int(ranks * 100 * factor))
    runs = []
    for number in range(50):
        compute = 0.1 * rng.lognormal(0, rng.uniform(0.01, 0.06), (STEPS, ranks))
        compute[:, number % ranks] *= factor
        runs.append(synchronous(f"slow-{number}", compute))
    found = health(runs)
    named = {key for key, row in found.items() if row["is_straggler"]}
    assert named == {(f"slow-{number}", number % ranks) for number in range(50)}
    for key in named:
        assert found[key]["excess_ratio"] == pytest.approx(factor - 1, abs=0.04)
        assert found[key]["cause"] == "compute"
        assert found[key]["p_value"] < 1e-6


def test_a_steady_but_small_difference_is_not_worth_a_name():
    """A rank that is always 5 % slower is certain but within its peers; at 15 % it is named."""
    compute = np.full((STEPS, 2), 0.1)
    compute[:, 1] *= 1.05
    small = health([synchronous("r", compute)])["r", 1]
    assert (small["is_straggler"], small["slower_step_ratio"]) == (False, 1.0)
    assert small["reason"].startswith("within its peers: +5")
    compute[:, 1] *= 1.1
    assert health([synchronous("r", compute)])["r", 1]["is_straggler"] is True


def test_step_times_alone_would_not_tell():
    """In a synchronous run all ranks' step times are equal: only self time shows who held the others up."""
    compute = np.full((STEPS, 2), 0.1)
    compute[:, 1] *= 1.5
    with_waits, without = (health([synchronous("r", compute, collectives=flag)]) for flag in (True, False))
    assert with_waits["r", 1]["is_straggler"] is True
    assert with_waits["r", 1]["basis"] == "self time"
    assert without["r", 1]["is_straggler"] is False
    assert without["r", 1]["basis"] == "step time"


def test_a_rank_that_waits_for_its_input_is_named_with_its_cause():
    """A rank with a slow data loader holds the others up too; the cause says that it is not its device."""
    rng = np.random.default_rng(5)
    compute = 0.1 * rng.lognormal(0, 0.02, (STEPS, 4))
    data = np.full((STEPS, 4), 0.001)
    data[:, 2] = 0.05
    found = health([synchronous("r", compute, data=data)])
    assert [rank for (_, rank), row in found.items() if row["is_straggler"]] == [2]
    assert found["r", 2]["cause"] == "input"
    assert found["r", 2]["data_excess_s"] == pytest.approx(0.049, abs=1e-4)


def test_a_slow_node_of_several_ranks_is_named_whole():
    """Two of eight ranks on a slow node are each slower than their peers' median, though neither is always slowest."""
    rng = np.random.default_rng(6)
    compute = 0.1 * rng.lognormal(0, 0.03, (STEPS, 8))
    compute[:, 4:6] *= 1.3
    found = health([synchronous("r", compute)])
    assert sorted(rank for (_, rank), row in found.items() if row["is_straggler"]) == [4, 5]
    assert found["r", 4]["slowest_step_ratio"] < 0.9


def test_what_cannot_be_judged_is_not_judged():
    """A single rank, too few steps, collectives on some ranks only: is_straggler is NULL, and the reason says why."""
    slow = np.full((MIN_STEPS + WARMUP_STEPS - 1, 2), 0.1)
    slow[:, 1] *= 2
    mixed = synchronous("mixed", np.tile([0.1, 0.2], (STEPS, 1)))
    mixed["collective_time_s"] = pa.array(mixed["collective_time_s"], mask=mixed["rank"] == 1)
    found = health([synchronous("alone", np.full((STEPS, 1), 0.1)), synchronous("short", slow), mixed])
    assert {row["is_straggler"] for row in found.values()} == {None}
    assert found["alone", 0]["reason"] == "no peer"
    assert found["short", 1]["reason"] == f"too few steps: {MIN_STEPS - 1} compared, {MIN_STEPS} needed"
    assert found["mixed", 1]["reason"] == "only some ranks recorded collectives"


def test_warming_up_is_not_compared():
    """The first steps, in which a rank may compile or fill caches, count in `steps` but are not compared."""
    compute = np.full((STEPS, 2), 0.1)
    compute[:WARMUP_STEPS, 0] = 5.0
    found = health([synchronous("r", compute)])
    assert (found["r", 0]["steps"], found["r", 0]["steps_compared"]) == (STEPS, STEPS - WARMUP_STEPS)
    assert found["r", 0]["excess_ratio"] == 0


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 9))
def test_figures_are_what_plain_loops_give(seed, ranks):
    """Median excess, counts and score equal an oracle's: against the other rank of two, the median of more."""
    rng = np.random.default_rng(seed)
    columns = synchronous("r", noisy_compute(rng, ranks, 80))
    found = health([columns])
    own = (columns["step_time_s"].astype(float) - columns["collective_time_s"].astype(float)).reshape(80, ranks)
    own = own[WARMUP_STEPS:]
    for rank in range(ranks):
        peers = own[:, 1 - rank] if ranks == 2 else np.median(own, axis=1)
        excess = own[:, rank] / peers - 1
        row = found["r", rank]
        middle = np.median(excess)
        assert row["steps_compared"] == len(excess)
        assert row["excess_ratio"] == pytest.approx(middle, abs=1e-6)
        assert row["excess_s"] == pytest.approx((own[:, rank] - peers).mean(), abs=1e-6)
        assert row["steps_slower"] == pytest.approx((excess > 0).sum(), abs=1)
        assert row["steps_slowest"] == pytest.approx((own.argmax(axis=1) == rank).sum(), abs=1)
        spread = 1.4826 * np.median(abs(excess - middle))  # none, where a rank is the middle one in most steps
        score = None if spread == 0 else pytest.approx(middle / spread, rel=1e-3, abs=1e-3)
        assert row["score"] == score


def test_the_bound_of_the_sign_test_holds():
    """`p_value` is never below the exact tail of the binomial distribution, and falls with the evidence."""
    runs = []
    for slower in range(0, 101, 10):
        compute = np.full((WARMUP_STEPS + 100, 2), 0.1)
        compute[:, 1] = np.where(np.arange(len(compute)) - WARMUP_STEPS < slower, 0.11, 0.09)
        runs.append(synchronous(f"{slower:03}", compute))
    found = health(runs)
    bounds = [found[f"{slower:03}", 1]["p_value"] for slower in range(0, 101, 10)]
    flips = np.random.default_rng(0).binomial(100, 0.5, 100_000)
    for slower, bound in zip(range(0, 101, 10), bounds, strict=True):
        assert found[f"{slower:03}", 1]["steps_slower"] == slower
        assert bound >= (flips >= slower).mean() - 0.01
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == pytest.approx(2.0**-100)


def test_days_are_judged_by_themselves():
    """A run across midnight has rows for both dates, each of its own steps."""
    columns = synchronous("r", np.tile([0.1, 0.2], (STEPS, 1)))
    shift = int(timedelta(hours=12).total_seconds() * 1e6) - int(columns["ts"][2 * 100] - columns["ts"][0])
    columns["ts"] = columns["ts"] + shift
    table = table_of([columns])
    dates = pa.array([moment.date() for moment in table["ts"].to_pylist()], pa.date32())
    table = table.set_column(table.schema.get_field_index("date"), "date", dates)
    found = computed(context(steps=table), "rank_health", days=[DAY, DAY + timedelta(days=1)]).to_pylist()
    assert sorted((row["date"], row["rank"], row["steps"]) for row in found) == [
        (DAY, 0, 100),
        (DAY, 1, 100),
        (DAY + timedelta(days=1), 0, 150),
        (DAY + timedelta(days=1), 1, 150),
    ]


def demo_like(rng, ranks, steps):
    """Return (steps, ranks) seconds of a small model: jitter of 1 %, drift, and now and then a step far slower."""
    compute = 0.05 * rng.lognormal(0, 0.01, (steps, ranks)) * (1 + rng.uniform(0, 0.03, ranks))
    compute *= np.exp(np.cumsum(rng.normal(0, 0.01, steps)))[:, None]
    late = rng.random((steps, ranks)) < 0.002
    compute[late] *= 1 + rng.exponential(0.1, late.sum())
    return compute


@pytest.mark.slow
def test_a_rank_slow_in_a_hundredth_of_its_steps_is_named():
    """10 % in 1 % of 3,000 steps, at 8 ranks: named in every run, its peers never, and no rank of 100 clean runs."""
    rng = np.random.default_rng(1)
    runs = []
    for number in range(8):
        compute = demo_like(rng, 8, 3000)
        compute[rng.random(3000) < 0.01, number] *= 1.1
        runs.append(synchronous(f"slow-{number}", compute))
    found = health(runs)
    named = {key: row for key, row in found.items() if row["is_straggler"]}
    assert set(named) == {(f"slow-{number}", number) for number in range(8)}
    for row in named.values():
        assert row["reason"].startswith("straggler at times: +")
        assert row["cause"] == "compute"
        assert row["excess_ratio"] < 0.04
    clean = health([synchronous(f"clean-{number}", demo_like(rng, 8, 800)) for number in range(100)])
    assert len(clean) == 800
    assert not any(row["is_straggler"] for row in clean.values())


def test_long_clean_runs_on_noisy_machines_have_none():
    """Bursts in which a rank's core is taken away for a while are few episodes, whoever they hit."""
    rng = np.random.default_rng(3)
    runs = [synchronous(f"clean-{number}", noisy_compute(rng, 8, 1000)) for number in range(20)]
    assert not any(row["is_straggler"] for row in health(runs).values())


def test_a_line_for_several_steps_is_one_measurement():
    """Steps that share a line's mean are compared once: a rank is not steadily slow because a line stands for ten."""
    facts = [
        {"ts": DAY_START + timedelta(seconds=10 * number + step), "rank": rank, "step": 10 * number + step + 1,
         "step_time_s": 1.0 + rank, "interval_end_step": 10 * number + 10}
        for number in range(20) for step in range(10) for rank in (0, 1)
    ]  # fmt: skip
    told = computed(context(steps=facts), "rank_health").to_pylist()
    assert [(row["steps"], row["steps_compared"], row["is_straggler"]) for row in told] == [
        (20, 20 - WARMUP_STEPS, None)
    ] * 2


def test_a_run_warms_up_once_wherever_midnight_falls():
    """Steps after midnight of a run that goes on are compared from the first; those of one that begins then are not."""
    midnight = NOON.replace(hour=0) + timedelta(days=1)
    steps = [
        {"run": name, "rank": rank, "step": n, "ts": begin + timedelta(seconds=n), "step_time_s": 0.5 + 0.2 * rank}
        for name, begin in (("goes on", midnight - timedelta(seconds=60)), ("begins", midnight))
        for n in range(120)
        for rank in range(2)
    ]
    found = computed(context(steps=steps), "rank_health", [DAY, DAY + timedelta(days=1)]).to_pylist()
    counts = {(row["run"], row["date"]): row["steps_compared"] for row in found if row["rank"] == 1}
    assert counts == {
        ("goes on", DAY): 50,
        ("goes on", DAY + timedelta(days=1)): 60,
        ("begins", DAY + timedelta(days=1)): 110,
    }
