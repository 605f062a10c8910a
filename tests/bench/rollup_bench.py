"""What rolling up costs, beside a bare scan of the same columns and the same SQL in bare DataFusion, as ratios.

    python tests/bench/rollup_bench.py [--rows N] [--ranks N] [--rollups step_rollup,gpu_hourly,rank_health] [--json]

The same files, an hour each as hourly ingest leaves them, are read by

    scan        DataFusion alone: each column that the rollup names, added up; nothing is grouped
    datafusion  DataFusion alone, as it comes: the rollup's own SQL
    ranklake    `run_rollups`: what is due, the SQL, the commit of the result, lineage

Each runs in a process of its own. What counts is CPU seconds of all its threads without the imports; rows a second on
two cores are twice the rows a CPU second. Rows are input rows: of `steps` one per rank and step with fifteen values,
of `gpu_samples` one per device and second with some twenty.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import telemetry

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.query.engine import SessionConfig, SessionContext, engine
from ranklake.lake.query.scan import live_files, register
from ranklake.lake.rollups.declaration import Rollup
from ranklake.lake.rollups.evaluate import evaluate_day
from ranklake.lake.rollups.inputs import snapshot
from ranklake.lake.rollups.registry import select_rollups
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.parquet import write_days
from ranklake.lake.tables.tables import delta_table, ensure_table

CORES = os.cpu_count() or 1
HOUR_ROWS = {"steps": 3600, "gpu_samples": 28_800}  # of a rank; of a host of eight devices
FILE_ROWS = 2_000_000
DAY_HOURS = 18  # telemetry begins at six
AIM_ROWS_A_CPU_S, AIM_RATIO, AIM_BYTES = 7.5e6, 1.3, 2 * 2**30
AS_IT_COMES = {"MIMALLOC_PURGE_DELAY": "10"}  # what DataFusion's allocator does unless it is told otherwise
WAYS = ("scan", "datafusion", "ranklake")


@dataclass(frozen=True)
class Cost:
    """What one way took: CPU and wall seconds, the most memory of its process, rows of the result."""

    rollup: str
    way: str
    cpu_s: float
    wall_s: float
    peak_bytes: int
    rows: int


def fill(lake: Lake, table: str, rows: int, ranks: int) -> int:
    """Write about `rows` rows of a table, a file an hour and at most `FILE_ROWS`; return how many.

    `ranks` record (hosts, of ``gpu_samples``); 0 for as many as it takes to have the rows in one date.
    """
    target = contract(table)
    handle = ensure_table(lake.tables, target)
    a_day = HOUR_ROWS[table] * DAY_HOURS
    ranks = ranks or max(1, round(rows / a_day))
    files = []
    for hour in range(max(1, round(rows / (ranks * HOUR_ROWS[table])))):
        for some in _groups(ranks, max(1, FILE_ROWS // HOUR_ROWS[table])):
            parts = [telemetry.segment_rows(table, rank, hour, HOUR_ROWS[table]) for rank in some]
            files += write_days(lake.store, target, pa.concat_tables(parts), 1)
    swap(handle, number_of(handle) + 1, add=files)
    return sum(file.rows for file in files)


def _groups(count: int, size: int) -> Iterator[range]:
    for first in range(0, count, size):
        yield range(first, min(count, first + size))


def _rollup(name: str) -> Rollup:
    return next(one for one in select_rollups([name]) if one.name == name)


def _bare(lake: Lake, rollup: Rollup) -> SessionContext:
    """Return a session as DataFusion makes it, over the folders of the tables; those never written are empty."""
    ctx = SessionContext(
        SessionConfig()
        .with_target_partitions(CORES)
        .set("datafusion.execution.skip_physical_aggregate_schema_check", "true")
    )
    for table in rollup.tables:
        schema = arrow_schema(contract(table)).remove_metadata()
        schema = schema.remove(schema.get_field_index("date"))
        folder = lake.path("tables", table)
        if Path(folder).is_dir():
            ctx.register_parquet(table, folder, table_partition_cols=[("date", pa.date32())], schema=schema)
        else:
            register(ctx, lake.store, contract(table), live_files(None))
    return ctx


def _days(lake: Lake, rollup: Rollup) -> list[date]:
    return sorted(snapshot(lake.tables, rollup.tables[0]).digests)


def scan(lake: Lake, rollup: Rollup) -> int:
    """Read each column that the rollup's SQL names and its files have."""
    table = rollup.tables[0]
    words = set(re.findall(r"\w+", rollup.transform.source))
    path = next(Path(lake.path("tables", table)).glob("*/*.parquet"))
    sums = []
    for field in pq.read_schema(path):
        if field.name in words:
            text, when = pa.types.is_string(field.type), pa.types.is_timestamp(field.type)
            value = f"octet_length({field.name})" if text else f"CAST({field.name} AS BIGINT)" if when else field.name
            sums.append(f"sum(CAST({value} AS DOUBLE))")
    return _bare(lake, rollup).sql(f"SELECT {', '.join(sums)} FROM {table}").to_arrow_table().num_rows


def datafusion(lake: Lake, rollup: Rollup) -> int:
    """Evaluate the rollup's SQL for each date of its main input."""
    return sum(evaluate_day(_bare(lake, rollup), rollup, day).num_rows for day in _days(lake, rollup))


def ranklake(lake: Lake, rollup: Rollup) -> int:
    """Bring the rollup up to date as `ranklake rollup` does."""
    return sum(one.rows for one in run_rollups(lake, [rollup.name]) if one.name == rollup.name)


