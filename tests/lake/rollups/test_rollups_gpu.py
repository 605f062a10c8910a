"""Hours of devices: sums of value times time, energy from counters, and what samples leave unknown."""

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, computed, context, rows
from sampled import gpu_samples as samples

from ranklake.lake.rollups.evaluate import evaluate_day
from ranklake.lake.rollups.registry import select_rollups

MIDNIGHT = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC)
GAP_US = 300 * 10**6
US = timedelta(microseconds=1)
SHARES = ("gpu_utilization", "sm_active", "tensor_active", "dram_active")


def hours(facts, **tables):
    found = computed(
        context(gpu_samples=facts, **tables), "gpu_hourly", days=(DAY, DAY + timedelta(days=1))
    ).to_pylist()
    return sorted(found, key=lambda row: (row["hour"], row["device_uuid"], str(row["holder_run"])))


def random_columns(rng, holder, regular, columns, energy):
    """Return who holds a device, and what a sample tells of it; only of irregular ones it leaves out and errs."""
    row = dict(zip(("holder_run", "holder_attempt", "holder_rank"), holder or (), strict=False))
    if holder or rng.random() < 0.9:
        row["holder_count"] = 1 if holder else 0
    for name in SHARES:
        if columns[f"{name}_ratio"] and (regular or rng.random() < 0.9):
            value = 0.0 if rng.random() < 0.3 else rng.random()
            row[f"{name}_ratio"] = float(np.float32(value if regular or rng.random() < 0.98 else 95.0))
    if columns["energy"] and (regular or rng.random() < 0.95):
        row["energy_joules"] = energy
    row["power_watts"] = float(np.float32(rng.random() * 400))
    if rng.random() < 0.7:
        row["clock_event_reasons"] = str(
            rng.choice(["", "gpu_idle", "gpu_idle,sw_power_cap", "sw_thermal_slowdown", "hw_power_brake_slowdown"])
        )
    return row


def random_day(seed, devices):
    """Return samples of devices over up to three hours: jobs come and go, and every fault may happen."""
    rng = np.random.default_rng(seed)
    found = []
    for device in range(devices):
        at = MIDNIGHT + int(rng.integers(0, 22 * 3600 * 10**6)) * US
        every_us = int(rng.choice([10**6, 15 * 10**6, 61 * 10**6]))
        sources = ["nvml", "dcgm"] if rng.random() < 0.2 else ["nvml"]
        regular, energy = rng.random() < 0.5, float(rng.choice([10.0, 5e6]))
        tells_interval, incarnation, before = rng.random() < 0.8, 1, None
        columns = {f"{name}_ratio": rng.random() < 0.8 for name in SHARES} | {"energy": rng.random() < 0.8}
        holder = None
        for slot in range(int(rng.integers(1, 120))):
            step_us = every_us if regular or rng.random() < 0.9 else int(every_us * rng.integers(2, 40))
            at += step_us * US
            energy = round(energy + 300.0 * step_us / 1e6 * rng.random(), 3)
            if rng.random() < 0.05:
                holder = None if rng.random() < 0.3 else (f"r{rng.integers(3)}", 0, int(rng.integers(4)))
            if not regular:
                energy = float(rng.random() * 100) if rng.random() < 0.02 else energy
                if rng.random() < 0.03:
                    incarnation, before = incarnation + 1, None
            row = {"ts": at, "slot": slot, "incarnation": incarnation, "host": f"n{device // 2}"}
            row |= {"device_uuid": f"G{device}", "device_name": "A"}
            row["interval_ns"] = (at - before) // US * 1000 if before and tells_interval else None
            before = at
            row |= random_columns(rng, holder, regular, columns, energy)
            found += [{**row, "source": source, "incarnation": incarnation + 100 * place}
                      for place, source in enumerate(sources) if regular or rng.random() < 0.9]  # fmt: skip
    return found


def ppm(value):
    return None if value is None or not 0 <= value <= 1 else int(value * 1e6 + 0.5)


