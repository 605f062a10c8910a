"""Rows of the widest fact, ``host_samples``, in the rhythm of its sampler: every column has values, not in every row.

Of each second a row of the host; each ten seconds one of its container and one of each of eight processes, as
`ranklake.capture.samplers.host` yields them, with the columns that it fills in each. Counters grow, ratios and sizes
vary as samplers round them, and text is of few words. `is_full` fills each column of each row, which no sampler does.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranklake.capture.samplers.host import INFINIBAND_COLUMNS
from ranklake.capture.samplers.proc import CGROUP_COLUMNS
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.tables import ensure_table

TABLE = "host_samples"
FILE_ROWS = 240_000
"""An hour of 35 hosts."""
_BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
_TEN_SECONDS = [("host", at) for at in range(10)] + [("container", 0)] + [("process", 0)] * 8
_SHARED = {"holder_run", "holder_attempt", "boot_id", "interval_ns", "unavailable"}
_OF_PROCESS = {
    *("pid", "holder_rank", "cpu_time_s", "major_fault_count", "minor_fault_count", "context_switch_count", "uptime_s"),
    *("process_thread_count", "process_rss_bytes", "process_open_file_count", "disk_read_bytes", "disk_write_bytes"),
}
_OF_HOST_TOO = {
    *("cpu_time_s", "major_fault_count", "minor_fault_count", "context_switch_count", "uptime_s"),
    *("disk_read_bytes", "disk_write_bytes"),
}
_EACH_TEN = {
    *(*INFINIBAND_COLUMNS, "infiniband_ports", "disks", "networks", "filesystem_used_bytes", "filesystem_total_bytes"),
    *("clock_offset_s", "clock_max_error_s", "clock_synchronized"),
}
_EACH_MINUTE = {"cpu_frequency_hz", "cpu_temperature_celsius", "power_watts", "energy_joules"}

Mask = npt.NDArray[np.bool_]


def wide_rows(count: int, segment: int, *, is_full: bool = False) -> pa.Table:
    """Return rows of one segment."""
    rng = np.random.default_rng(segment)
    slots = np.arange(count)
    subjects, seconds = (np.array(some)[slots % len(_TEN_SECONDS)] for some in zip(*_TEN_SECONDS, strict=True))
    ticks = slots // len(_TEN_SECONDS) * 10 + seconds.astype(np.int64)
    given = {
        "run": pa.repeat("r1", count),
        "host": pa.array(np.char.add("node-", (ticks // 3600).astype(str))),
        "subject": pa.array(subjects),
        "attempt": np.zeros(count),
        "rank": np.zeros(count),
        "incarnation": np.full(count, 7),
        "segment": np.full(count, segment),
        "slot": slots,
        "ts": np.datetime64(_BEGIN.replace(tzinfo=None), "us") + ticks % 3600 * np.timedelta64(1, "s"),
    }
    filled = partial(_filled, {name: subjects == name for name in ("host", "container", "process")}, ticks)
    schema = arrow_schema(contract(TABLE), segment=True)
    columns = []
    for field in schema:
        if field.name in given:
            columns.append(pa.array(given[field.name]).cast(field.type))
        else:
            mask = np.ones(count, bool) if is_full else filled(field.name)
            columns.append(_values(field, mask, rng))
    return pa.table(columns, schema=schema)


def _filled(of: Mapping[str, Mask], ticks: npt.NDArray[np.int64], name: str) -> Mask:
    """Return in which rows a column has a value."""
    if name in _SHARED:
        return of["host"] | of["container"] | of["process"]
    if name in CGROUP_COLUMNS:
        return of["container"]
    if name in _OF_PROCESS:
        return of["process"] | (of["host"] if name in _OF_HOST_TOO else False)
    if name in _EACH_TEN:
        return of["host"] & (ticks % 10 == 0)
    return of["host"] & (ticks % 60 == 0) if name in _EACH_MINUTE else of["host"]


def _values(field: pa.Field, mask: Mask, rng: np.random.Generator) -> pa.Array:
    """Return values of a column by its type and name, where the mask says so."""
    count = len(mask)
    found: npt.NDArray[np.generic]
    if pa.types.is_string(field.type):
        found = np.char.add(f"{field.name}-", rng.integers(0, 4, count).astype(str))
    elif pa.types.is_boolean(field.type):
        found = np.arange(count) % 100 > 0
    elif field.name.endswith("_ratio"):
        found = np.round(rng.random(count), 4)
    elif pa.types.is_floating(field.type):
        found = np.round(rng.gamma(20, 2.5, count), 2)
    elif pa.types.is_int32(field.type):
        found = rng.integers(0, 64, count).astype(np.int32)
    else:
        found = np.cumsum(rng.integers(0, 5000, count))
    return pa.array(found, mask=~mask).cast(field.type)


def fill_wide(lake: Lake, rows: int, *, is_full: bool = False) -> int:
    """Write about as many rows, `FILE_ROWS` a file; return how many."""
    target = contract(TABLE)
    handle = ensure_table(lake.tables, target)
    size = min(rows, FILE_ROWS)
    made = [
        write_partition(lake.store, target, wide_rows(size, segment, is_full=is_full), _BEGIN.date(), 1)
        for segment in range(rows // size)
    ]
    swap(handle, number_of(handle) + 1, add=made)
    return sum(one.rows for one in made)
