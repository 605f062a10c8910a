"""Minutes of devices and hosts: what plain loops over the samples give, whatever their order and values."""

import json
import random
from collections import defaultdict
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollup_inputs import DAY, NOON, computed, context
from sampled import gpu_samples, host_samples, with_links

MINUTE = timedelta(minutes=1)
GPU = {
    "sm_active_ratio": ("mean", 0, 1, 1e6, [0.0, 0.25, 1.0, 1.5, -1.0, float("nan"), None]),
    "gpu_utilization_ratio": ("mean", 0, 1, 1e6, [0.0, 0.5, 2.0, None]),
    "temperature_celsius": ("mean", -50, 200, 1e3, [-273.0, 30.0, 61.5, 1e9, None]),
    "sm_clock_hz": ("mean", 0, 1e11, 1, [0.0, 1760e6, 1980e6, -1.0, 1e30, None]),
    "slowdown_temperature_celsius": (max, [87.0, 90.0, None]),
    "ecc_uncorrected_volatile_count": (max, [0, 5, 2**62, None]),
    "remapped_rows_uncorrected_count": (max, [0, 1, None]),
    "nvlink_recovery_error_count": (max, [0, 1, None]),
    "pcie_replay_count": (max, [0, 7, None]),
    "row_remap_pending": (any, [False, True, None]),
    "row_remap_failure": (any, [False, None]),
    "pcie_link_width": (min, [8, 16, None]),
    "pcie_link_generation": (max, [1, 5, None]),
    "nvlink_active_count": (min, [0, 17, 18, None]),
}
HOST = {
    "cpu_iowait_ratio": ("mean", 0, 1, 1e6, [0.0, 0.125, 1.0, 7.0, float("nan"), None]),
    "pressure_cpu_some_ratio": ("mean", 0, 1, 1e6, [0.5, None]),
    "pressure_io_full_ratio": ("mean", 0, 1, 1e6, [0.5, -0.5, None]),
    "pressure_memory_full_ratio": ("mean", 0, 1, 1e6, [0.75, None]),
    "oom_kill_count": (max, [0, 3, None]),
}


def expected(rule, values):
    """Return what a column of a minute is, by its rule and the values of the samples."""
    if rule[0] == "mean":
        _, low, high, scale, _ = rule
        valid = [value for value in values if value is not None and low <= value <= high]
        rounding = 0.5 if scale == 1e6 else 0.0
        return sum(int(value * scale + rounding) for value in valid) / scale / len(valid) if valid else None
    valid = [value for value in values if value is not None]
    return rule[0](valid) if valid else None


def random_samples(seed, make, rules, keys):
    """Return samples of two hours around noon with random values, shuffled, with other holders now and then."""
    rng = random.Random(seed)
    facts = []
    for number in range(rng.randint(1, 3)):
        for row in make(number, rng.randint(1, 300)):
            if rng.random() < 0.1:
                row |= {name: rng.choice(values) for name, values in keys.items()}
            facts.append(row | {name: rng.choice(rule[-1]) for name, rule in rules.items()})
    rng.shuffle(facts)
    return [row | {"slot": slot} for slot, row in enumerate(facts)]


def grouped(facts, keys):
    """Return samples by minute and key columns."""
    groups = defaultdict(list)
    for row in facts:
        groups[(row["ts"].replace(second=0, microsecond=0), *(row.get(name) for name in keys))].append(row)
    return groups


