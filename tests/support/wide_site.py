"""A day of thousands of GPUs as a lake and its site: one run on all of them, a slow rank in it, and their samples."""

import numpy as np
import pyarrow as pa
from cluster_hours import device_hours
from rollup_inputs import NOON, append

from ranklake.insight.overview.fleet import cluster_state, fleet_state
from ranklake.insight.overview.oncall import on_call
from ranklake.insight.overview.pipeline import pipeline_state
from ranklake.insight.runs.report import runs_state
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.views.html import cluster_pages, executive_pages, oncall_pages, pipeline_pages, run_pages
from ranklake.views.html.site import publish

SLOW = 3
"""The rank that takes half as long again as the others."""
RUN = "wide"


def steps_of(name, ranks, steps):
    """Return rows of ``steps`` of a run, as a table: rank `SLOW` takes half as long again as the others."""
    of = np.arange(ranks * steps)
    rank, step = (of // steps).astype(np.int32), of % steps
    second = np.timedelta64(1, "s")
    return _table("steps", len(of), {
        "run": pa.array([name] * len(of)),
        "attempt": np.zeros(len(of), np.int32),
        "rank": rank,
        "step": step,
        "incarnation": rank + 1_000_000 + ranks,
        "segment": np.zeros(len(of), np.int32),
        "slot": step.astype(np.int32),
        "ts": np.datetime64(NOON.replace(tzinfo=None), "us") + step * second,
        "date": [NOON.date()] * len(of),
        "step_time_s": np.full(len(of), 1.5, np.float32),
        "collective_time_s": np.where(rank == SLOW, 0.0, 0.5).astype(np.float32),
        "loss": (5 - step / steps + rank / ranks).astype(np.float32),
        "tokens": np.full(len(of), 100, np.int64),
    })  # fmt: skip


def spans_of(name, ranks, steps):
    """Return rows of ``spans`` of the same run: what ranks compute, and the reduction in which they meet."""
    begun = np.datetime64(NOON.replace(tzinfo=None), "us")
    of = np.arange(ranks * steps)
    rank, step = (of // steps).astype(np.int32), of % steps
    slow = np.where(rank == SLOW, 1.5, 1.0)
    forward, met = 1e9 * slow, np.full(len(of), 2.7e9)  # the reduction ends when the slow rank has come
    starts = {"forward": 0 * met, "backward": forward, "all_reduce": forward + 0.1e9, "optimizer": met + 0.5e9}
    ends = {"forward": forward, "backward": met + 0.5e9, "all_reduce": met, "optimizer": met + 0.7e9}
    tables = []
    for slot, kind in enumerate(starts):
        is_met = kind == "all_reduce"
        tables.append(_table("spans", len(of), {
            "run": pa.array([name] * len(of)),
            "attempt": np.zeros(len(of), np.int32),
            "rank": rank,
            "step": step,
            "incarnation": rank + 1_000_000 + ranks,
            "segment": np.zeros(len(of), np.int32),
            "slot": (8 * step + slot).astype(np.int32),
            "ts": begun + (step * 4_000_000 + starts[kind] // 1000).astype("timedelta64[us]"),
            "date": [NOON.date()] * len(of),
            "name": [kind] * len(of),
            "kind": ["collective" if is_met else "phase"] * len(of),
            "span_id": of * 8 + slot + 1,
            "duration_ns": (ends[kind] - starts[kind]).astype(np.int64),
            **({"group_size": np.full(len(of), ranks, np.int32)} if is_met else {}),
        }))  # fmt: skip
    return pa.concat_tables(tables)


def wide_site(folder, gpus=4096, hours=24, steps=8):
    """Write the site of a day of so many GPUs to `folder`/out; return what `publish` says."""
    lake = Lake.create(str(folder / "lake"))
    append(lake, "runs", [{"run": RUN, "ts": NOON, "world_size": gpus, "job": "gpt", "device_name": "H100"}])
    append(lake, "steps", steps_of(RUN, gpus, steps))
    append(lake, "spans", spans_of(RUN, gpus, steps))
    append(lake, "ingest_plans", [
        {"plan": 1, "kind": "ingest", "created_ts": NOON, "committed_ts": NOON, "rows_stored": gpus * steps,
         "rows_rejected": 0, "date": NOON.date()}
    ])  # fmt: skip
    run_rollups(lake)
    append(lake, "gpu_hourly", device_hours(gpus // 8, hours))  # after them, since there are no samples to roll up
    return publish(
        Store.at(str(folder / "out")),
        run_pages.section(runs_state(lake)), cluster_pages.section(cluster_state(lake)),
        executive_pages.section(fleet_state(lake)), oncall_pages.section(on_call(lake)),
        pipeline_pages.section(pipeline_state(lake, 3600.0)),
    )  # fmt: skip


def _table(name, count, columns):
    schema = arrow_schema(contract(name))
    empty = pa.nulls(count)
    arrays = [pa.array(columns[one.name], one.type) if one.name in columns else empty.cast(one.type) for one in schema]
    return pa.table(arrays, schema=schema)