def tells_intervals(chain, at):
    """Whether samples of the hour, or of the five minutes before it, tell intervals."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    return any(
        hour - GAP_US * US <= row["ts"] < hour + timedelta(hours=1) and row["interval_ns"] is not None for row in chain
    )


def oracle(facts):
    """Return {(hour, device, holder): sums} by plain loops: each sample with the one before it."""
    chains = defaultdict(list)
    for row in facts:
        chains[row["device_uuid"], row["source"]].append(row)
    sums = defaultdict(lambda: defaultdict(int))
    for (device, source), chain in chains.items():
        chain.sort(key=lambda row: (row["ts"], row["incarnation"], row["slot"]))
        for before, row in zip([None, *chain], chain, strict=False):
            since = None if before is None else (row["ts"] - before["ts"]) // US
            told = tells_intervals(chain, row["ts"])
            own = (row["interval_ns"] or 0) // 1000
            own = own if own <= GAP_US else 0
            us = min(own, own if since is None else since) if told else (since if since and since <= GAP_US else 0)
            holder = tuple(row.get(f"holder_{name}") for name in ("run", "attempt", "rank"))
            one = sums[row["ts"].replace(minute=0, second=0, microsecond=0), device, source, holder]
            one["samples"] += 1
            one["us"] += us
            held = 1 if row.get("holder_run") or row.get("holder_count") else row.get("holder_count")
            busy, sm = ppm(row.get("gpu_utilization_ratio")), ppm(row.get("sm_active_ratio"))
            one["held_known"] += us * (held is not None)
            one["held"] += us * (held or 0)
            one["held_busy_known"] += us * (held == 1 and busy is not None)
            one["idle"] += us * (held == 1 and busy == 0)
            for name in SHARES:
                share = ppm(row.get(f"{name}_ratio"))
                if share is not None and (sm is not None or name == "gpu_utilization"):
                    one[f"{name}_known"] += us
                    one[name] += share * us
                    one[f"{name}_told"] += 1
            if "clock_event_reasons" in row:
                one["throttled_told"] += 1
                one["throttled"] += us * any(word in row["clock_event_reasons"] for word in ("thermal", "brake"))
            one["energies"] += "energy_joules" in row
            one["power_us"] += us
            one["power"] += int(row["power_watts"] * 1e3 + 0.5) * (us // 1000)
            if before and "energy_joules" in row and "energy_joules" in before and since <= GAP_US:
                grown = row["energy_joules"] - before["energy_joules"]
                one["energy_us"] += since * (grown >= 0)
                one["energy"] += round(grown * 1e3) * (grown >= 0)
    best = {}
    for (hour, device, source, _), one in sums.items():
        totals = best.setdefault((hour, device), {}).setdefault(source, [0, 0])
        totals[0] += one["sm_active_known"]
        totals[1] += one["us"]
    chosen = {
        place: min(found, key=lambda source, found=found: (found[source][0] == 0, -found[source][1], source))
        for place, found in best.items()
    }
    return {
        (hour, device, holder): one
        for (hour, device, source, holder), one in sums.items()
        if source == chosen[hour, device]
    }


def expected_row(one):
    known = one["gpu_utilization_known"]
    covered = {name: one[f"{name}_known"] == one["sm_active_known"] for name in ("tensor_active", "dram_active")}
    drawn_us = one["energy_us"] if one["energies"] else one["power_us"]
    return {
        "sample_count": one["samples"],
        "observed_s": one["us"] / 1e6,
        "allocated_s": one["held"] / 1e6 if one["held_known"] else None,
        "busy_s": one["gpu_utilization"] / 1e12 if one["gpu_utilization_told"] else None,
        "busy_observed_s": known / 1e6,
        "gpu_utilization_ratio": one["gpu_utilization"] / known / 1e6 if known else None,
        "sm_active_s": one["sm_active"] / 1e12 if one["sm_active_told"] else None,
        "sm_active_observed_s": one["sm_active_known"] / 1e6 if one["sm_active_told"] else None,
        **{
            f"{name}_s": one[name] / 1e12 if one[f"{name}_told"] and covered[name] else None
            for name in ("tensor_active", "dram_active")
        },
        "idle_allocated_s": one["idle"] / 1e6 if one["held_busy_known"] else None,
        "throttled_s": one["throttled"] / 1e6 if one["throttled_told"] else None,
        "energy_observed_s": drawn_us / 1e6,
        "energy_joules": (one["energy"] if one["energies"] else one["power"] // 1000) / 1e3 if drawn_us else None,
    }


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), devices=st.integers(1, 6))
@example(seed=3600, devices=4)
@example(seed=2738368, devices=3)
def test_each_column_is_what_plain_loops_give(seed, devices):
    """Whatever happens to devices and samplers, the sums are those of each sample with the one before it."""
    facts = random_day(seed, devices)
    found = hours(facts)
    expected = oracle(facts)
    keys = [(row["hour"], row["device_uuid"], (row["holder_run"], row["holder_attempt"], row["holder_rank"]))
            for row in found]  # fmt: skip
    assert len(keys) == len(set(keys))
    assert set(keys) == set(expected)
    for key, row in zip(keys, found, strict=True):
        for name, value in expected_row(expected[key]).items():
            assert row[name] == (value if value is None else pytest.approx(value, rel=1e-6, abs=1e-6)), (key, name)


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32), devices=st.integers(1, 6))
def test_an_hour_depends_on_five_minutes_before_it_and_nothing_later(seed, devices):
    """Samples of earlier and of later hours change no digit of an hour's rows."""
    facts = random_day(seed, devices)
    facts = [row for row in facts if row["ts"].date() == DAY]
    (rollup,) = (one for one in select_rollups(["gpu_hourly"]) if one.name == "gpu_hourly")
    keys = [(name, "ascending") for name in rollup.contract.grain]
    whole = computed(context(gpu_samples=facts), "gpu_hourly").sort_by(keys)
    for hour in whole["hour"].unique().to_pylist():
        end = hour + timedelta(hours=1)
        some = [row for row in facts if hour - GAP_US * US <= row["ts"] < end]
        alone = evaluate_day(context(gpu_samples=some), rollup, DAY, since=hour).sort_by(keys)
        assert alone.to_pylist() == [row for row in whole.to_pylist() if row["hour"] == hour]


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.integers(0, 2**32))
def test_no_order_of_rows_changes_a_digit(seed, order):
    """The same samples in another order and with other parallelism give equal bytes."""
    table = rows("gpu_samples", random_day(seed, 4))
    shuffled = table.take(np.random.default_rng(order).permutation(table.num_rows))
    keys = [(name, "ascending") for name in ("hour", "device_uuid", "holder_run", "holder_rank")]
    one = computed(context(gpu_samples=table, threads=1), "gpu_hourly").sort_by(keys)
    other = computed(context(gpu_samples=shuffled, threads=4), "gpu_hourly").sort_by(keys)
    assert one.combine_chunks().equals(other.combine_chunks())


