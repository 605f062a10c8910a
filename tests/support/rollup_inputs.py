"""Rows of fact tables made by hand, for tests of rollups: in memory for the SQL, in a lake for the runner."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
from datafusion import SessionContext
from deltalake import DeltaTable

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.query.sql import engine
from ranklake.lake.rollups.declaration import replace_table
from ranklake.lake.rollups.evaluate import evaluate_day, evaluate_days, evaluate_runs
from ranklake.lake.rollups.registry import ROLLUPS, select_rollups
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import ensure_table

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = NOON.date()
# DataFusion and delta-rs keep a runtime each, with its event queue, for the life of the process: no test's leak.
SessionContext().sql("SELECT 1").to_arrow_table()
DeltaTable.is_deltatable("/nowhere")
ENVELOPE = {"run": "r1", "attempt": 0, "rank": 0, "incarnation": 7, "segment": 0}


def rows(table, facts):
    """Return facts (dicts) as a table under its contract; the envelope and the date are filled in."""
    schema = arrow_schema(contract(table))
    full = []
    for slot, fact in enumerate(facts):
        row = {**ENVELOPE, "slot": slot, **fact}
        if "date" not in row:
            row["date"] = row["ts"].date()
        full.append({name: row.get(name) for name in schema.names})
    return pa.Table.from_pylist(full, schema=schema)


def context(threads=2, **tables):
    """Return a session with the given tables (lists of dicts or Arrow tables), and every other input empty."""
    ctx = engine(threads)
    for name in {name for rollup in select_rollups() for name in (*rollup.tables, rollup.name)}:
        given = tables.get(name, [])
        replace_table(ctx, name, given if isinstance(given, pa.Table) else rows(name, given))
    return ctx


def computed(ctx, name, days=(DAY,), runs=None):
    """Compute one rollup: a partition rollup on the days, a run rollup for the runs (name to date).

    What it reads of what is said of runs is put together before, unless that was given.
    """
    (rollup,) = (one for one in select_rollups([name]) if one.name == name)
    for facts in ("attempt_facts", "rank_facts"):
        if facts in rollup.tables and not ctx.sql(f"SELECT run FROM {facts} LIMIT 1").to_arrow_table().num_rows:
            told = {"attempt_facts": ("runs", "step_rollup"), "rank_facts": ("run_facts", "attempt_facts")}[facts]
            named = {
                run
                for one in told
                for run in ctx.sql(f"SELECT DISTINCT run FROM {one}").to_arrow_table()["run"].to_pylist()
            }
            replace_table(ctx, facts, computed(ctx, facts, runs=dict.fromkeys(sorted(named), DAY)))
    if rollup.scope == "run":
        return evaluate_runs(ctx, rollup, runs or {"r1": DAY})
    if rollup.in_a_row and (max(days) - min(days)).days + 1 == len(days):
        return evaluate_days(ctx, rollup, min(days), max(days))
    return pa.concat_tables([evaluate_day(ctx, rollup, day) for day in days])


def append(lake, table, facts):
    """Commit rows to a lake's table, the way ingest does."""
    given = facts if isinstance(facts, pa.Table) else rows(table, facts)
    handle = ensure_table(lake.tables, contract(table))
    number = number_of(handle) + 1
    swap(handle, number, add=append_files(lake.store, contract(table), given, number))


def told(lake, table, facts):
    """Commit rows by hand; what the contract requires and a test does not care for is nought."""
    nought = {
        field.name: NOON if pa.types.is_timestamp(field.type) else "x" if pa.types.is_string(field.type) else 0
        for field in arrow_schema(contract(table))
        if not field.nullable and field.name != "date"
    }
    append(lake, table, [{"ts": NOON, **nought, **fact} for fact in facts])


FLEET = {one.name for one in ROLLUPS if one.scope != "run" and "run" not in contract(one.name).grain}
"""Rollups of devices, schedulers and findings, which no run's facts make: tests of their own keep those up to date."""
OF_RUNS = [rollup for rollup in ROLLUPS if rollup.name not in FLEET]


def state(lake, rollups=OF_RUNS):
    """Return rollups' rows, sorted by grain."""
    found = {}
    for rollup in rollups:
        rows_of = read(lake.tables, contract(rollup.name))
        when_computed = {*rollup.kept, "detected_ts", "time_to_detect_s"}.intersection(rows_of.column_names)
        rows_of = rows_of.drop_columns(sorted(when_computed))
        found[rollup.name] = rows_of.sort_by([(name, "ascending") for name in contract(rollup.name).grain])
    return found


def run_of(name, *, start=NOON, steps=30, seconds=0.5, ranks=2, seed=0, attempt=0, first=0):
    """Return {table: rows} of one run attempt: its start, facts, steps, checkpoint and end."""
    rng = np.random.default_rng(seed)
    base = {"run": name, "attempt": attempt, "incarnation": seed + 1}
    told = [
        {**base, "rank": rank, "ts": start, "metric": metric, "value": value}
        for rank in range(ranks)
        for metric, value in (("model/flops_per_step", 1e9), ("device/peak_flops_measured", 1e11))
    ]
    stepped = [
        {
            **base,
            "rank": rank,
            "step": first + n,
            "ts": start + timedelta(seconds=1 + n * seconds + 0.7 * rank),
            "step_time_s": float(np.float32(seconds * rng.uniform(0.5, 1))),
            "tokens": 64,
            "loss": float(np.float32(rng.normal(3, 1))),
        }
        for n in range(steps)
        for rank in range(ranks)
    ]
    told += [
        {**base, "rank": 0, "ts": row["ts"], "step": row["step"], "metric": "train/epoch", "value": row["step"] // 10}
        for row in stepped
        if row["rank"] == 0
    ]
    end = start + timedelta(seconds=2 + steps * seconds)
    return {
        "runs": [
            {
                **base,
                "ts": start,
                "device_type": "cpu",
                "device_name": "a CPU",
                "device_count": ranks,
                "world_size": ranks,
                "compute_dtype": "float32",
            }
        ],
        "scalars": told,
        "steps": stepped,
        "events": [{**base, "ts": start, "event": "run_start"}, {**base, "ts": end, "event": "run_end"}],
        "spans": [{**base, "ts": end, "name": "save", "kind": "checkpoint", "duration_ns": 10**9, "span_id": 1}],
    }


def bring(lake, *runs):
    """Append runs as `run_of` gives them."""
    for run in runs:
        for table, facts in run.items():
            append(lake, table, facts)
