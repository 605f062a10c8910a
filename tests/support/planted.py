"""Tables as recorders and importers fill them, seeded, and faults that are planted in them: each on a date of its own.

Eight tables, a run a date. `SOUND` gives the rows of a date; `FAULTS` says what is made wrong, and what must be found:
check, column and severity. A fault lies after `QUIET` dates without any, since some checks compare with those before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

FIRST = date(2026, 3, 2)
QUIET = 9
RANKS, STEPS, DEVICES, HOSTS, SAMPLES, POOLS, SNAPSHOTS = 4, 60, 4, 4, 120, 6, 288
Rows = dict[str, list | np.ndarray]


def _start(day):
    return int(datetime(day.year, day.month, day.day, 6, tzinfo=UTC).timestamp() * 1e6)


def run_of(day):
    """Return the name of a date's run."""
    return f"run-{day:%m%d}"


def _whose(table, day, ranks, each):
    """Return the envelope of `each` rows of each rank."""
    count = len(ranks) * each
    rank = np.repeat(ranks, each)
    return {
        "run": [run_of(day)] * count,
        "attempt": np.zeros(count, int),
        "rank": rank,
        "incarnation": day.toordinal() * 1000 + 100 * len(table) + rank,
        "segment": np.zeros(count, int),
        "slot": np.tile(np.arange(each), len(ranks)),
        "date": [day] * count,
    }


def _steps(day, rng):
    whose = _whose("steps", day, range(RANKS), STEPS)
    step, count = whose["slot"], RANKS * STEPS
    whole = 0.9 + rng.gamma(4, 0.01, count)
    return whose | {
        "ts": _start(day) + step * 1_000_000 + rng.integers(0, 5000, count),
        "step": step,
        "step_time_s": whole,
        "data_time_s": whole * 0.02,
        "forward_time_s": whole * 0.3,
        "backward_time_s": whole * 0.6,
        "tokens": np.full(count, 8192),
        "loss": 3 + rng.normal(0, 0.05, count),
        "grad_norm": rng.lognormal(0, 0.2, count),
        "lr": np.full(count, 3e-4),
        "memory_allocated_bytes": 60 * 2**30 + 512 * rng.integers(0, 999, count),
        "memory_reserved_bytes": np.full(count, 64 * 2**30),
    }


def _spans(day, rng):
    whose = _whose("spans", day, range(RANKS), STEPS * 2)
    slot, count = whose["slot"], RANKS * STEPS * 2
    return whose | {
        "ts": _start(day) + slot * 500_000 + rng.integers(0, 5000, count),
        "name": np.where(slot % 2 == 0, "forward", "all_reduce"),
        "kind": np.where(slot % 2 == 0, "phase", "collective"),
        "step": slot // 2,
        "duration_ns": (0.3e9 * rng.gamma(400, 1 / 400, count)).astype(int),
        "span_id": slot + 1000 * whose["rank"],
        "bytes": np.where(slot % 2 == 0, 0, 2**22),
    }


def _scalars(day, rng):
    whose = _whose("scalars", day, range(2), STEPS * 2)
    slot, count = whose["slot"], STEPS * 4
    counter = slot % 2 == 0
    return whose | {
        "ts": _start(day) + slot * 500_000,
        "metric": np.where(counter, "data/samples_seen", "train/loss"),
        "step": slot // 2,
        "value": np.where(counter, 64.0 * slot, 3 + rng.normal(0, 0.05, count)),
        "kind": np.where(counter, "counter", "gauge"),
    }


