"""What `migrate_chaos.py` kills and starts again: one apply, undo, ingest or upkeep; and a reader, which lives on.

    python migrate_child.py WORK CONTRACTS LAKE SPOOL

CONTRACTS is a folder with `tables`, `snapshots` and `migrations` of a later release, or ``-`` for the release of
today. Exits 3 where the work is another release's, or done already: `ranklake` would say so in a line.
"""

import json
import sys
import time
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from ranklake.insight.ask import ask
from ranklake.lake.contracts import freeze, load
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.migrations import applying, registry
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.plan import RefusedPlanError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.table_schema import UnmigratedTableError
from ranklake.lake.tables.tables import NewerTableError

LOW_S, HIGH_S, TOKENS = 0.25, 1.25, 1024
"""Least and greatest `step_time_s` that a row may have, and its `tokens`."""
PAUSE_S = 0.02
"""Between two looks at least. A reader rests as long as it looked, so that it does not take a core from who works."""

ASKED = """
    SELECT count(*) AS rows, min(step_time_s) AS low, max(step_time_s) AS high, sum(CAST(tokens AS BIGINT)) AS tokens
    FROM steps
"""
BEFORE, AFTER = ("step_time_s", "tokens"), ("step_time_ms", "tokens_seen")


def later(folder):
    """Go by the contracts and migrations of a later release from here on."""
    load.PACKAGED = folder / "tables"
    freeze.SNAPSHOTS = folder / "snapshots"
    registry.FOLDER = folder / "migrations"


def look(lake):
    """Return how many rows there are, and what is wrong with them, as SQL under the former names gives them."""
    ((rows, low, high, tokens),) = (tuple(one.values()) for one in ask(lake, ASKED).rows.to_pylist())
    faults = []
    if low < LOW_S - 1e-4 or high > HIGH_S + 1e-4:
        faults.append(f"step_time_s from {low} to {high}")
    if tokens != rows * TOKENS:
        faults.append(f"{tokens} tokens in {rows} rows")
    return rows, faults


def look_from_outside(lake):
    """Return the same as DuckDB gives it of the files that the Delta log names: all before, or all after."""
    table = DeltaTable(lake.store.table_uri("steps"))
    names = {field.name for field in table.schema().fields}
    here = [ends for ends in (BEFORE, AFTER) if names.issuperset(ends)]
    if len(here) != 1 or len(names.intersection(BEFORE + AFTER)) != len(BEFORE):
        return 0, [f"columns of both, or of none: {sorted(names.intersection(BEFORE + AFTER))}"]
    (time_name, tokens_name), scale = here[0], 1 if here[0] == BEFORE else 1000
    text = f"""
        SELECT count(*), count({time_name}), min({time_name}), max({time_name}), sum({tokens_name})
        FROM read_parquet($files, union_by_name = true)
    """
    with duckdb.connect(config={"threads": 1}) as connection:
        row = connection.execute(text, {"files": table.file_uris()}).fetchone()
    rows, filled, low, high, tokens = row
    faults = [] if filled == rows else [f"{rows - filled} of {rows} rows without {time_name}"]
    if low < (LOW_S - 1e-4) * scale or high > (HIGH_S + 1e-4) * scale:
        faults.append(f"{time_name} from {low} to {high}")
    if tokens != rows * TOKENS:
        faults.append(f"{tokens} tokens in {rows} rows")
    return rows, faults


def read_on(lake, stop):
    """Look again and again until a file is there; say how often, and what was wrong."""
    looks, fell, faults, last = 0, 0, [], 0
    while not stop.exists():
        began_s = time.monotonic()
        for way in (look, look_from_outside):
            try:
                rows, found = way(Lake.open(lake.uri))
            except Exception as error:  # noqa: BLE001 - whatever a reader meets is a finding
                rows, found = last, [f"{way.__name__}: {type(error).__name__}: {error}"]
            looks += 1
            fell += rows < last
            last = rows
            faults += found
        time.sleep(max(PAUSE_S, time.monotonic() - began_s))
    print(json.dumps({"looks": looks, "fell": fell, "faults": faults[:20]}))


def main():
    """Do one piece of work."""
    work, contracts, lake_uri, spool_uri = sys.argv[1:]
    if contracts != "-":
        later(Path(contracts))
    lake, spool = Lake.open(lake_uri), Spool(spool_uri)
    print(flush=True)  # from here on it is worth killing
    try:
        if work == "apply":
            applying.apply(lake, InProcess(), "Ada")
        elif work == "undo":
            applying.undo(lake, InProcess(), "Ada", "steps")
        elif work == "ingest":
            ingest(lake, spool, InProcess())
        elif work == "upkeep":
            upkeep(lake, InProcess())
        else:
            read_on(lake, Path(f"{lake_uri}-stop"))
    except (UnmigratedTableError, NewerTableError, MigrationError, RefusedPlanError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
