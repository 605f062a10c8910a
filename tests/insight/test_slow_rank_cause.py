"""A slow rank is told with what ails its device and host: on the on-call page, at the prompt and on the run's page."""

from datetime import timedelta

import pytest
from rollup_inputs import DAY, NOON, append, computed, context, rows
from sampled import gpu_samples, host_samples

from ranklake.insight.overview.oncall import of_stragglers
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.facts import cause_text, gather, hardware_findings, slowdowns
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read
from ranklake.views.run import run_lines

HOT = {"clock_event_reasons": "hw_thermal_slowdown", "sm_clock_hz": 1.3e9}


def hot_lake(place):
    """Return a lake where GPU 1 of node 1 throttles from 12:05 on, and its host waits for disks from 12:10 on."""
    made = Lake.create(str(place / "lake"))
    append(
        made,
        "ranks",
        [{"ts": NOON, "rank": rank, "host": f"pc-{rank // 2}", "local_rank": rank % 2} for rank in range(4)],
    )
    devices = [
        {**row, "host": f"pc-{rank // 2}", "holder_rank": rank, "device_index": rank % 2, "clock_event_reasons": "",
         **(HOT if rank == 3 and n >= 30 else {})}
        for rank in range(4)
        for n, row in enumerate(gpu_samples(120, every_s=10, device=f"GPU-{rank}", incarnation=rank + 1))
    ]  # fmt: skip
    hosts = [
        {**row, "cpu_iowait_ratio": 0.6 if host and n >= 60 else 0.0}
        for host in range(2) for n, row in enumerate(host_samples(120, host=f"pc-{host}", incarnation=host + 9))
    ]  # fmt: skip
    append(made, "gpu_samples", devices)
    append(made, "host_samples", hosts)
    run_rollups(made, ["node_findings"])
    return made


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give that lake, where rank 3 is 9 % slow all day."""
    made = hot_lake(tmp_path_factory.mktemp("slow"))
    schema = arrow_schema(contract("rank_health"))
    for rank in range(4):
        row = {field.name: 0 for field in schema if not field.nullable} | {
            "run": "r1",
            "rank": rank,
            "date": DAY,
            "ranks": 4,
        }
        row |= {"steps_compared": 100, "is_straggler": rank == 3, "excess_ratio": 0.09 if rank == 3 else 0.0}
        append(made, "rank_health", rows("rank_health", [{**row, "reason": "straggler: it is 9.0 % slow", "ts": NOON}]))
    return made


def test_a_slow_ranks_device_and_host_say_why(lake):
    """Its own device's throttling and its host's disks, each with its time; not those of others, nor names of hosts."""
    found = hardware_findings(asking(lake), ["r1"], [3]).rows
    text = cause_text(found)
    assert "GPU 1 of node 1 throttles, thermal, 100 % of the time, its SMs at 1,300 MHz" in text
    assert f"since {NOON + timedelta(minutes=5):%Y-%m-%d %H:%M} UTC" in text
    disks = f"since {NOON + timedelta(minutes=10):%Y-%m-%d %H:%M} UTC"
    assert f"CPUs of node 1 wait for disks 60 % of the time, for 10 min, {disks}" in text
    assert "pc-" not in text
    assert [row["detector"] for row in hardware_findings(asking(lake), ["r1"], [2]).rows] == ["iowait"], (
        "of its host alone"
    )
    assert cause_text(hardware_findings(asking(lake), ["r1"], [0, 1]).rows) == ""
    assert hardware_findings(asking(lake), ["r1"], []).rows == ()


def test_on_call_and_the_prompt_tell_it(lake):
    """Rank 3 is 9 % slow: its GPU throttles; a run whose hardware is well has no such words."""
    slow = {
        "run": "r1",
        "attempt": 0,
        "rank": 3,
        "excess_ratio": 0.09,
        "excess_s": None,
        "cause": "compute",
        "injected": None,
    }
    hardware = hardware_findings(asking(lake), ["r1"], [3]).rows
    (need,) = of_stragglers([slow], hardware=hardware)
    assert need.detail.startswith("rank 3: its own work takes 9.0 % longer than that of its peers, through compute; ")
    assert "; GPU 1 of node 1 throttles, thermal" in need.detail
    (need,) = of_stragglers([{**slow, "rank": 0}], hardware=hardware)
    assert "throttles" not in need.detail
    lines = "\n".join(run_lines(gather(asking(lake), "r1"), 400))
    assert (
        "straggler   rank 3: it is 9.0 % slow\n            GPU 1 of node 1 throttles" in lines
        or "GPU 1 of node 1" in lines
    )


def test_a_rank_that_turns_slow_in_mid_run_has_the_cause_of_its_device(tmp_path):
    """Rank 3 is slow from 12:05 on, as its GPU throttles: one incident, heat its first cause; the prompt tells both."""
    made = hot_lake(tmp_path)
    at = 300
    moments = [NOON + timedelta(seconds=n) for n in range(600)]
    steps = [
        {"run": "r1", "attempt": 0, "step": n, "ts": moment, "lead_ts": moment, "date": DAY, "ranks": 4,
         "slowest_rank": 3 if n >= at else n % 4, "slowest_excess_s": 0.3 if n >= at else 0.01,
         "max_self_time_s": 0.8 if n >= at else 0.5, "loss_ranks": 0, "sum_step_time_ns": 0, "sum_self_time_ns": 0,
         "lead_step_time_ns": 0, "non_finite_ranks": 0}
        for n, moment in enumerate(moments)
    ]  # fmt: skip
    found = computed(context(step_rollup=steps), "run_findings")
    beneath = read(made.tables, contract("node_findings"))
    append(made, "run_findings", found)
    append(made, "incidents", computed(context(run_findings=found, node_findings=beneath), "incidents"))
    facts = gather(asking(made), "r1")
    (slow,) = slowdowns(facts.incidents.listed)
    begun = (NOON + timedelta(seconds=at)).isoformat()
    assert (slow["rank"], slow["step"], slow["start_ts"]) == (3, at, begun)
    (incident,) = facts.incidents.listed
    assert [cause.name for cause in incident.causes][:1] == ["gpu-heat"]
    lines = "\n".join(run_lines(facts, 400))
    assert f"straggler   rank 3: 60 % slower than its peers from step {at} on, by compute" in lines
    assert "\n            GPU 1 of node 1 throttles, thermal" in lines
    assert "stragglers  none" not in lines