def _gpu_samples(day, rng):
    whose = _whose("gpu_samples", day, [0], DEVICES * SAMPLES)
    tick, device = whose["slot"] // DEVICES, whose["slot"] % DEVICES
    count = DEVICES * SAMPLES
    power = np.round(600 + rng.normal(0, 12, count), 3)
    return whose | {
        "ts": _start(day) + tick * 1_000_000 + device * 40,
        "host": ["node1"] * count,
        "source": ["nvml"] * count,
        "interval_ns": np.full(count, 1_000_000_000),
        "device_index": device,
        "device_uuid": [f"GPU-{one:08x}" for one in device],
        "device_name": ["NVIDIA H100 80GB HBM3"] * count,
        "gpu_utilization_ratio": np.round(0.9 + 0.09 * rng.random(count), 2),
        # one is as good as idle, and so a hundredth of the others
        "sm_active_ratio": np.round((0.7 + 0.2 * rng.random(count)) * np.where(device == DEVICES - 1, 0.01, 1.0), 5),
        "memory_used_bytes": 60 * 2**30 + 2**21 * rng.integers(0, 99, count),
        "memory_total_bytes": np.full(count, 85_520_809_984),
        "sm_clock_hz": 1.98e9 - 15e6 * rng.integers(0, 5, count),
        "power_watts": power,
        "energy_joules": 1e6 * (device + 1) + 600.0 * tick,
        "temperature_celsius": np.round(60 + rng.normal(0, 1, count)),
        "pcie_replay_count": tick // 30,
    }


def _host_samples(day, rng):
    whose = _whose("host_samples", day, range(HOSTS), SAMPLES)
    tick, count = whose["slot"], HOSTS * SAMPLES
    return whose | {
        "ts": _start(day) + tick * 1_000_000 + rng.integers(0, 2000, count),
        "host": [f"node{rank}" for rank in whose["rank"]],
        "subject": ["host"] * count,
        "boot_id": [f"boot-{rank}" for rank in whose["rank"]],
        "interval_ns": np.full(count, 1_000_000_000),
        "cpu_utilization_ratio": np.round(0.5 + 0.4 * rng.random(count), 3),
        "cpu_time_s": 1000.0 + 3.0 * tick,
        "memory_total_bytes": np.full(count, 2**38),
        "memory_used_bytes": 2**36 + 4096 * rng.integers(0, 9999, count),
        "clock_offset_s": rng.normal(0, 1e-4, count),
        "uptime_s": 86_400.0 + tick,
    }


def _pools(day, rng):
    whose = _whose("pools", day, [0], POOLS * SNAPSHOTS)
    tick, pool = whose["slot"] // POOLS, whose["slot"] % POOLS
    total = np.array([32, 64, 16, 128, 8, 96])[pool]
    used = np.minimum(total, np.round(total * rng.uniform(0.5, 1, len(pool))))
    return whose | {
        "ts": _start(day) - 6 * 3_600_000_000 + tick * 300_000_000,
        "cluster": ["c"] * len(pool),
        "pool": [f"vc{one}" for one in pool],
        "interval_ns": np.full(len(pool), 300_000_000_000),
        "gpu_total": total,
        "gpu_allocated": used,
        "gpu_idle": total - used,
        "gpu_utilization_ratio": used / total,
        "job_running": used // 4 + 1,
    }


def _runs(day, rng):
    del rng
    return _whose("runs", day, range(2), 1) | {
        "ts": np.full(2, _start(day) - 1_000_000),
        "job": ["gpt", "gpt"],
        "world_size": [RANKS, RANKS],
        "local_world_size": [RANKS, RANKS],
        "launcher": ["torchrun", "torchrun"],
        "lockfile_sha256": ["ab" * 32] * 2,
        "container_image_digest": ["sha256:" + "cd" * 32] * 2,
        "git_commit": ["ef" * 20] * 2,
        "config": ['{"lr": 0.0003}'] * 2,
    }


def _datasets(day, rng):
    del rng
    return _whose("datasets", day, range(2), 1) | {
        "ts": np.full(2, _start(day)),
        "name": ["pile", "pile"],
        "version": ["1", "1"],
        "split": ["train", "train"],
        "role": ["train", "train"],
        "bytes": [10**9, 10**9],
        "merkle_root_sha256": ["ab" * 32] * 2,
    }


def _ranks(day, rng):
    del rng
    return _whose("ranks", day, range(RANKS), 1) | {
        "ts": np.full(RANKS, _start(day) - 1_000_000),
        "host": [f"node{rank}" for rank in range(RANKS)],
        "lockfile_sha256": ["ab" * 32] * RANKS,
        "container_image_digest": ["sha256:" + "cd" * 32] * RANKS,
        "packages_sha256": ["ef" * 32] * RANKS,
        "python_version": ["3.11.9"] * RANKS,
        "framework_version": ["2.5.1"] * RANKS,
        "nccl_version": ["2.21.5"] * RANKS,
        "driver_version": ["550.54.15"] * RANKS,
    }


