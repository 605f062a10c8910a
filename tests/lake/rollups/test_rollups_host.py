"""Hours of hosts: sums of value times time, growth of counters, and links against what they should do."""

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, computed, context, rows
from sampled import LINK, with_links
from sampled import host_samples as samples

MIDNIGHT = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC)
GAP_US = 300 * 10**6
US = timedelta(microseconds=1)
RATIOS = {
    "cpu_utilization_ratio": "cpu_busy_s",
    "cpu_iowait_ratio": "cpu_iowait_s",
    "pressure_io_full_ratio": "pressure_io_full_s",
    "pressure_memory_some_ratio": "pressure_memory_some_s",
}
COUNTERS = {
    "oom_kill_count": "oom_kill_count",
    "tcp_retransmit_count": "tcp_retransmit_count",
    "disk_write_bytes": "disk_write_bytes",
    "infiniband_link_downed_count": "infiniband_link_downed_count",
}


def hours(facts, days=(DAY,)):
    """Return the rows of the hours, in order."""
    found = computed(context(host_samples=facts), "host_hourly", days=days).to_pylist()
    return sorted(found, key=lambda row: (row["hour"], row["host"], str(row["holder_run"])))


def random_samples(seed):
    """Return a day of three hosts: gaps, boots, counters that fall, samplers that take turns, runs that come and go."""
    rng = np.random.default_rng(seed)
    facts = [row for host in range(3) for row in random_host(rng, f"n{host}")]
    rng.shuffle(facts)
    return facts


def random_host(rng, host):
    """Yield samples of a host."""
    at = MIDNIGHT + timedelta(seconds=int(rng.integers(-400, 20 * 3600)))
    counters, boot, incarnation, holder, before = dict.fromkeys(COUNTERS, 5), 0, 1, ("r1", 0), None
    for slot in range(150):
        at += timedelta(seconds=float(rng.choice([10, 10, 10, 10, 47.25, 290, 301, 2000])))
        if rng.random() < 0.04:
            boot, counters = boot + 1, dict.fromkeys(COUNTERS, 0)
        if rng.random() < 0.05:
            incarnation, before = incarnation + 1, None
        if rng.random() < 0.05:
            holder = (None, None) if rng.random() < 0.5 else (f"r{rng.integers(2)}", int(rng.integers(2)))
        interval_ns = None if before is None else (at - before) // US * 1000
        if interval_ns and rng.random() < 0.1:  # samples between were lost
            interval_ns //= 2
        before = at
        row = {"ts": at, "slot": slot, "incarnation": incarnation, "subject": "host", "host": host}
        row |= {"boot_id": f"b{boot}", "holder_run": holder[0], "holder_attempt": holder[1], "interval_ns": interval_ns}
        row |= {name: float(np.float32(rng.choice([0.0, rng.random(), 1.5]))) for name in RATIOS if rng.random() < 0.9}
        counters = {
            name: 0 if rng.random() < 0.02 else value + int(rng.integers(0, 4)) for name, value in counters.items()
        }
        row |= {name: value for name, value in counters.items() if rng.random() < 0.7}
        if rng.random() < 0.9:
            row["memory_used_bytes"] = int(rng.integers(1, 1000)) << 20
        yield row


def time_of(before, row):
    """Return the microseconds that a sample speaks for."""
    own = None if row["interval_ns"] is None else row["interval_ns"] // 1000
    own = None if own is not None and own > GAP_US else own
    since = None if before is None else (row["ts"] - before["ts"]) // US
    if since is None or since > GAP_US:
        return own or 0
    return since if own is None else min(own, since)


def growth(before, row, last):
    """Yield (counter, what it grew by); `last` has what each showed last, and gets what it shows now."""
    is_new = before is not None and row["boot_id"] != before["boot_id"]
    for name in COUNTERS:
        if name in row:
            if is_new or name in last:
                yield name, row[name] if is_new else max(0, row[name] - last[name])
            last[name] = row[name]


