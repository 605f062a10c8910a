"""A lake of made-up scalars for the benchmark of SQL, written by the lake's own writer and committed as ingest does.

Four runs of eight ranks record `METRICS` metrics a second; each file holds an hour of one run, which is what hourly
ingest leaves. Values are random walks with the digits of a float32; nothing in it was measured anywhere.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.tables import ensure_table

RUNS, RANKS, METRICS, HOUR_S = 4, 8, 58, 3600
START = datetime(2026, 3, 1, tzinfo=UTC)
ROWS_PER_HOUR = RANKS * METRICS * HOUR_S
METRIC = "train/value_07"


def fill(lake: Lake, rows: int, *, hour_s: int = HOUR_S) -> int:
    """Write about `rows` rows of ``scalars``; return how many. `hour_s` seconds of each hour are recorded."""
    target = contract("scalars")
    table = ensure_table(lake.tables, target)
    files = []
    for hour, run in _hours(max(1, round(rows / (RANKS * METRICS * hour_s)))):
        when = START + timedelta(hours=hour)
        files.append(write_partition(lake.store, target, _hour(run, when, hour, hour_s), when.date(), 1))
    swap(table, number_of(table) + 1, add=files)
    return sum(file.rows for file in files)


def _hours(count: int) -> Iterator[tuple[int, int]]:
    for place in range(count):
        yield divmod(place, RUNS)


def _hour(run: int, when: datetime, hour: int, seconds: int) -> pa.Table:
    """Return an hour of a run in the table's order: metric, rank, time."""
    rng = np.random.default_rng([run, hour])
    count = METRICS * RANKS * seconds
    first_us = int(when.timestamp()) * 1_000_000
    per_rank = np.arange(seconds, dtype=np.int64)
    jitter = rng.integers(0, 2000, (RANKS, seconds))
    times = np.tile(first_us + per_rank * 1_000_000 + jitter, (METRICS, 1)).ravel()
    ranks = np.tile(np.repeat(np.arange(RANKS, dtype=np.int32), seconds), METRICS)
    slots = (np.arange(METRICS)[:, None, None] + METRICS * per_rank[None, None, :]).repeat(RANKS, axis=1).ravel()
    names = pa.array([f"train/value_{number:02}" for number in range(METRICS)])
    metric = pa.DictionaryArray.from_arrays(np.repeat(np.arange(METRICS, dtype=np.int32), RANKS * seconds), names)
    walk = rng.normal(0, 0.01, (METRICS * RANKS, seconds)).cumsum(axis=1, dtype=np.float64) + 3
    columns = {
        "run": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([f"run-{run}"])),
        "attempt": np.zeros(count, np.int32),
        "rank": ranks,
        "incarnation": (run + 1) * 1_000_003 + ranks.astype(np.int64),
        "segment": np.full(count, hour, np.int32),
        "slot": slots.astype(np.int32),
        "ts": pa.array(times, pa.timestamp("us", "UTC")),
        "metric": metric,
        "step": np.tile(per_rank + hour * seconds, METRICS * RANKS),
        "value": walk.ravel().astype(np.float32).astype(np.float64),
        "kind": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array(["gauge"])),
    }
    schema = arrow_schema(contract("scalars"))
    return pa.table(
        [
            (columns[name] if isinstance(columns[name], pa.Array) else pa.array(columns[name])).cast(kind)
            if name in columns
            else pa.nulls(count, kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
            if name != "date"
        ],
        names=[name for name in schema.names if name != "date"],
    )