SOUND: dict[str, Callable[[date, np.random.Generator], Rows]] = {
    "steps": _steps,
    "spans": _spans,
    "scalars": _scalars,
    "gpu_samples": _gpu_samples,
    "host_samples": _host_samples,
    "pools": _pools,
    "runs": _runs,
    "datasets": _datasets,
    "ranks": _ranks,
}


def sound(table, day):
    """Return the rows of a date under the table's types."""
    made = SOUND[table](day, np.random.default_rng([day.toordinal(), len(table), ord(table[0])]))
    schema = arrow_schema(contract(table))
    count = len(made["run"])
    arrays = []
    for field in schema:
        if field.name not in made:
            arrays.append(pa.nulls(count, field.type))
        elif pa.types.is_timestamp(field.type):
            arrays.append(pa.array(np.asarray(made[field.name]), pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(made[field.name]).cast(field.type, safe=False))
    return pa.table(arrays, schema=schema)


def put(rows, name, values, where=None):
    """Return rows with other values in a column, in some rows."""
    field = rows.schema.field(name)
    new = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array([values] * rows.num_rows)
    new = new.cast(field.type, safe=False)
    if where is not None:
        new = pc.if_else(where, new, rows[name])
    return rows.set_column(rows.schema.get_field_index(name), field, new)


def times(name, factor, **some):
    """Return a fault: a column's values are so many times what they are."""
    return lambda rows: put(rows, name, pc.multiply(rows[name].cast(pa.float64()), factor), _those(rows, some))


def becomes(name, value, **some):
    """Return a fault: a column has one value."""
    return lambda rows: put(rows, name, pa.nulls(rows.num_rows) if value is None else value, _those(rows, some))


def plus(name, more, **some):
    """Return a fault: something is added to a column; to a time, µs."""

    def fault(rows):
        values = rows[name].cast(pa.int64()) if pa.types.is_timestamp(rows[name].type) else rows[name]
        return put(rows, name, pc.add(values, more), _those(rows, some))

    return fault


def without(**some):
    """Return a fault: some rows are missing."""
    return lambda rows: rows.filter(pc.invert(_those(rows, some)))


def thinned(count, of, **some):
    """Return a fault: of each `of` slots the first `count` are missing."""

    def fault(rows):
        lost = pa.array(rows["slot"].to_numpy() % of < count)
        return rows.filter(pc.invert(pc.and_(_those(rows, some), lost)))

    return fault


def again(count):
    """Return a fault: the first rows come a second time, under other keys."""

    def fault(rows):
        more = rows.slice(0, count)
        return pa.concat_tables([rows, put(more, "slot", pc.add(more["slot"], 100_000))])

    return fault


def _those(rows, some):
    """Return a mask of the rows that have some values: a value, or a range (from, to) of it."""
    found = pa.chunked_array([pa.array(np.ones(rows.num_rows, bool))])
    for name, value in some.items():
        if isinstance(value, tuple):
            found = pc.and_(found, pc.and_(pc.greater_equal(rows[name], value[0]), pc.less(rows[name], value[1])))
        else:
            found = pc.and_(found, pc.equal(rows[name], value))
    return found


@dataclass(frozen=True)
class Fault:
    """What is made wrong in a table, and the check that must say so."""

    table: str
    check: str
    column: str | None
    severity: str
    make: Callable[[pa.Table], pa.Table]


_GPU0 = {"device_uuid": "GPU-00000000"}
_TICKS = DEVICES
FAULTS = {
    # steps
    "a rank is missing": Fault("steps", "steps_of_all_ranks", "rank,step", "warning", without(rank=3)),
    "a rank stops half-way": Fault(
        "steps", "steps_of_all_ranks", "rank,step", "warning", without(rank=2, step=(30, 99))
    ),
    "a rank lacks one step": Fault("steps", "steps_of_all_ranks", "rank,step", "warning", without(rank=1, step=17)),
    "all ranks lack steps": Fault("steps", "steps_complete", "step", "warning", without(step=(20, 40))),
    "a clock runs ahead": Fault("steps", "step_clocks", "ts,rank,step", "warning", plus("ts", 300_000_000, rank=2)),
    "a clock is behind": Fault("steps", "step_clocks", "ts,rank,step", "warning", plus("ts", -300_000_000, rank=1)),
    "times in ms": Fault("steps", "step_time_unit", "step_time_s", "warning", times("step_time_s", 1000.0)),
    "times in ms on one rank": Fault(
        "steps", "step_time_unit", "step_time_s", "warning", times("step_time_s", 1000.0, rank=1)
    ),
    "times in us": Fault("steps", "step_time_unit", "step_time_s", "warning", times("step_time_s", 1e6)),
    "memory in MiB": Fault(
        "steps", "memory_allocated_unit", "memory_allocated_bytes", "warning", times("memory_allocated_bytes", 2.0**-20)
    ),
    "memory in GiB on one rank": Fault(
        "steps",
        "memory_allocated_unit",
        "memory_allocated_bytes",
        "warning",
        times("memory_allocated_bytes", 2.0**-30, rank=0),
    ),
    "loss stands still": Fault("steps", "loss_moves", "loss", "warning", becomes("loss", 3.25, rank=0)),
    "a run that nobody started": Fault("steps", "refers:run", "run", "warning", becomes("run", "ghost")),
    "steps twice": Fault("steps", "steps_unique", "run,attempt,rank,step", "error", again(5)),
    # spans
    "spans twice": Fault("spans", "spans_once", "run,attempt,rank,name,ts,duration_ns", "warning", again(100)),
    "durations in us on one rank": Fault(
        "spans", "duration_unit", "duration_ns", "warning", times("duration_ns", 1e-3, rank=2)
    ),
    "durations in ms on one rank": Fault(
        "spans", "duration_unit", "duration_ns", "warning", times("duration_ns", 1e-6, rank=0)
    ),
    "spans of no run": Fault("spans", "refers:run", "run", "warning", becomes("run", "ghost", rank=1)),
    "a token in attributes": Fault(
        "spans",
        "no_secrets:text",
        None,
        "error",
        becomes("attributes", '{"api_key": "sk-live-4242aaaa4242bbbb"}', step=3),
    ),
    "an address in a name": Fault(
        "spans", "no_secrets:text", None, "error", becomes("stream", "ada.lovelace@example.org", step=5)
    ),
    # scalars
    "a counter falls": Fault(
        "scalars", "counters_grow", "value", "warning", times("value", 0.5, metric="data/samples_seen", step=(30, 33))
    ),
    "scalars of no run": Fault("scalars", "refers:run", "run", "warning", becomes("run", "ghost")),
    "a password in a metric": Fault(
        "scalars", "no_secrets:text", None, "error", becomes("metric", "postgres://me:hunter2hunter2@db/x", step=3)
    ),
    # gpu_samples
    "a device has a gap": Fault(
        "gpu_samples", "samples_without_gaps", "ts", "warning", without(**_GPU0, slot=(40 * _TICKS, 60 * _TICKS))
    ),
    "half of a device's samples": Fault(
        "gpu_samples", "samples_complete", "ts", "warning", thinned(2 * _TICKS, 5 * _TICKS, **_GPU0)
    ),
    "all devices are silent": Fault(
        "gpu_samples", "devices_not_silent_at_once", "ts", "error", plus("ts", 1_800_000_000, slot=(60 * _TICKS, 10**6))
    ),
    "samples twice": Fault("gpu_samples", "samples_once", "run,rank,source,device_uuid,ts", "warning", again(40)),
    "power stands still": Fault(
        "gpu_samples", "power_moves", "power_watts", "warning", becomes("power_watts", 612.5, **_GPU0)
    ),
    "power freezes half-way": Fault(
        "gpu_samples",
        "power_moves",
        "power_watts",
        "warning",
        becomes("power_watts", 612.5, **_GPU0, slot=(60 * _TICKS, 110 * _TICKS)),
    ),
    "energy falls": Fault(
        "gpu_samples",
        "energy_grows",
        "energy_joules",
        "warning",
        times("energy_joules", 0.7, **_GPU0, slot=(60 * _TICKS, 10**6)),
    ),
    "replays fall": Fault(
        "gpu_samples",
        "pcie_replays_grow",
        "pcie_replay_count",
        "warning",
        lambda rows: put(
            rows, "pcie_replay_count", pc.subtract(pa.scalar(1000, pa.int64()), rows["slot"].cast(pa.int64()))
        ),
    ),
    "percent of utilization": Fault(
        "gpu_samples", "gpu_utilization_unit", "gpu_utilization_ratio", "warning", times("gpu_utilization_ratio", 100.0)
    ),
    "percent on one device": Fault(
        "gpu_samples", "sm_active_unit", "sm_active_ratio", "warning", times("sm_active_ratio", 100.0, **_GPU0)
    ),
    "a ratio above 1": Fault(
        "gpu_samples",
        "gpu_utilization_range",
        "gpu_utilization_ratio",
        "error",
        becomes("gpu_utilization_ratio", 1.25, slot=7),
    ),
    "used memory in MiB": Fault(
        "gpu_samples", "memory_used_unit", "memory_used_bytes", "warning", times("memory_used_bytes", 2.0**-20)
    ),
    "memory of a device in MiB": Fault(
        "gpu_samples", "memory_total_unit", "memory_total_bytes", "warning", times("memory_total_bytes", 2.0**-20)
    ),
    "power in mW": Fault("gpu_samples", "power_unit", "power_watts", "warning", times("power_watts", 1000.0)),
    "temperature in mC": Fault(
        "gpu_samples", "temperature_unit", "temperature_celsius", "warning", times("temperature_celsius", 1000.0)
    ),
    "clock in MHz": Fault("gpu_samples", "sm_clock_unit", "sm_clock_hz", "warning", times("sm_clock_hz", 1e-6)),
    "samples of no run": Fault("gpu_samples", "refers:run", "run", "warning", becomes("run", "ghost")),
    # host_samples
    "a host has a gap": Fault("host_samples", "samples_without_gaps", "ts", "warning", without(rank=1, slot=(40, 60))),
    "half of a host's samples": Fault("host_samples", "samples_complete", "ts", "warning", thinned(2, 5, rank=2)),
    "all hosts are silent": Fault(
        "host_samples", "hosts_not_silent_at_once", "ts", "error", plus("ts", 1_800_000_000, slot=(60, 999))
    ),
    "CPU time falls": Fault(
        "host_samples", "cpu_time_grows", "cpu_time_s", "warning", times("cpu_time_s", 0.5, rank=0, slot=(50, 999))
    ),
    "uptime falls": Fault(
        "host_samples", "uptime_grows", "uptime_s", "warning", plus("uptime_s", -20_000.0, rank=0, slot=(50, 999))
    ),
    "percent of a host": Fault(
        "host_samples",
        "cpu_utilization_unit",
        "cpu_utilization_ratio",
        "warning",
        times("cpu_utilization_ratio", 100.0),
    ),
    "memory of a host in KiB": Fault(
        "host_samples", "memory_used_unit", "memory_used_bytes", "warning", times("memory_used_bytes", 2.0**-20)
    ),
    "memory of a host in MiB": Fault(
        "host_samples", "memory_total_unit", "memory_total_bytes", "warning", times("memory_total_bytes", 2.0**-20)
    ),
    "a clock is off its source": Fault(
        "host_samples", "clock_offset_bound", "clock_offset_s", "warning", plus("clock_offset_s", 7.0, rank=3)
    ),
    "hosts of no run": Fault("host_samples", "refers:run", "run", "warning", becomes("run", "ghost")),
    # pools
    "the fleet is silent": Fault(
        "pools", "fleet_not_idle_all_day", "gpu_allocated", "critical", becomes("gpu_allocated", 0.0)
    ),
    "one pool has all": Fault(
        "pools",
        "capacity_stays",
        "gpu_total",
        "critical",
        lambda rows: put(put(rows, "gpu_total", 0.0), "gpu_total", 344.0, _those(rows, {"pool": "vc4"})),
    ),
    "the largest pools are gone": Fault(
        "pools",
        "capacity_stays",
        "gpu_total",
        "critical",
        lambda rows: rows.filter(pc.is_in(rows["pool"], pa.array(["vc0", "vc2", "vc4"]))),
    ),
    "capacity doubles and more": Fault("pools", "capacity_stays", "gpu_total", "critical", times("gpu_total", 3.0)),
    "a pool has a gap": Fault(
        "pools", "snapshots_without_gaps", "ts", "warning", without(pool="vc1", slot=(100 * POOLS, 130 * POOLS))
    ),
    "snapshots are missing": Fault(
        "pools", "snapshots_complete", "ts", "warning", thinned(POOLS, 5 * POOLS, pool="vc3")
    ),
    "all pools are silent": Fault(
        "pools", "pools_not_silent_at_once", "ts", "error", without(slot=(100 * POOLS, 130 * POOLS))
    ),
    "snapshots twice": Fault("pools", "snapshots_once", "run,cluster,pool,ts", "warning", again(60)),
    "percent of a pool": Fault(
        "pools", "utilization_unit", "gpu_utilization_ratio", "warning", times("gpu_utilization_ratio", 100.0)
    ),
    "more allocated than there": Fault(
        "pools", "allocated_within_total", "gpu_allocated,gpu_total", "error", plus("gpu_allocated", 1000.0, slot=5)
    ),
    "pools of no run": Fault("pools", "refers:run", "run", "warning", becomes("run", "ghost")),
    # runs
    "lock files differ": Fault(
        "runs", "one_lockfile", "lockfile_sha256", "warning", becomes("lockfile_sha256", "12" * 32, rank=1)
    ),
    "images differ": Fault(
        "runs",
        "one_image",
        "container_image_digest",
        "warning",
        becomes("container_image_digest", "sha256:" + "12" * 32, rank=1),
    ),
    "commits differ": Fault("runs", "one_commit", "git_commit", "warning", becomes("git_commit", "12" * 20, rank=1)),
    "a key in the configuration": Fault(
        "runs", "no_secrets:text", None, "error", becomes("config", '{"password": "correct-horse-battery"}', rank=0)
    ),
    "a production run says too little": Fault(
        "runs",
        "production_signals",
        "deployment_environment",
        "warning",
        becomes("deployment_environment", "production"),
    ),
    # ranks
    "a rank has another image": Fault(
        "ranks",
        "ranks_one_image",
        "container_image_digest",
        "warning",
        becomes("container_image_digest", "sha256:" + "12" * 32, rank=3),
    ),
    "a rank has another lock file": Fault(
        "ranks", "ranks_one_lockfile", "lockfile_sha256", "warning", becomes("lockfile_sha256", "12" * 32, rank=1)
    ),
    "a rank has another driver": Fault(
        "ranks", "ranks_same_driver", "driver_version", "warning", becomes("driver_version", "535.1", rank=2)
    ),
    "a rank has another NCCL": Fault(
        "ranks", "ranks_same_nccl", "nccl_version", "warning", becomes("nccl_version", "2.18.1", rank=0)
    ),
    # datasets
    "files of a dataset differ": Fault(
        "datasets", "one_dataset", "merkle_root_sha256", "warning", becomes("merkle_root_sha256", "12" * 32, rank=1)
    ),
    "a dataset of no run": Fault("datasets", "refers:run", "run", "warning", becomes("run", "ghost")),
    "an address in a dataset": Fault(
        "datasets", "no_secrets:text", None, "error", becomes("preprocessing_version", "ada@example.org", rank=0)
    ),
}


def dates_of(table):
    """Return the date of each fault of a table, by name, and the dates without one."""
    names = [name for name, fault in FAULTS.items() if fault.table == table]
    # two sound dates after each fault, so that medians of a week stay those of sound ones
    at = {name: FIRST + timedelta(QUIET + 3 * number) for number, name in enumerate(names)}
    every = [FIRST + timedelta(number) for number in range(QUIET + 3 * max(1, len(names)))]
    return at, [day for day in every if day not in at.values()]