def test_a_counter_that_starts_again():
    """What was drawn around a reset is not known: neither the time nor a number for it is in the row."""
    facts = samples(50) + samples(50, start=NOON + timedelta(seconds=50), joules=3.0, slot=99)
    (row,) = hours(facts)
    assert (row["energy_joules"], row["energy_observed_s"]) == (49_000.0, 98.0)
    assert row["energy_joules"] / row["energy_observed_s"] == 500.0


def test_a_reset_that_hides_above_the_hours_first_value():
    """A counter that starts low, and again, would grow from first to last all the same: it is seen nevertheless."""
    facts = samples(10, joules=100.0) + samples(10, start=NOON + timedelta(seconds=10), joules=200.0, slot=99)
    (row,) = hours(facts)
    assert (row["energy_joules"], row["energy_observed_s"]) == (9_000.0, 18.0)


@pytest.mark.parametrize(("told_s", "observed_s"), [(14 * 60, 18.0), (1, 19.0)])
def test_a_gap_is_nobodys_time(told_s, observed_s):
    """Minutes without samples are neither idle nor busy, and their energy is not counted: taken late, or lost."""
    after = samples(10, start=NOON + timedelta(minutes=15), joules=9e6, slot=99)
    after[0]["interval_ns"] = told_s * 10**9
    (row,) = hours(samples(10) + after)
    assert (row["observed_s"], row["busy_s"], row["energy_observed_s"]) == (observed_s, observed_s / 2, 18.0)


def test_two_samplers_of_a_device_count_once():
    """Two processes that sample the same device at once do not make two devices of it."""
    (row,) = hours(samples(100) + samples(100, incarnation=8, start=NOON + timedelta(seconds=0.5)))
    assert row["sample_count"] == 200
    assert row["observed_s"] == pytest.approx(99.5, abs=0.6)
    assert row["gpu_utilization_ratio"] == pytest.approx(0.5)


def test_samples_without_intervals_are_measured_by_their_times():
    """Pages of an exporter tell no interval: each sample speaks for the time since the one before it."""
    facts = samples(100, every_s=15.0, source="dcgm", sm_active_ratio=0.25)
    (row,) = hours([{**fact, "interval_ns": None} for fact in facts])
    assert (row["observed_s"], row["busy_s"], row["sm_active_s"]) == (99 * 15, 99 * 7.5, 99 * 3.75)


def test_energy_without_a_counter_is_power_times_time():
    """Devices without a counter of energy tell their power."""
    (row,) = hours([{**fact, "energy_joules": None, "power_watts": 250.0} for fact in samples(11)])
    assert (row["energy_joules"], row["energy_observed_s"]) == (2_500.0, 10.0)


def test_what_is_unknown_has_a_reason():
    """Columns that no sample tells are NULL, and the row says why; what is known is not among the reasons."""
    facts = [{**fact, "gpu_utilization_ratio": None, "energy_joules": None, "holder_run": None, "holder_attempt": None,
              "holder_rank": None, "holder_count": None, "source": "dcgm"} for fact in samples(10)]  # fmt: skip
    (row,) = hours(facts)
    reasons = json.loads(row["unavailable"])
    assert set(reasons) == {
        "allocated_s", "gpu_utilization_ratio", "sm_active_ratio", "energy_joules", "throttled_s",
        "ecc_uncorrected_count", "xid_count",
    }  # fmt: skip
    assert all(row[name] is None for name in reasons)


