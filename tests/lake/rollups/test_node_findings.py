"""Findings about devices and hosts: planted faults are found where and when they are, and nothing else is."""

import json
import pickle
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from rollup_inputs import DAY, NOON, append, computed, context, rows
from sampled import LINK, gpu_samples, host_samples, with_links

from ranklake.capture.samplers.gpu_parts import clock_reasons
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.detectors.registry import NODE_DETECTORS
from ranklake.lake.rollups.hardware import ACTIONS, limits, xid_meanings
from ranklake.lake.rollups.peaks import name_key
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

H100 = "NVIDIA H100 80GB HBM3"
MINUTE = timedelta(minutes=1)
GIB = 1 << 30
BITS = {"gpu_idle": 0x1, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sync_boost": 0x10, "sw_thermal": 0x20,
        "hw_thermal": 0x40, "power_brake": 0x80}  # fmt: skip
"""As nvml.h has them."""


def gpu(minutes=20, *, bad=range(5, 10), rank=1, start=NOON, good=None, **columns):
    """Return a device's samples, each ten seconds; `columns` hold in the bad minutes, `good` in the others."""
    facts = gpu_samples(
        minutes * 6,
        every_s=10,
        device=f"GPU-{rank}",
        start=start,
        device_index=rank,
        device_name=H100,
        incarnation=rank + 1,
    )
    usual = {"sm_active_ratio": 0.9, "temperature_celsius": 60.0, "clock_event_reasons": "sw_power_cap"} | (good or {})
    return [{**row, "holder_rank": rank, **usual, **(columns if n // 6 in bad else {})} for n, row in enumerate(facts)]


def host(minutes=20, *, bad=range(5, 10), name="node1", **columns):
    """Return a host's samples, each ten seconds; `columns` hold in the bad minutes."""
    quiet = {
        "cpu_iowait_ratio": 0.01,
        "pressure_io_full_ratio": 0.0,
        "pressure_memory_full_ratio": 0.0,
        "oom_kill_count": 4,
    }
    return [
        {**row, **quiet, **(columns if n // 6 in bad else {})}
        for n, row in enumerate(host_samples(minutes * 6, host=name))
    ]


def steps(minutes=20, *, skip=()):
    """Return steps of the run, each ten seconds, but for some minutes."""
    return [
        {"run": "r1", "attempt": 0, "step": n, "ts": NOON + n * timedelta(seconds=10), "max_step_time_s": 10.0}
        for n in range(minutes * 6) if n // 6 not in skip
    ]  # fmt: skip


def ranks(hosts=("node1",), each=8):
    """Return where ranks are."""
    return [{"ts": NOON, "rank": rank, "host": hosts[rank // each]} for rank in range(each * len(hosts))]


def findings(days=(DAY,), **tables):
    """Return the findings of planted tables, the query of whose evidence shows rows."""
    tables = {"ranks": ranks(), **tables}
    if "step_rollup" in tables:
        tables["step_rollup"] = stepped(tables["step_rollup"])
    ctx = context(**tables)
    for table in {"gpu_samples", "host_samples"} & tables.keys():
        minutes = table.replace("samples", "minutes")
        replace_table(ctx, minutes, computed(ctx, minutes, days={row["ts"].date() for row in tables[table]}))
    told = computed(ctx, "node_findings", days=days).to_pylist()
    assert all(ctx.sql(row["evidence_sql"]).to_arrow_table().num_rows for row in told)
    return told


def stepped(facts):
    """Return rows of ``step_rollup``, what its contract requires being nought."""
    required = [field for field in arrow_schema(contract("step_rollup")) if not field.nullable]
    nought = {field.name: NOON if pa.types.is_timestamp(field.type) else 0 for field in required}
    return [{**nought, **fact, "date": fact["ts"].date()} for fact in facts]


def only(rows):
    """Return the one finding that there is."""
    assert len(rows) == 1, [(row["detector"], row["message"]) for row in rows]
    return rows[0]


PLANTED_GPU = [
    ("gpu_temperature", {"temperature_celsius": 83.0}, "GPU 1 of node 0 is at 83 °C, 82 °C or more for 5 min",
     "warning"),
    ("gpu_throttling", {"clock_event_reasons": "hw_thermal_slowdown", "sm_clock_hz": 1.2e9},
     "GPU 1 of node 0 throttles, thermal, 100 % of the time, its SMs at 1,200 MHz, for 5 min", "warning"),
    ("gpu_throttling", {"clock_event_reasons": "hw_power_brake_slowdown,sw_power_cap"},
     "GPU 1 of node 0 throttles, power brake, 100 % of the time, for 5 min", "warning"),
    ("pcie_width", {"pcie_link_width": 8}, "PCIe of GPU 1 of node 0 runs on 8 of 16 lanes, for 5 min", "warning"),
    ("nvlink_down", {"nvlink_active_count": 17}, "17 of 18 NVLinks of GPU 1 of node 0 are up, for 5 min", "error"),
    ("row_remap", {"row_remap_pending": True}, "GPU 1 of node 0 waits for a reset to remap a bad memory row", "error"),
    ("row_remap", {"row_remap_failure": True}, "GPU 1 of node 0 could not remap a bad memory row: replace it", "error"),
]  # fmt: skip


@pytest.mark.parametrize(("detector", "columns", "message", "severity"), PLANTED_GPU)
def test_a_device_that_is_not_well_for_five_minutes(detector, columns, message, severity):
    """It is found at its rank and time, with a sentence, its page and a query."""
    row = only(findings(gpu_samples=[*gpu(rank=0), *gpu(rank=1, **columns)]))
    assert (row["detector"], row["severity"]) == (detector, severity)
    assert row["message"].startswith(message)
    assert (row["run"], row["attempt"], row["rank"], row["host"], row["device_uuid"]) == ("r1", 0, 1, "node1", "GPU-1")
    assert (row["start_ts"], row["end_ts"]) == (NOON + 5 * MINUTE, NOON + timedelta(minutes=9, seconds=50))
    assert "node1" not in row["message"], "names of hosts are pseudonymous"
    assert "node1" not in row["evidence_sql"]


@pytest.mark.parametrize(
    ("detector", "column", "message"),
    [
        ("ecc", "ecc_uncorrected_volatile_count", "GPU 1 of node 0 had 2 uncorrected memory errors"),
        ("row_remap", "remapped_rows_uncorrected_count", "GPU 1 of node 0 remapped 2 memory rows"),
        ("nvlink_recovery", "nvlink_recovery_error_count", "NVLinks of GPU 1 of node 0 recovered 2 times"),
    ],
)
def test_an_error_of_a_device_is_counted_once(detector, column, message):
    """A counter that grows is found when it does; what it had before, and after, is none."""
    row = only(findings(gpu_samples=gpu(bad=range(5, 99), good={column: 7}, **{column: 9})))
    assert (row["detector"], row["value"], row["start_ts"]) == (detector, 2.0, NOON + 5 * MINUTE)
    assert row["message"].startswith(message)
    assert not findings(gpu_samples=gpu(good={column: 7}, **{column: 7}))


@pytest.mark.parametrize("minutes", [3, 7])
def test_an_error_at_midnight_is_counted(minutes):
    """A counter that grows in the first minute of a date, since one of the last five minutes of the day before."""
    midnight = datetime(DAY.year, DAY.month, DAY.day, tzinfo=NOON.tzinfo)
    before, after = gpu(1, bad=()), gpu(3, bad=(), start=midnight)
    facts = [{**row, "ts": row["ts"] - NOON + midnight - minutes * MINUTE, "pcie_replay_count": 7} for row in before]
    facts += [{**row, "slot": row["slot"] + 99, "pcie_replay_count": 907} for row in after]
    told = findings(gpu_samples=facts)
    assert [(row["value"], row["start_ts"]) for row in told] == ([(900.0, midnight)] if minutes < 5 else [])


@pytest.mark.parametrize("column", ["pcie_replay_count", "nvlink_crc_data_error_count"])
def test_links_may_repeat_something_now_and_then(column):
    """Less than a hundred a day are none."""
    assert not findings(gpu_samples=gpu(bad=range(5, 99), good={column: 7}, **{column: 106}))
    assert only(findings(gpu_samples=gpu(bad=range(5, 99), good={column: 7}, **{column: 107})))["value"] == 100.0


@pytest.mark.parametrize("name", BITS)
def test_a_card_at_its_power_cap_is_healthy(name):
    """Of NVML's bits, heat, hardware slowdown and power brake throttle; power cap, idle and sync boost do not."""
    reasons = clock_reasons(BITS[name])
    facts = gpu(rank=0, good={"clock_event_reasons": reasons})
    throttles = name in {"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"}
    assert [row["detector"] for row in findings(gpu_samples=facts)] == ["gpu_throttling"] * throttles
    (hour,) = computed(context(gpu_samples=facts), "gpu_hourly").to_pylist()
    assert hour["throttled_s"] == (1190.0 if throttles else 0.0)


def test_sms_at_forty_percent_while_the_run_steps():
    """Below 60 % for a minute and more, at steps; not before the first step, nor between stretches of steps."""
    idle = gpu(bad=range(20), sm_active_ratio=0.4)
    row = only(findings(gpu_samples=idle, step_rollup=steps(skip=range(10))))
    assert (row["detector"], row["start_ts"], row["rank"]) == ("low_sm", NOON + 10 * MINUTE, 1)
    assert row["value"] == pytest.approx(0.4)
    assert row["message"].startswith("SMs of GPU 1 of node 0 are busy 40 % of the time while the run steps, below 60 %")
    assert not findings(gpu_samples=gpu(bad=range(5, 10), sm_active_ratio=0.4), step_rollup=steps(skip=range(4, 11)))
    assert not findings(gpu_samples=gpu(sm_active_ratio=0.6), step_rollup=steps())


def test_sms_of_a_run_without_steps_count_while_kernels_run():
    """Of a run that records no steps, the device's own utilisation says when it works; a free device never does."""
    busy = {"gpu_utilization_ratio": 0.9}
    assert only(findings(gpu_samples=gpu(sm_active_ratio=0.2, good=busy)))["detector"] == "low_sm"
    assert not findings(gpu_samples=gpu(sm_active_ratio=0.2, good={"gpu_utilization_ratio": 0.1}))
    free = {"holder_run": None, "holder_attempt": None, "holder_count": 0}
    assert not findings(
        gpu_samples=[{**row, **free, "holder_rank": None} for row in gpu(sm_active_ratio=0.2, good=busy)]
    )


@pytest.mark.parametrize(
    ("name", "own", "threshold"), [(H100, 90, 82), ("Some GPU", 92, 85), ("Some GPU", None, 85), ("Some GPU", 80, 73)]
)
def test_temperature_by_model_by_the_devices_own_or_in_general(name, own, threshold):
    """A model's threshold, else seven degrees below the device's own slowdown, else one for all."""
    usual = {"device_name": name, "slowdown_temperature_celsius": own}
    assert not findings(gpu_samples=gpu(good=usual, temperature_celsius=threshold - 0.5))
    assert only(findings(gpu_samples=gpu(good=usual, temperature_celsius=float(threshold))))["baseline"] == threshold


PLANTED_HOST = [
    ("iowait", {"cpu_iowait_ratio": 0.6}, "CPUs of node 0 wait for disks 60 % of the time, for 5 min"),
    ("io_pressure", {"pressure_io_full_ratio": 0.5}, "All tasks of node 0 wait for disks 50 % of the time, for 5 min"),
    (
        "memory_pressure",
        {"pressure_memory_full_ratio": 0.2},
        "All tasks of node 0 wait for memory 20 % of the time",
    ),
]


@pytest.mark.parametrize(("detector", "columns", "message"), PLANTED_HOST)
def test_a_host_that_waits(detector, columns, message):
    """It is found at its host and time; nine others that are well are not."""
    rows = findings(host_samples=[*host(**columns), *host(name="node2")], ranks=ranks(("node1", "node2")))
    row = only(rows)
    assert (row["detector"], row["host"], row["run"], row["rank"]) == (detector, "node1", "r1", None)
    assert (row["start_ts"], row["end_ts"]) == (NOON + 5 * MINUTE, NOON + timedelta(minutes=9, seconds=50))
    assert row["message"].startswith(message)


def test_an_oom_kill():
    """The counter grows by two: one finding; what was killed before the first sample is none."""
    row = only(findings(host_samples=host(bad=range(5, 99), oom_kill_count=6)))
    assert (row["detector"], row["value"], row["severity"], row["start_ts"]) == (
        "oom_kill",
        2.0,
        "error",
        NOON + 5 * MINUTE,
    )


@pytest.mark.parametrize(
    ("detector", "table", "samples"),
    [("host_memory_growth", "host_samples", host_samples), ("gpu_memory_growth", "gpu_samples", gpu)],
)
def test_memory_that_grows_until_it_is_used_up(detector, table, samples):
    """Growth that goes on for twenty minutes says when memory ends; a rise that ends, or leaves days, says nothing."""

    def growing(gib_a_minute, until=60):
        rows = samples(60 * 6)[: 60 * 6]
        return {table: [
            {**row, "memory_total_bytes": 1000 * GIB, "memory_used_bytes": int(min(n / 6, until) * gib_a_minute * GIB)}
            for n, row in enumerate(rows)
        ]}  # fmt: skip

    row = only(findings(**growing(4)))
    assert (row["detector"], row["start_ts"]) == (detector, NOON + 20 * MINUTE)
    assert row["value"] == pytest.approx(4 * GIB / 60, rel=0.05)
    assert "grows by 4,096 MiB a minute, and is used up in" in row["message"]
    assert not findings(**growing(40, until=10))
    assert not findings(**growing(0.9))


def test_memory_that_a_device_fills_run_by_run_does_not_grow():
    """What the run before held says nothing of the one after it, nor does a device that nobody holds."""
    rows = [
        {**row, "holder_run": f"r{n // 60}", "memory_total_bytes": 1000 * GIB, "memory_used_bytes": n * GIB}
        for n, row in enumerate(gpu(60))
    ]
    assert not findings(gpu_samples=rows)
    assert not findings(gpu_samples=[{**row, "holder_run": None} for row in rows])


def test_links_that_are_down_or_slow():
    """Two links down at once are one finding that names both; a slow one says how fast it should be."""
    down = with_links(
        "node1", at=30, down=["mlx5_0/1", "mlx5_1/1"], **{"mlx5_0/1": True, "mlx5_1/1": True, "eth9": False}
    )
    row = only(findings(host_samples=down))
    assert (row["detector"], row["severity"], row["start_ts"]) == ("link_down", "error", NOON + 5 * MINUTE)
    assert row["message"].startswith("Links mlx5_0/1, mlx5_1/1 of node 0 are down")
    row = only(findings(host_samples=with_links("node1", at=30, speeds={"eth0": LINK // 4}, eth0=True)))
    assert row["message"].startswith("Link eth0 of node 0 is at 100 Gb/s for 400")


def test_infiniband_errors():
    """Ten within an hour count; fewer are usual."""
    errors = {
        "infiniband_symbol_error_count": 0,
        "infiniband_link_downed_count": 0,
        "infiniband_link_recovery_count": 0,
    }

    def ports(count):
        rows = host(bad=range(5, 99), infiniband_receive_error_count=count)
        return [{"infiniband_receive_error_count": 0, **errors, **row} for row in rows]

    assert not findings(host_samples=ports(9))
    assert only(findings(host_samples=ports(10)))["detector"] == "network_errors"


def test_a_host_that_falls_silent_while_its_run_goes_on():
    """Five minutes without a word; the other host goes on. A run that ends on both is no silence."""
    both = ranks(("node1", "node2"))
    row = only(findings(host_samples=[*host(20), *host(8, name="node2")], ranks=both))
    assert (row["detector"], row["host"], row["end_ts"]) == ("host_silence", "node2", None)
    assert row["start_ts"] == NOON + timedelta(minutes=7, seconds=50)
    assert row["message"].startswith("Nothing was heard of node 1 for 12 min, while its run went on")
    assert not findings(host_samples=[*host(20), *host(18, name="node2")], ranks=both)
    gap = [row for row in host(20) if not 6 * MINUTE <= row["ts"] - NOON < 12 * MINUTE]
    assert only(findings(host_samples=gap))["end_ts"] == NOON + 12 * MINUTE


def test_the_only_host_of_a_run_falls_silent_while_its_run_goes_on():
    """No other host's samples say that the run goes on: its steps do. It ends with its steps, or they did before."""
    row = only(findings(host_samples=host(8), step_rollup=steps(20)))
    assert (row["detector"], row["host"], row["end_ts"]) == ("host_silence", "node1", None)
    assert row["start_ts"] == NOON + timedelta(minutes=7, seconds=50)
    assert row["message"].startswith("Nothing was heard of node 0 for 12 min, while its run went on")
    for last in (8, 10, 3):
        assert not findings(host_samples=host(8), step_rollup=steps(last))
    assert not findings(host_samples=host(8), step_rollup=[{**row, "run": "r2"} for row in steps(20)])


def xid(code, minutes=5, device="GPU-1"):
    """Return the event of an XID."""
    attributes = json.dumps({"device_uuid": device, "xid": code})
    return {"ts": NOON + minutes * MINUTE, "event": "xid", "attributes": attributes}


@pytest.mark.parametrize(
    ("code", "severity", "advice"),
    [(79, "critical", "GPU has fallen off the bus; drain the node and reboot it"),
     (13, "warning", "Graphics engine exception; restart the application"),
     (63, "info", "GPU memory remapping event; no action"), (999, "error", "not in the catalog")],
)  # fmt: skip
def test_an_xid_has_nvidias_advice(code, severity, advice):
    """By class: an application's fault is no device's; an unknown one is an error."""
    row = only(findings(gpu_samples=gpu(), events=[xid(code)]))
    assert (row["detector"], row["severity"], row["rank"], row["host"]) == ("xid", severity, 1, "node1")
    assert row["message"].startswith(f"XID {code} on GPU 1 of node 0: {advice}")


def test_xids_that_follow_each_other_are_one_finding():
    """The worst leads, whatever came first; ten minutes later it is another. A device without samples has no host."""
    rows = findings(gpu_samples=gpu(), events=[xid(45), xid(79), xid(45, 6), xid(79, 30), xid(31, device="GPU-7")])
    by_start = sorted((row["start_ts"], row["device_uuid"], row["value"], row["host"]) for row in rows)
    assert by_start == [
        (NOON + 5 * MINUTE, "GPU-1", 79.0, "node1"), (NOON + 5 * MINUTE, "GPU-7", 31.0, None),
        (NOON + 30 * MINUTE, "GPU-1", 79.0, "node1"),
    ]  # fmt: skip


def test_a_lost_device():
    """The driver's word is the finding."""
    attributes = json.dumps({"device_uuid": "GPU-1", "reason": "GPU is lost"})
    row = only(findings(gpu_samples=gpu(), events=[{"ts": NOON, "event": "gpu_lost", "attributes": attributes}]))
    assert (row["detector"], row["severity"]) == ("gpu_lost", "critical")
    assert row["message"].startswith("GPU 1 of node 0 is lost: GPU is lost")


def fault(rank, minutes, end=None, kind="GPU", level="Hardware Failure"):
    """Return the start of an imported fault."""
    told = {"level": level, "class": kind, "description": f"{kind} broke"}
    told |= {} if end is None else {"end_ts": (NOON + end * MINUTE).isoformat()}
    return {"ts": NOON + minutes * MINUTE, "event": "fault_start", "rank": rank, "attributes": json.dumps(told)}


def test_imported_faults_overlap_and_stay_apart():
    """Each fault is a finding of its node, from its start to its end, days later or not at all."""
    events = [fault(0, 0, 3000), fault(0, 10, 20, "Fan"), fault(1, 0), fault(0, 0, 3000)]
    rows = findings(events=events, ranks=ranks(("a", "b"), each=1))
    facts = sorted((row["host"], row["value"], row["severity"], row["end_ts"]) for row in rows)
    assert [row[:3] for row in facts[:2]] == [("a", 600.0, "error"), ("a", 180_000.0, "error")]
    assert facts[1][3] == NOON + 3000 * MINUTE
    open_one = next(row for row in rows if row["host"] == "b")
    assert (open_one["end_ts"], open_one["value"]) == (None, None)
    assert open_one["message"].startswith("Node 1 is at fault: GPU, GPU broke; not repaired yet")


def test_a_day_without_faults_has_no_finding():
    """Busy cards at their power cap, hosts that work, a restart of the sampler, and a run of one minute."""
    again = [{**row, "incarnation": 9} for row in gpu(20, start=NOON + 30 * MINUTE)]
    short = gpu(1, rank=5, bad=(), good={"sm_active_ratio": 0.1})[:3]
    facts = [*gpu(bad=()), *again, *short]
    assert not findings(gpu_samples=facts, host_samples=host(bad=()), step_rollup=steps())


def test_what_lasts_has_no_end_until_the_day_is_over():
    """A card that throttles at the newest sample still does; at midnight its finding ends, and another begins."""
    hot = {"clock_event_reasons": "sw_thermal_slowdown"}
    assert only(findings(gpu_samples=gpu(bad=range(15, 20), **hot)))["end_ts"] is None
    night = datetime(DAY.year, DAY.month, DAY.day, 23, 50, tzinfo=NOON.tzinfo)
    rows = findings(days=(DAY, DAY + timedelta(days=1)), gpu_samples=gpu(start=night, bad=range(5, 15), **hot))
    assert [(row["start_ts"], row["end_ts"]) for row in sorted(rows, key=lambda row: row["start_ts"])] == [
        (night + 5 * MINUTE, night + timedelta(minutes=9, seconds=50)),
        (night + 10 * MINUTE, night + timedelta(minutes=14, seconds=50)),
    ]


def test_minutes_apart_are_one_stretch_and_an_hour_apart_two():
    """The cool-down joins what comes back within five minutes."""
    facts = gpu(90, bad=[*range(5, 8), *range(10, 12), *range(75, 80)], temperature_celsius=90.0)
    starts = [row["start_ts"] for row in findings(gpu_samples=facts)]
    assert starts == [NOON + 5 * MINUTE, NOON + 75 * MINUTE]


def test_detectors_can_be_sent_to_workers():
    """Rollups are computed by other processes, to which declarations go as they are."""
    again = pickle.loads(pickle.dumps(NODE_DETECTORS))
    assert [each.name for each in again] == [each.name for each in NODE_DETECTORS]


def test_a_pcie_link_of_a_lower_generation_while_the_run_steps():
    """An idle device saves power that way: it is no fault then; of a card the host says how fast it may be."""
    slow = gpu(bad=range(5, 10), good={"pcie_link_generation": 5}, pcie_link_generation=1)
    row = only(findings(gpu_samples=slow, step_rollup=steps()))
    assert (row["detector"], row["severity"], row["rank"]) == ("pcie_generation", "warning", 1)
    assert row["message"].startswith("PCIe of GPU 1 of node 0 runs as generation 1 of 5 while its run steps, for 5 min")
    assert findings(gpu_samples=slow) == [], "nothing steps"
    always = gpu(bad=range(20), pcie_link_generation=4)
    assert only(findings(gpu_samples=always, step_rollup=steps()))["baseline"] == 5, "an SXM board has it"
    card = [fact | {"device_name": "NVIDIA H100 PCIe"} for fact in always]
    assert findings(gpu_samples=card, step_rollup=steps()) == []


def test_data_files_are_of_known_words():
    """Every action has words, every limit a source and a device that is listed with its names."""
    assert {meaning.action for meaning in xid_meanings().values()} <= set(ACTIONS)
    keys = {row["name_key"]: row for row in limits().to_pylist()}
    assert (keys[name_key(H100)]["warn_celsius"], keys[name_key(H100)]["nvlink_links"]) == (82, 18)
    assert keys["h100"]["nvlink_links"] is None, "SXM, PCIe or NVL"
    assert xid_meanings()[79].action_text == "drain the node and reboot it"
    assert {xid_meanings()[xid].severity for xid in (37, 63, 121)} == {"info"}
    assert xid_meanings()[171].action_text.startswith("the catalog names no action")


def test_incremental_is_full_whatever_came_late(tmp_path):
    """Samples, steps and ranks that arrive in pieces, with rollups between, give the rows of a rebuild."""
    night = datetime(DAY.year, DAY.month, DAY.day, 23, 50, tzinfo=NOON.tzinfo)
    hot = {"clock_event_reasons": "sw_thermal_slowdown"}
    whole = {
        "gpu_samples": [*gpu(bad=range(3, 18), **hot), *gpu(start=night, bad=range(5, 15), rank=2, **hot)],
        "host_samples": host(cpu_iowait_ratio=0.6),
        "ranks": ranks(),
        "events": [xid(79), fault(0, 0, 3000)],
    }
    incremental, fresh = (Lake.create(str(tmp_path / name)) for name in ("incremental", "fresh"))
    for part in (0, 1, 2):
        for table, facts in whole.items():
            append(incremental, table, rows(table, facts).filter(pa.array([n % 3 == part for n in range(len(facts))])))
        run_rollups(incremental, ["node_findings"])
    for table, facts in whole.items():
        append(fresh, table, rows(table, facts))
    run_rollups(fresh, ["node_findings"])
    kept = {name for rollup in ROLLUPS if rollup.name == "node_findings" for name in rollup.kept}
    one, other = (
        read(lake.tables, contract("node_findings")).drop_columns(list(kept)).sort_by("finding_id")
        for lake in (incremental, fresh)
    )
    assert one.equals(other)
    assert sorted(set(one["detector"].to_pylist())) == ["gpu_throttling", "iowait", "node_fault", "xid"]
    assert one.num_rows == 6
