"""What sharing costs: the first build of a share, a refresh with nothing new, and one after one more hour.

    python tests/bench/share_bench.py [--rows N] [--workers 1|2] [--json]

    whole       all rows, columns of class operational as they are
    filtered    the rows of half of the ranks
    rounded     all rows, `value` in buckets

The lake is that of the bench of SQL (`sql_lake`): made-up scalars, an hour of a run a file. CPU seconds are those of
all processes, with the start of workers; wall time is without that start. Rows a second on two cores are twice the rows
a CPU second. The cost of one more hour is also told as CPU seconds a million rows of that hour: where only what changed
is read, it is what the build takes for a million rows.
"""

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import sql_lake
from deltalake import DeltaTable

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.dask_workers import on_demand
from ranklake.lake.plans.workers import DaskSection, InProcess
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.parquet import write_partition
from ranklake.lake.tables.tables import ensure_table
from ranklake.masking.masks import Mask
from ranklake.retention.shares.sharing import share

AIM_ROWS_A_S = 1.5e6
_TABLES = frozenset({"scalars"})
_SEEN = frozenset({"operational"})
ROLES = {
    "whole": Role("whole", _SEEN, _TABLES),
    "filtered": Role("filtered", _SEEN, _TABLES, {"scalars": "rank < 4"}),
    "rounded": Role(
        "rounded",
        _SEEN,
        _TABLES,
        column_masks={("scalars", contract("scalars").column("value").id): Mask("bucket", "0.5")},
    ),
}


def cpu_s() -> float:
    """Return the CPU seconds of this process and of children that ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def one_more_hour(lake: Lake, rows: int) -> int:
    """Append an hour of a run; return how many rows that is."""
    target, table = contract("scalars"), ensure_table(lake.tables, contract("scalars"))
    hour = 1 + rows // sql_lake.ROWS_PER_HOUR // sql_lake.RUNS
    when = sql_lake.START + timedelta(hours=hour)
    number = number_of(table) + 1
    file = write_partition(lake.store, target, sql_lake._hour(0, when, hour, sql_lake.HOUR_S), when.date(), number)
    swap(table, number, add=[file])
    return file.rows


def timed(lake: Lake, role: Role, to: Path, workers: int) -> dict[str, float]:
    """Share, and return what it took, with the rows that came and the files of the lake that were read."""
    before = cpu_s()
    with on_demand(DaskSection(workers=2)) if workers > 1 else nullcontext(InProcess()) as crew:
        if workers > 1:
            crew.fitting(1e9).run(str, [0, 1, 2, 3])
        start = time.perf_counter()
        done = share(lake, role, str(to), "bench", crew)
        wall_s = time.perf_counter() - start
    tables = done.tables
    told = {"rows": sum(one.rows_added for one in tables), "read": sum(one.sources_read for one in tables)}
    return {"cpu_s": cpu_s() - before, "wall_s": wall_s, **told}


def measured(place: Path, rows: int, workers: int) -> dict[str, object]:
    """Return the costs of all roles over a lake of about so many rows."""
    lake = Lake.create(str(place / "lake"))
    there = sql_lake.fill(lake, rows)
    costs: dict[str, dict[str, dict[str, float]]] = {}
    for name, role in ROLES.items():
        costs[name] = {"build": timed(lake, role, place / "out", workers)}
        costs[name]["nothing new"] = timed(lake, role, place / "out", 1)
    more = one_more_hour(lake, there)
    for name, role in ROLES.items():
        costs[name]["one more hour"] = timed(lake, role, place / "out", 1)
        copies = DeltaTable(str(place / "out" / name / "tables" / "scalars")).to_pyarrow_dataset().count_rows()
        expected = (there + more) // (2 if name == "filtered" else 1)
        if copies != expected:
            sys.exit(f"{name}: {copies:,} rows in the share, {expected:,} expected")
    return {"rows": there, "hour_rows": more, "workers": workers, "costs": costs}


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--workers", type=int, choices=(1, 2), default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="ranklake-share-bench-"))
    try:
        found = measured(place, args.rows, args.workers)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if args.json:
        print(json.dumps(found))
        return
    rows, more = found["rows"], found["hour_rows"]
    print(f"{rows:,} rows, and {more:,} of one more hour; {found['workers']} process(es) build")
    for name, parts in found["costs"].items():
        for part, cost in parts.items():
            read = {"build": rows, "one more hour": more}.get(part, 0)
            each = f"{cost['cpu_s'] / read * 1e6:6.3f} CPU-s a million rows" if read else ""
            speed = f"{read / cost['wall_s'] / 1e6:6.2f} M rows/s by the clock" if read else ""
            print(f"{name:9} {part:14} {cost['cpu_s']:8.2f} CPU-s {cost['wall_s']:8.2f} s  {each}  {speed}")
    two_cores = min(2 * rows / parts["build"]["cpu_s"] for parts in found["costs"].values())
    print(f"slowest first build: {two_cores / 1e6:.2f} M rows/s on two cores by CPU, {AIM_ROWS_A_S / 1e6} asked")


if __name__ == "__main__":
    main()