Result = TypeVar("Result")


class Usage(NamedTuple):
    """CPU and wall seconds that work took in this process, and the most memory that it ever had resident."""

    cpu_s: float
    wall_s: float
    peak_bytes: int


def usage_of(work: Callable[[], Result]) -> tuple[Usage, Result]:
    """Return what work took in this process, and its result."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = work()
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Usage(cpu_s, wall_s, int(status["VmHWM"].split()[0]) * 1024), result


def measured(lake: Lake, name: str, way: str) -> Cost:
    """Do it in this process, which did nothing before but import."""
    engine().sql("SELECT 1").to_arrow_table()  # threads start
    rollup = _rollup(name)
    evaluate = {"scan": scan, "datafusion": datafusion, "ranklake": ranklake}[way]
    usage, rows = usage_of(lambda: evaluate(lake, rollup))
    return Cost(name, way, *usage, rows)


def compare(folder: Path, name: str, rounds: int) -> list[Cost]:
    """Let each way have its turn, so that a slow minute falls on all; of each the least disturbed round.

    Raises `SystemExit` if two ways give another number of rows.
    """
    found: dict[str, list[Cost]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            for table in (name, "lineage"):
                shutil.rmtree(folder / "tables" / table, ignore_errors=True)
            command = [sys.executable, __file__, "--only", way, "--lake", str(folder), "--rollups", name]
            environment = {**os.environ, **({} if way == "ranklake" else AS_IT_COMES)}
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
            found[way].append(Cost(**json.loads(told.splitlines()[-1])))
    if len({found[way][0].rows for way in ("datafusion", "ranklake")}) != 1:
        raise SystemExit(f"{name}: DataFusion alone gives another number of rows than ranklake")
    return [
        replace(
            min(some, key=lambda one: one.cpu_s),
            wall_s=min(one.wall_s for one in some),
            peak_bytes=max(one.peak_bytes for one in some),
        )
        for some in found.values()
    ]


def show(costs: list[Cost], rows: int, columns: int) -> bool:
    """Print what one rollup's ways took and whether the aims are met."""
    by_way = {cost.way: cost for cost in costs}
    print(f"{costs[0].rollup}: {rows:,} input rows, {columns} columns read, {by_way['ranklake'].rows:,} rows of result")
    heads = {"": 12, "CPU s": 8, "M rows/s on 2 cores": 21, "M values/s": 12, "wall s": 8, "peak MiB": 10}
    print("".join(f"{head:>{width}}" for head, width in heads.items()) + "  x datafusion")
    for way, cost in by_way.items():
        speed = 2 * rows / cost.cpu_s / 1e6
        ratio = cost.cpu_s / by_way["datafusion"].cpu_s
        figures = (
            f"{cost.cpu_s:8.2f}{speed:21.1f}{speed * columns:12.0f}{cost.wall_s:8.2f}{cost.peak_bytes / 2**20:10.0f}"
        )
        print(f"{way:12}{figures}{ratio:14.2f}")
    ours = by_way["ranklake"]
    verdicts = {
        "15 M rows/s on 2 cores": rows / ours.cpu_s >= AIM_ROWS_A_CPU_S,
        "at most 1.3 x datafusion": ours.cpu_s <= AIM_RATIO * by_way["datafusion"].cpu_s,
        "peak under 2 GiB": ours.peak_bytes < AIM_BYTES,
    }
    print("  " + "; ".join(f"{aim}: {'met' if met else 'MISSED'}" for aim, met in verdicts.items()) + "\n", flush=True)
    return all(verdicts.values())


def _columns(lake: Lake, rollup: Rollup) -> int:
    path = next(Path(lake.path("tables", rollup.tables[0])).glob("*/*.parquet"))
    return len(set(re.findall(r"\w+", rollup.transform.source)) & set(pq.read_schema(path).names))


def main() -> int:
    """Make the tables, measure, print; 1 if an aim was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000, help="of each input; the largest that was tried: 160 M")
    parser.add_argument("--ranks", type=int, default=64, help="that record, a step a second; 0: all rows in one date")
    parser.add_argument("--rollups", default="step_rollup,gpu_hourly,rank_health")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--lake", type=Path, help="folder to make the tables in, or to find them in, and to leave them in"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.rollups.split(",")
    if options.only:
        print(json.dumps(asdict(measured(Lake.open(str(options.lake)), names[0], options.only))))
        return 0
    folder = options.lake or Path(tempfile.mkdtemp(prefix="ranklake-bench-"))
    met = True
    report = []
    try:
        lake = Lake.create(str(folder))
        for name in names:
            rollup = _rollup(name)
            table = rollup.tables[0]
            if not (folder / "tables" / table).exists():
                ranks = options.ranks if table == "steps" else -(-options.ranks // 8)
                print(f"writing about {options.rows:,} rows of {table}…", file=sys.stderr)
                fill(lake, table, options.rows, ranks)
            rows = sum(live_files(delta_table(lake.store, table))["num_records"].to_pylist())
            costs = compare(folder, name, options.rounds)
            report += [{**asdict(cost), "input_rows": rows} for cost in costs]
            if not options.json:
                met &= show(costs, rows, _columns(lake, rollup))
        if options.json:
            print(json.dumps(report))
    finally:
        if options.lake is None:
            shutil.rmtree(folder)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