def loops(facts):
    """Return {(hour, host, holder): sums} of the date by plain loops, each sample with those before it."""
    by_hour = defaultdict(list)
    for row in sorted(facts, key=lambda row: (row["ts"], row["incarnation"], row["slot"])):
        by_hour[row["host"], row["ts"].replace(minute=0, second=0, microsecond=0)].append(row)
    sums = defaultdict(lambda: defaultdict(float))
    for (host, hour), own in list(by_hour.items()):
        if MIDNIGHT <= hour < MIDNIGHT + timedelta(days=1):
            before = by_hour.get((host, hour - timedelta(hours=1)), [])
            chain = [row for row in before if row["ts"] >= before[-1]["ts"] - GAP_US * US] + own
            last = {}
            for previous, row in zip([None, *chain], chain, strict=False):
                us, grown = time_of(previous, row), dict(growth(previous, row, last))
                if row["ts"] >= hour:
                    add_sample(sums[hour, host, row["holder_run"], row["holder_attempt"]], row, us, grown)
    return sums


def add_sample(into, row, us, grown):
    """Add a sample to an hour's sums; ``NAME known`` says that some sample has it."""
    into["sample_count"] += 1
    into["us"] += us
    for name in RATIOS:
        if row.get(name, 2) <= 1:
            into[name] += int(row[name] * 1e6 + 0.5) * us
            into[f"{name} known"] = 1
    for name, value in grown.items():
        into[name] += value
        into[f"{name} known"] = 1
    if "memory_used_bytes" in row:
        into.setdefault("points", []).append((row["ts"].minute * 60 + row["ts"].second, row["memory_used_bytes"]))


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_each_column_is_what_plain_loops_give(seed):
    """Whatever happens to hosts and samplers, an hour's sums are those of each sample with the ones before it."""
    facts = random_samples(seed)
    found = {
        (row["hour"], row["host"], row["holder_run"], row["holder_attempt"]): row
        for row in hours([{**row, "date": row["ts"].date()} for row in facts])
    }
    expected = loops(facts)
    assert set(found) == set(expected)
    for key, row in found.items():
        sums = expected[key]
        assert row["sample_count"] == sums["sample_count"]
        assert row["observed_s"] == pytest.approx(sums["us"] / 1e6)
        for name, column in RATIOS.items():
            assert row[column] == (pytest.approx(sums[name] / 1e12) if f"{name} known" in sums else None), column
        for name, column in COUNTERS.items():
            assert row[column] == (sums[name] if f"{name} known" in sums else None), column
        points = sums.get("points", [])
        if len(points) >= 3:
            slope = np.polyfit(*np.array(points, float).T, 1)[0]
            assert row["memory_growth_bytes_per_s"] == pytest.approx(slope, rel=1e-6, abs=1e-3)
        else:
            assert row["memory_growth_bytes_per_s"] is None


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.integers(0, 2**32))
def test_no_order_of_rows_changes_a_digit(seed, order):
    """The same samples in another order and with other parallelism give equal bytes."""
    facts = rows("host_samples", random_samples(seed))
    shuffled = facts.take(np.random.default_rng(order).permutation(facts.num_rows))
    keys = [(name, "ascending") for name in ("hour", "host", "holder_run", "holder_attempt")]
    one = computed(context(host_samples=facts, threads=1), "host_hourly").sort_by(keys)
    other = computed(context(host_samples=shuffled, threads=4), "host_hourly").sort_by(keys)
    assert one.combine_chunks().equals(other.combine_chunks())


def test_memory_that_grows_has_a_slope_and_processes_their_share():
    """Ten minutes at 1 MiB/s; the rank whose process grew most; a host of several runs has all their processes."""
    mebibyte = 1 << 20
    facts = samples(memory_used_bytes=lambda n: n * 10 * mebibyte, memory_total_bytes=1 << 40)
    for rank, growth in ((0, 5), (1, 70)):
        facts += [
            {**row, "subject": "process", "pid": 100 + rank, "holder_rank": rank, "slot": 1000 + 100 * rank + n,
             "memory_used_bytes": None, "process_rss_bytes": (50 + growth * n) * mebibyte}
            for n, row in enumerate(samples(61))
        ]  # fmt: skip
    (row,) = hours(facts)
    assert row["memory_growth_bytes_per_s"] == pytest.approx(mebibyte)
    assert row["process_rss_growth_bytes"] == 70 * 60 * mebibyte
    assert row["process_rss_max_bytes"] == (50 + 70 * 60) * mebibyte
    shared = [
        {**fact, "holder_run": None, "holder_attempt": None} if fact["subject"] == "host" else fact for fact in facts
    ]
    (row,) = hours(shared)
    assert (row["holder_run"], row["process_rss_growth_bytes"]) == (None, 70 * 60 * mebibyte)