def test_a_percentage_is_no_ratio():
    """A utilisation of 95 is of another unit: not known rather than 95 times busy."""
    (row,) = hours(samples(10, gpu_utilization_ratio=95.0))
    assert (row["busy_s"], row["busy_observed_s"], row["gpu_utilization_ratio"]) == (None, 0.0, None)


def test_errors_are_counted_by_hour():
    """Uncorrected memory errors by the growth of their counter, XIDs by their events, each with who held the device."""
    facts = [{**fact, "ecc_uncorrected_volatile_count": 3 if n < 40 else 5} for n, fact in enumerate(samples(100))]
    facts += samples(10, device="GPU-2")
    told = {"device_uuid": "GPU-1", "xid": 79}
    xid = {"ts": NOON + timedelta(seconds=5), "event": "xid", "attributes": json.dumps(told)}
    one, other = hours(facts, events=[xid])
    assert (one["ecc_uncorrected_count"], one["xid_count"]) == (2, 1)
    assert (other["ecc_uncorrected_count"], other["xid_count"]) == (None, 0)


def test_the_holder_tells_pool_and_cluster():
    """A row knows the pool of the run that held the device; without a holder nobody knows."""
    facts = samples(10) + samples(10, start=NOON + timedelta(seconds=10), holder_run=None, holder_count=0)
    runs = [{"ts": NOON - timedelta(days=3), "run": "r1", "cluster": "c", "pool": "p"}]
    idle, held = sorted(hours(facts, runs=runs), key=lambda row: row["allocated_s"])
    assert (held["cluster"], held["pool"], idle["cluster"], idle["pool"]) == ("c", "p", None, None)
    assert (idle["allocated_s"], idle["idle_allocated_s"]) == (0.0, None)


@pytest.mark.slow
@pytest.mark.parametrize("liar", ["told time", "energy", "energy up and down", "errors"])
def test_sums_of_samples_that_lie_stay_within_their_day(liar):
    """More time than a day has, and counters of 10^300 J or 2^63 errors, wrap no sum and stop nobody."""
    count = 40_000 if liar == "told time" else 100
    told = samples(count, every_s=0.05, gpu_utilization_ratio=1.0, sm_active_ratio=1.0)
    for n, row in enumerate(told):
        if liar == "told time":
            row["interval_ns"] = 300 * 10**9
        elif liar == "energy":
            row["energy_joules"] = 1e300 * n
        elif liar == "energy up and down":
            row["energy_joules"] = 9e15 * (n % 2)
        else:
            row["ecc_uncorrected_volatile_count"] = (2**63 - 1) * (n % 2)
    (row,) = hours(told)
    assert 0 <= row["busy_s"] == pytest.approx(row["observed_s"])
    assert row["observed_s"] <= 3600
    assert row["energy_joules"] is None or 0 <= row["energy_joules"] <= 3600 * 5000
    assert row["ecc_uncorrected_count"] in ({0} if liar == "errors" else {None})


@pytest.mark.parametrize("kind", ["power", "counter", "intervals"])
def test_midnight_costs_no_interval(kind):
    """Energy and time are the same whether midnight falls between two samples or not; a gap at midnight stays one."""
    own = {
        "power": {"power_watts": 300.0, "energy_joules": None, "interval_ns": None},
        "counter": {"interval_ns": None},
        "intervals": {},
    }[kind]
    sums = []
    for start in (NOON, MIDNIGHT + timedelta(hours=23, minutes=30)):
        found = hours(samples(61, start=start, every_s=60.0, watts=300.0, **own))
        sums.append((sum(row["energy_joules"] for row in found), sum(row["observed_s"] for row in found)))
        assert sum(row["sample_count"] for row in found) == 61
    assert sums == [(60 * 60 * 300.0, 3600.0)] * 2
    late = MIDNIGHT + timedelta(days=1, seconds=200)
    apart = [*samples(2, start=late - timedelta(seconds=600), **own), *samples(2, start=late, incarnation=8, **own)]
    assert sum(row["observed_s"] for row in hours(apart)) == 2.0


def test_power_beyond_a_device_is_named():
    """A node's power under a device's name is left out, and the reason says at which limit."""
    own = {"power_watts": 7160.0, "energy_joules": None}
    (row,) = hours(samples(60, **own))
    assert (row["energy_joules"], row["power_max_watts"]) == (None, 7160.0)
    reason = "samples tell more than 2000 W, the most that a device draws"
    assert json.loads(row["unavailable"])["energy_joules"] == reason
