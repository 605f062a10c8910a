"""The rollup `rank_health`: a straggler is named when it is one, and never else."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from statistics import median
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, computed, context
from rollup_inputs import rows as table_of_rows
from sync_runs import health, synchronous, table_of

from ranklake.lake.query.engine import engine
from ranklake.lake.rollups import rank_health
from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.rank_health import RankHealth, compare
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


SMALL = {"warmup_steps": 2, "min_burst_ratio": 0.05, "burst_deviations": 1.5, "burst_gap_steps": 2}
"""Thresholds of the rollup, for runs of a few steps."""
TIMES = (
    0.0,
    -0.25,
    0.5,
    0.5,
    0.5,
    0.5009765625,
    0.501953125,
    0.75,
    1e-9,
    3.0,
    2e6,
    float("-inf"),
    float("inf"),
    float("nan"),
)
"""Step times: ties of ns after rounding, times that are clipped, and some that no job records."""


@st.composite
def runs_of_steps(draw):
    """Draw rows of steps: attempts with steps on some ranks only, at midnight, in intervals, without collectives."""
    rows = []
    for run, attempt in draw(st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 1)), min_size=1)):
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        ranks, steps, interval = rng.choice([1, 2, 2, 3, 4, 7]), rng.integers(1, 30), rng.choice([1, 1, 3])
        begin = DAY_START + timedelta(hours=float(rng.choice([-1, 12, 12, 24, 24.99])), seconds=rng.uniform(-15, 0))
        has_all, has_collectives, is_steady = rng.random(3) < [0.5, 0.7, 0.5]
        for step, rank in np.ndindex(steps, ranks):
            if not has_all and rng.random() < 0.2:
                continue
            ts = begin + timedelta(seconds=float(step + rank / 7))
            time = 0.5 + rng.exponential(0.02) if is_steady else rng.choice(TIMES)
            values = {"step_time_s": time, "data_time_s": rng.choice([None, 0.01, 0.125, *TIMES[-3:]])}
            values["collective_time_s"] = rng.choice([0.1, 0.25]) if has_collectives and rng.random() < 0.98 else None
            values["interval_end_step"] = None if interval == 1 else int(step + 10 + 2 - step % 3)
            rows.append({"run": run, "attempt": attempt, "rank": rank, "step": int(step + 10), "ts": ts, **values})
    return [rows[place] for place in np.random.default_rng(draw(st.integers(0, 2**32))).permutation(len(rows))]


def nanoseconds(seconds):
    """Return whole nanoseconds of at most 1e6 s, from a time as it is stored. NaN is more than any time, as in SQL."""
    return rounded(max(min(1e6, float(np.float32(seconds))), -1e6) * 1e9)


def rounded(number):
    return int(Decimal(number).quantize(Decimal(1), ROUND_HALF_UP))


def middle(values):
    return median(map(float, values)) if values else None


def compared_by_loops(rows):
    """Return what the table `compared` says of each rank, by plain loops: (run, attempt, rank) to columns."""
    steps, ranks, result = defaultdict(dict), defaultdict(list), {}
    for row in rows:
        is_near = DAY_START - timedelta(hours=1) <= row["ts"] < DAY_START + timedelta(hours=25)
        if is_near and row["interval_end_step"] in {None, row["step"]}:
            steps[row["run"], row["attempt"], row["step"]][row["rank"]] = row
    attempts = defaultdict(list)
    for run, attempt, step in sorted(steps):
        attempts[run, attempt].append(step)
    for (run, attempt, step), members in steps.items():
        if not DAY_START <= min(row["ts"] for row in members.values()) < DAY_START + timedelta(days=1):
            continue
        waits = {rank: row["collective_time_s"] for rank, row in members.items()}
        own = {rank: nanoseconds(row["step_time_s"]) - nanoseconds(waits[rank] or 0) for rank, row in members.items()}
        data = {rank: max(nanoseconds(row["data_time_s"] or 0), 0) for rank, row in members.items()}
        recorders = sum(wait is not None for wait in waits.values())
        is_compared = attempts[run, attempt].index(step) >= SMALL["warmup_steps"] and recorders in {0, len(members)}
        for rank in members:
            fact = {"step": step, "ranks": len(members), "recorders": recorders, "own": own[rank], "excess": None}
            others = [own[other] for other in members if other != rank]
            peer = middle(others if len(others) == 1 else [*others, own[rank]] if others else [])
            if is_compared and others and peer > 0:
                mean = (sum(data.values()) - data[rank]) / len(others)
                fact |= {"excess": own[rank] / peer - 1, "excess_ns": rounded(own[rank] - peer), "peer": rounded(peer)}
                fact |= {"data": rounded(data[rank] - mean), "is_slowest": own[rank] == max(own.values())}
            ranks[run, attempt, rank].append(fact)
    for key, facts in ranks.items():
        seen = [fact for fact in facts if fact["excess"] is not None]
        usual = middle([fact["excess"] for fact in seen])
        result[key] = {
            "ranks": max(fact["ranks"] for fact in facts),
            "steps": len(facts),
            "is_mixed": any(0 < fact["recorders"] < fact["ranks"] for fact in facts),
            "has_collectives": any(fact["recorders"] for fact in facts),
            "self_time_median_s": middle([fact["own"] for fact in facts]) / 1e9,
            "steps_compared": len(seen),
            "steps_slower": sum(fact["excess"] > 0 for fact in seen),
            "steps_slowest": sum(fact["is_slowest"] for fact in seen),
            "excess_ratio": usual,
            "deviation": 1.4826 * middle([abs(fact["excess"] - usual) for fact in seen]) if seen else None,
            "sum_excess_ns": sum(fact["excess_ns"] for fact in seen) if seen else None,
            "sum_peer_ns": sum(fact["peer"] for fact in seen) if seen else None,
            "sum_data_excess_ns": sum(fact["data"] for fact in seen) if seen else None,
        }
    for key, facts in ranks.items():
        spreads = [row["deviation"] for other, row in result.items() if other[:2] == key[:2] and row["steps_compared"]]
        own, usual = result[key]["deviation"] or 0, result[key]["excess_ratio"]
        least = max(SMALL["min_burst_ratio"], SMALL["burst_deviations"] * max(own, middle(spreads) or 0))
        bursts = [fact for fact in facts if fact["excess"] is not None and fact["excess"] - usual > least]
        bursts.sort(key=lambda fact: fact["step"])
        gaps = [after["step"] - fact["step"] for fact, after in pairwise(bursts)]
        result[key] |= {
            "steps_beyond": len(bursts) or None,
            "episodes": 1 + sum(gap > SMALL["burst_gap_steps"] for gap in gaps) if bursts else None,
            "burst_ratio": middle([fact["excess"] - usual for fact in bursts]),
            "burst_excess_ns": sum(fact["excess_ns"] for fact in bursts) if bursts else None,
            "burst_data_excess_ns": sum(fact["data"] for fact in bursts) if bursts else None,
        }
    return result


@settings(max_examples=25, deadline=None)
@given(rows=runs_of_steps(), block=st.sampled_from([1, 8, 1 << 17]))
def test_ranks_are_compared_as_plain_loops_do(rows, block):
    """To the last digit, whatever ranks recorded, and in whatever order and blocks."""
    ctx = engine(1)
    replace_table(ctx, "steps", table_of_rows("steps", rows))
    begin = pa.scalar(DAY_START, pa.timestamp("us", tz="UTC"))
    stream = ctx.sql(RankHealth("rank_health").queries[0].text, param_values={"date": pa.scalar(DAY), "begin": begin})
    batches = [batch.to_pyarrow() for batch in stream.execute_stream()]
    with patch.object(rank_health, "BLOCK_ROWS", block):
        found = compare(batches, len(rows), SMALL).to_pylist()
    keys = [(row.pop("run"), row.pop("attempt"), row.pop("rank")) for row in found]
    assert dict(zip(keys, found, strict=True)) == compared_by_loops(rows)


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
