"""Made runs of `steps`: ranks that leave each step together, and what `rank_health` says of them."""

import numpy as np
import pyarrow as pa
from rollup_inputs import DAY, NOON, computed, context

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract


def synchronous(run, compute, *, data=None, collectives=True):
    """Return `steps` columns of a data-parallel run: all ranks leave a step together, the fast ones after waiting."""
    steps, ranks = compute.shape
    data = np.zeros_like(compute) if data is None else data
    own = compute + data
    total = np.repeat(own.max(axis=1, keepdims=True) + 0.002, ranks, axis=1)
    starts = np.cumsum(total[:, 0]) - total[0, 0]
    count = steps * ranks
    columns = {
        "run": np.full(count, run, object),
        "rank": np.tile(np.arange(ranks, dtype=np.int32), steps),
        "step": np.repeat(np.arange(steps), ranks),
        "ts": np.repeat((starts * 1e6).astype(np.int64), ranks) + int(NOON.timestamp() * 1e6),
        "step_time_s": total.ravel().astype(np.float32),
        "data_time_s": data.ravel().astype(np.float32),
    }
    if collectives:
        columns["collective_time_s"] = (total - own).ravel().astype(np.float32)
    return columns


def table_of(runs):
    """Return runs' columns as one table of `steps`."""
    parts = []
    for columns in runs:
        count = len(columns["rank"])
        fixed = {"attempt": 0, "incarnation": 1, "segment": 0, "slot": 0, "date": DAY}
        arrays = []
        for field in arrow_schema(contract("steps")):
            if field.name in columns:
                values = pa.array(columns[field.name])
                arrays.append(values.cast(field.type))
            elif field.name in fixed:
                arrays.append(pa.repeat(pa.scalar(fixed[field.name], field.type), count))
            else:
                arrays.append(pa.nulls(count, field.type))
        parts.append(pa.table(arrays, schema=arrow_schema(contract("steps"))))
    return pa.concat_tables(parts)


def health(runs):
    """Return rows of `rank_health` by (run, rank)."""
    found = computed(context(steps=table_of(runs)), "rank_health").to_pylist()
    return {(row["run"], row["rank"]): row for row in found}