def check(table, facts, keys, rules):
    """Compare a table of minutes with plain loops."""
    groups = grouped(facts, keys)
    minutes = computed(context(**{table.replace("minutes", "samples"): facts}), table).to_pylist()
    assert len(minutes) == len(groups)
    for row in minutes:
        group = groups[(row["minute"], *(row[name] for name in keys))]
        assert (row["sample_count"], row["date"]) == (len(group), DAY)
        times = [one["ts"] for one in group]
        assert (row["first_ts"], row["last_ts"]) == (min(times), max(times))
        for name, rule in rules.items():
            assert row[name] == expected(rule, [one[name] for one in group]), name


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_minutes_of_devices_are_what_plain_loops_give(seed):
    """Values that cannot be are left out of means; a holder, a MIG instance and a source have minutes of their own."""
    keys = {"device_uuid": ["GPU-0", "GPU-9"], "mig_gpu_instance": [None, 1], "source": ["nvml", "dcgm", None],
            "holder_run": [None, "r2"]}  # fmt: skip

    def make(number, count):
        return gpu_samples(count, device=f"GPU-{number}", every_s=7, incarnation=number)

    check("gpu_minutes", random_samples(seed, make, GPU, keys), keys, GPU)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_minutes_of_hosts_are_what_plain_loops_give(seed):
    """The same of hosts; samples of processes are left out."""
    keys = {"host": ["node0", "node9"], "holder_run": [None, "r2"]}

    def make(number, count):
        return host_samples(count, host=f"node{number}", every_s=7, incarnation=number)

    facts = random_samples(seed, make, HOST, keys)
    check("host_minutes", facts, keys, HOST)
    process = [row | {"subject": "process", "slot": row["slot"] + 10_000} for row in facts]
    assert computed(context(host_samples=process), "host_minutes").num_rows == 0


@pytest.mark.parametrize(
    ("reasons", "ratio", "text"),
    [
        (["sw_power_cap", "gpu_idle"], 0.0, None),
        (["hw_thermal_slowdown", "sw_power_cap"], 0.5, "thermal"),
        (
            ["hw_power_brake_slowdown", "hw_slowdown,sw_thermal_slowdown"],
            1.0,
            "thermal, power brake, hardware slowdown",
        ),
        ([None, "hw_slowdown"], 1.0, "hardware slowdown"),
        ([None, None], None, None),
    ],
)
def test_what_held_clocks_down(reasons, ratio, text):
    """A share of the samples that say it, and each reason once; a device at its power cap is well."""
    facts = [row | {"clock_event_reasons": reason} for row, reason in zip(gpu_samples(2), reasons, strict=True)]
    (row,) = computed(context(gpu_samples=facts), "gpu_minutes").to_pylist()
    assert (row["throttled_ratio"], row["throttle_reasons"]) == (ratio, text)


def test_counters_of_links_add_up_and_unknown_ones_are_null():
    """Errors of NVLinks that no sample has are NULL; an InfiniBand counter without the others says nothing."""
    facts = [row | {"nvlink_crc_flit_error_count": 3, "nvlink_replay_error_count": 4} for row in gpu_samples(1)]
    (row,) = computed(context(gpu_samples=facts), "gpu_minutes").to_pylist()
    assert (row["nvlink_error_count"], row["nvlink_recovery_error_count"]) == (7, None)
    (row,) = computed(context(gpu_samples=gpu_samples(1)), "gpu_minutes").to_pylist()
    assert row["nvlink_error_count"] is None
    names = ("symbol_error", "link_downed", "link_recovery", "receive_error")
    ports = {f"infiniband_{name}_count": 2 for name in names}
    for counts, total in ((ports, 8), (ports | {"infiniband_symbol_error_count": None}, None)):
        (row,) = computed(context(host_samples=[host_samples(1)[0] | counts]), "host_minutes").to_pylist()
        assert row["infiniband_error_count"] == total


def test_links_of_a_minute_have_a_line_for_each_state():
    """Order and line breaks of the JSON text do not matter."""
    facts = with_links("node1", at=3, down=["eth0"], count=6, eth0=True)
    facts[1]["links"] = json.dumps(json.loads(facts[1]["links"]), indent=1)
    (row,) = computed(context(host_samples=facts[::-1]), "host_minutes").to_pylist()
    states = [json.loads(line)["eth0"]["up"] for line in row["links"].split("\n")]
    assert sorted(states) == [False, True, True]
    assert row["minute"] == NOON