def groups_of(ranks):
    """Return samples of a host and of one control group each of `ranks`, {number: the rank that samples tell}."""
    facts = samples(61)
    for number, rank in ranks.items():
        facts += [
            {**row, "subject": "container", "slot": 1000 + 100 * number + n, "cgroup_memory_used_bytes": 7 + number,
             "cgroup_throttled_s": 10.0 * number + n, "cgroup_oom_kill_count": 3 * number + (n >= 30),
             "holder_rank": rank}
            for n, row in enumerate(samples(61))
        ]  # fmt: skip
    return facts


def test_control_groups_are_told_apart_by_their_rank():
    """What two groups were throttled adds up; samples that do not say which group they are of give no number."""
    (row,) = hours(groups_of({0: 0, 1: 1}))
    assert (row["cgroup_throttled_s"], row["cgroup_oom_kill_count"]) == (120.0, 2)
    (row,) = hours(groups_of({0: None, 1: None}))
    assert (row["cgroup_throttled_s"], row["cgroup_oom_kill_count"]) == (None, None)
    assert row["cgroup_memory_used_max_bytes"] == 8


def test_a_link_that_fails_is_not_one_that_was_never_connected():
    """A port that goes down in the hour counts; one that was down all day is not connected."""
    (row,) = hours(with_links("n1", at=30, down=["mlx5_1"], mlx5_0=True, mlx5_1=True, mlx5_9=False))
    assert (row["link_count"], row["link_down_count"], row["link_slow_count"]) == (2, 1, 0)
    assert json.loads(row["links"]) == {"mlx5_1": {"up": False, "bits_per_s": LINK, "expected_bits_per_s": LINK}}


def test_a_link_stays_down_and_is_compared_with_what_it_was():
    """Hours after it failed, and without samples between, a link is down still; what comes up later changes nothing."""
    later = [{**row, "ts": row["ts"] + timedelta(hours=5)} for row in with_links("n1", mlx5_0=False, mlx5_1=True)]
    first, last = hours(with_links("n1", mlx5_0=True, mlx5_1=False) + later)
    assert (first["link_count"], first["link_down_count"]) == (1, 0)
    assert (last["link_count"], last["link_down_count"]) == (2, 1)
    assert json.loads(last["link_speeds"]) == {
        name: {"up": True, "bits_per_s": LINK, "make": "MT4129"} for name in ("mlx5_0", "mlx5_1")
    }


def test_a_link_is_slow_against_its_past_and_its_peers():
    """One that trains down is slow against itself; one that was slow from the start, against four hosts' alike."""
    (row,) = hours(with_links("n1", at=30, speeds={"mlx5_0": LINK // 2}, mlx5_0=True))
    assert (row["link_down_count"], row["link_slow_count"]) == (0, 1)
    assert json.loads(row["links"])["mlx5_0"]["bits_per_s"] == LINK // 2
    fleet = [fact for n in range(4) for fact in with_links(f"n{n}", mlx5_0=True)]
    slow = with_links("n9", speeds={"mlx5_0": LINK // 4}, mlx5_0=True)
    by_host = {row["host"]: row["link_slow_count"] for row in hours(fleet + slow)}
    assert by_host == {"n0": 0, "n1": 0, "n2": 0, "n3": 0, "n9": 1}
    alone = hours(fleet[: 2 * 61] + slow)
    assert [row["link_slow_count"] for row in alone] == [0, 0, 0]


def test_what_is_unknown_has_a_reason():
    """A kernel without PSI, a host without InfiniBand and ranks: NULL, and why."""
    (row,) = hours(samples(3, cpu_utilization_ratio=0.5))
    reasons = json.loads(row["unavailable"])
    assert set(reasons) == {
        "pressure_io_full_s", "memory_total_bytes", "oom_kill_count", "process_rss_max_bytes",
        "cgroup_memory_used_max_bytes", "infiniband_receive_bytes", "link_count",
    }  # fmt: skip
    assert all(row[name] is None for name in reasons)
    assert (row["cpu_busy_s"], row["cpu_observed_s"], row["cpu_utilization_ratio"]) == (10.0, 20.0, 0.5)


def test_counters_that_lie_wrap_no_sum():
    """A counter that jumps between nought and the largest number a column holds gives no negative sum."""
    (row,) = hours(
        samples(61, network_receive_bytes=lambda n: (2**63 - 1) * (n % 2), disk_read_bytes=lambda n: 10**18 * (n % 2))
    )
    assert row["network_receive_bytes"] in {None, 0}
    assert row["disk_read_bytes"] is None or row["disk_read_bytes"] >= 0
