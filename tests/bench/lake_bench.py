"""What bringing segments into the lake costs, beside the bare limit and others that do the same job, as ratios.

    python tests/bench/lake_bench.py [--rows N] [--table spans|steps|scalars|gpu_samples] [--segment-rows N] [--json]
    python tests/bench/lake_bench.py --linear | --cores | --incremental | --sizes

The same segments are read, freed of repeated keys, sorted, and written as zstd Parquet by

    limit       pyarrow alone: every segment read, what its footer says of all rows repeated, everything written with
                the lake's own writer options; nothing checked, no key compared, nothing sorted
    compact     the tasks of an ingest plan, in one process
    ingest      all of `ranklake ingest` in one process: listing, plan, tasks, commits
    polars      scan_parquet, unique, sort, sink_parquet
    duckdb      SELECT DISTINCT ON … ORDER BY …, COPY TO

Segments leave out what is the same in all rows, the key's columns among them. Polars and DuckDB join these columns by
the file's name; reading the footers is in their time.

Each runs in a process of its own. What counts is CPU seconds, user and system, of all its threads and children, without
the imports. README.md beside this file says how to read what it prints.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import telemetry

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest import execution, ingest_plan
from ranklake.lake.ingest.footer_columns import with_footer_columns
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.task import compact
from ranklake.lake.plans.dask_workers import workers
from ranklake.lake.plans.workers import DaskSection, InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.parquet import ROW_GROUP_ROWS, writer_options
from ranklake.lake.tables.read import read_files
from ranklake.segments.segment import IDENTITY, METADATA_KEY, SegmentFooter

KEY = ("incarnation", "segment", "slot")
LIMIT_ROWS = 2_000_000
WARM_ROWS = 2_000_000
MINUTES = 6
AIMS = {
    "compact": ("limit", 1.3, "at most"),
    "ingest": ("limit", 1.3, "at most"),
    "polars": ("ingest", 1.7, "at least"),
    "duckdb": ("ingest", 2.8, "at least"),
}


@dataclass(frozen=True)
class Cost:
    """What one way of doing the job took.

    Attributes
    ----------
    cpu_s, wall_s
        Without imports and without making the input.
    peak_bytes
        Largest resident set of the process.
    rows, size_bytes
        What was written.
    """

    way: str
    cpu_s: float
    wall_s: float
    peak_bytes: int
    rows: int
    size_bytes: int


def _cpu_s() -> float:
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def _peak_bytes() -> int:
    """Return the most memory that this process had resident."""
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(told["VmHWM"].split()[0]) * 1024


def _segments(spool: Path, table: str) -> list[str]:
    return sorted(str(path) for path in spool.glob(f"segments/*/{table}/*.parquet"))


def limit(spool: Path, table: str, out: Path) -> None:
    """Decode all, encode all, by pyarrow with the lake's writer options; a file each `LIMIT_ROWS`."""
    waiting: list[pa.Table] = []
    texts = [field.name for field in arrow_schema(contract(table)) if pa.types.is_string(field.type)]
    number = 0
    paths = _segments(spool, table)
    for place, path in enumerate(paths):
        metadata = pq.read_metadata(path)
        there = [name for name in texts if name in metadata.schema.names]
        with pq.ParquetFile(path, metadata=metadata, read_dictionary=there) as file:
            rows = file.read(use_threads=False)
        waiting.append(with_footer_columns(rows, [_footer(metadata)], [rows.num_rows]))
        if sum(part.num_rows for part in waiting) >= LIMIT_ROWS or place == len(paths) - 1:
            rows = pa.concat_tables(waiting, promote_options="default").unify_dictionaries()
            options = writer_options(contract(table), rows, ROW_GROUP_ROWS)
            pq.write_table(rows, out / f"{number}.parquet", **options, row_group_size=ROW_GROUP_ROWS)
            waiting, number = [], number + 1


def run_compact(spool: Path, table: str, out: Path) -> None:
    """Carry out the tasks of a plan; commit nothing."""
    del table
    lake = Lake.create(str(out))
    plan = ingest_plan.compose(lake, Spool(str(spool)), 1).plan
    assert plan is not None
    InProcess().run(compact, list(execution._groups(lake, plan)))


def run_ingest(spool: Path, table: str, out: Path) -> None:
    """Bring everything in, in one process."""
    del table
    ingest(Lake.create(str(out)), Spool(str(spool)), InProcess())


def _footer(metadata: pq.FileMetaData) -> SegmentFooter:
    return SegmentFooter.from_json(metadata.metadata[METADATA_KEY])


def _columns_of_footers(spool: Path, table: str) -> tuple[pa.Table, list[str], list[str]]:
    """Return a row for each segment: its path and what its footer says; the columns of footers, and those of files."""
    told, stored = [], set[str]()
    for path in _segments(spool, table):
        metadata = pq.read_metadata(path)
        footer = _footer(metadata)
        stored |= set(metadata.schema.names)
        same = {name: getattr(footer, name) for name in IDENTITY}
        told.append(
            {"path": path} | same | {name: value for of in footer.constants.values() for name, value in of.items()}
        )
    names = list(dict.fromkeys(name for row in told for name in row))
    types = arrow_schema(contract(table))
    columns = {name: pa.array([row.get(name) for row in told], types.field(name).type) for name in names[1:]}
    return pa.table({"path": [row["path"] for row in told], **columns}), names[1:], sorted(stored)


def run_polars(spool: Path, table: str, out: Path) -> None:
    """Do the same job with Polars."""
    import polars as pl

    sort = [name for name in contract(table).sort if name != "date"]
    footers, told, stored = _columns_of_footers(spool, table)
    types = arrow_schema(contract(table))
    schema = pl.from_arrow(pa.schema([types.field(name) for name in stored]).empty_table()).schema
    rows = pl.scan_parquet(_segments(spool, table), schema=schema, missing_columns="insert", include_file_paths="path")
    rows = rows.join(pl.from_arrow(footers).lazy(), on="path", how="left", suffix="_told")
    rows = rows.with_columns(pl.coalesce(name, f"{name}_told") for name in told if name in stored)
    rows = (
        rows.select(*dict.fromkeys((*stored, *told)))
        .unique(subset=list(KEY), keep="any", maintain_order=False)
        .sort(sort)
    )
    rows.sink_parquet(out / "all.parquet", compression="zstd", compression_level=3)


def run_duckdb(spool: Path, table: str, out: Path) -> None:
    """Do the same job with DuckDB."""
    import duckdb

    sort = ", ".join(name for name in contract(table).sort if name != "date")
    with duckdb.connect(str(out / "scratch.db")) as db:
        db.execute(f"SET threads={os.cpu_count()}; SET memory_limit='4GB'; SET preserve_insertion_order=false")
        footers, told, stored = _columns_of_footers(spool, table)
        db.register("footers", footers)
        names = [
            f'coalesce(s."{name}", f."{name}") AS "{name}"' if {name} <= {*told} & {*stored} else f'"{name}"'
            for name in dict.fromkeys((*stored, *told))
        ]
        files = f"read_parquet('{spool}/segments/*/{table}/*.parquet', union_by_name=true, filename=true)"
        source = f"(SELECT {', '.join(names)} FROM {files} s JOIN footers f ON s.filename = f.path)"
        query = f"SELECT * FROM (SELECT DISTINCT ON ({', '.join(KEY)}) * FROM {source}) ORDER BY {sort}"
        db.execute(f"COPY ({query}) TO '{out}/all.parquet' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3)")


WAYS: dict[str, Callable[[Path, str, Path], None]] = {
    "limit": limit,
    "compact": run_compact,
    "ingest": run_ingest,
    "polars": run_polars,
    "duckdb": run_duckdb,
}


def measured(way: str, spool: Path, table: str, out: Path) -> Cost:
    """Do the job in this process, which did nothing before but import."""
    import pandas  # noqa: F401, ICN001 - importing is no part of the job, and Arrow does so at the first list it is given

    if way == "polars":
        import polars  # noqa: F401, ICN001 - likewise
    if way == "duckdb":
        import duckdb  # noqa: F401 - likewise
    out.mkdir(parents=True, exist_ok=True)
    cpu_s, wall_s = _cpu_s(), time.perf_counter()
    WAYS[way](spool, table, out)
    cpu_s, wall_s = _cpu_s() - cpu_s, time.perf_counter() - wall_s
    peak = _peak_bytes()
    lakes = way in {"compact", "ingest"}
    written = list((out / "tables" / table if lakes else out).rglob("*.parquet"))
    rows = sum(pq.read_metadata(path).num_rows for path in written)
    return Cost(way, cpu_s, wall_s, peak, rows, sum(path.stat().st_size for path in written))


def apart(way: str, spool: Path, table: str, out: Path) -> Cost:
    """Do the job in a fresh process. Raises `subprocess.CalledProcessError` where it fails."""
    command = [sys.executable, __file__, "--only", way, "--spool", str(spool), "--table", table, "--out", str(out)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Cost(**json.loads(told.splitlines()[-1]))


def compare(table: str, rows: int, a_segment: int, place: Path, rounds: int, ways: list[str]) -> dict[str, list[Cost]]:
    """Let every way do the job, in turn, so that a slow minute of the machine falls upon all."""
    spool = place / "spool"
    telemetry.fill(spool, table, rows, a_segment=a_segment)
    costs: dict[str, list[Cost]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways:
            out = place / f"{way}-{number}"
            costs[way].append(apart(way, spool, table, out))
            subprocess.run(["rm", "-rf", str(out)], check=True)
    return costs


def show(costs: dict[str, list[Cost]], rows: int) -> bool:
    """Print each way's least disturbed round, and ratios; return whether every aim was met."""
    cpu_s = {way: min(cost.cpu_s for cost in some) for way, some in costs.items()}
    heads = {"": 10, "CPU s": 8, "M rows/CPU-s": 14, "wall s": 8, "peak MiB": 10, "bytes/row": 11, "x limit": 9}
    print("".join(f"{head:>{width}}" for head, width in heads.items()) + "  x ingest  aim")
    met = True
    for way, some in costs.items():
        one = some[0]
        wall_s = min(cost.wall_s for cost in some)
        facts = f"{way:10}{cpu_s[way]:8.2f}{rows / cpu_s[way] / 1e6:14.2f}{wall_s:8.2f}"
        facts += f"{one.peak_bytes / 2**20:10.0f}{one.size_bytes / max(1, one.rows):11.2f}"
        for other in ("limit", "ingest"):
            facts += f"{cpu_s[way] / cpu_s[other]:{9 if other == 'limit' else 10}.2f}" if other in cpu_s else " " * 9
        base, aim, word = AIMS.get(way, ("", 0.0, ""))
        if base in cpu_s:
            ratio = cpu_s[way] / cpu_s[base]
            held = ratio <= aim if word == "at most" else ratio >= aim
            met &= held
            facts += f"  {word} {aim} x {base}: {'met' if held else 'MISSED'}"
        print(facts)
    return met


def linear(table: str, sizes: list[int], place: Path, rounds: int) -> bool:
    """Ingest some sizes, each into a lake of its own; print what a row costs and the peak memory.

    All in one process that has ingested before, as a worker has: the first pages that a process touches cost what the
    machine below it makes of them, which is up to a second, whatever the size. Of each size the least disturbed round.
    """
    for rows in (WARM_ROWS, *sizes):
        telemetry.fill(place / f"spool-{rows}", table, rows)
    found: dict[int, list[Cost]] = {rows: [] for rows in sizes}
    for _ in range(rounds):
        for rows in (WARM_ROWS, *sizes):
            Path("/proc/self/clear_refs").write_text("5")  # begins the peak of memory anew
            cost = measured("ingest", place / f"spool-{rows}", table, place / "lake")
            subprocess.run(["rm", "-rf", str(place / "lake")], check=True)
            if rows in found:
                found[rows].append(cost)
    for rows, costs in found.items():
        each_ns = sorted(cost.cpu_s / rows * 1e9 for cost in costs)
        peak_mib = max(cost.peak_bytes for cost in costs) / 2**20
        rest = ", ".join(f"{one:.0f}" for one in each_ns[1:])
        print(
            f"{rows / 1e6:8.0f} M rows {each_ns[0]:8.1f} CPU-ns/row (also {rest}) {peak_mib:8.0f} MiB peak", flush=True
        )
    each = [min(cost.cpu_s for cost in costs) / rows for rows, costs in found.items()]
    peak = max(cost.peak_bytes for costs in found.values() for cost in costs)
    met = max(each) <= 1.15 * min(each) and peak < 1.5 * 2**30
    print(f"dearest over cheapest row {max(each) / min(each):.3f} (aim 1.15): {'met' if met else 'MISSED'}")
    return met


def cores(table: str, rows: int, place: Path) -> bool:
    """Time ingest on a Dask cluster of one worker and of two; of each the least disturbed round.

    The workers have done the same job before, as those of a cluster have: the first pages that a process touches cost
    what the machine below it makes of them, up to two seconds each here, and two workers touch twice as many.

    Cores that share memory's bandwidth or a clock are not two: the bare limit, run once and twice at a time, says what
    there is to be had.
    """
    spool = place / "spool"
    telemetry.fill(spool, table, rows)
    took: dict[int, list[float]] = {1: [], 2: []}
    bare: dict[int, list[float]] = {1: [], 2: []}
    for number in range(3):
        for count, times in took.items():
            bare[count].append(_side_by_side(count, spool, table, place))
            with workers(DaskSection(workers=count)) as crew:
                for lake in (Lake.create(str(place / f"lake-{count}-{number}-{time_}")) for time_ in ("warm", "timed")):
                    began = time.perf_counter()
                    ingest(lake, Spool(str(spool)), crew)
                    seconds = time.perf_counter() - began
                    subprocess.run(["rm", "-rf", lake.store.root], check=True)
                times.append(seconds)
    one, two = min(took[1]), min(took[2])
    ratio = one / two
    for count, times in took.items():
        print(f"{count} worker{'s' * (count > 1)}: " + ", ".join(f"{took_s:.2f}" for took_s in sorted(times)) + " s")
    print(f"{ratio:.2f} times as fast (aim 1.8): {'met' if ratio >= 1.8 else 'MISSED'}")
    there_is = 2 * min(bare[1]) / min(bare[2])
    print(f"the bare limit in two processes at once: {there_is:.2f} times what one does in its time")
    return ratio >= 1.8


def _side_by_side(count: int, spool: Path, table: str, place: Path) -> float:
    """Return the seconds of the slowest of some processes that do the bare limit's work, each all of it, at once."""
    with ThreadPoolExecutor(count) as pool:
        outs = [place / f"bare-{number}" for number in range(count)]
        costs = list(pool.map(partial(apart, "limit", spool, table), outs))
    subprocess.run(["rm", "-rf", *map(str, outs)], check=True)
    return max(cost.wall_s for cost in costs)


def incremental(table: str, rows: int, place: Path) -> bool:
    """Ingest a minute of new data into an empty lake and into one of `rows` rows; of each the least disturbed round.

    All in one process that has done it before, as in `linear`: a fifth of a second is less than what pages cost that a
    process touches for the first time. The lake is opened anew each time, as a command does.
    """
    costs: dict[str, list[float]] = {"empty": [], "full": []}
    full = place / "full"
    telemetry.fill(place / "spool-old", table, rows)
    apart("ingest", place / "spool-old", table, full)
    subprocess.run(["rm", "-rf", str(place / "spool-old")], check=True)
    for number in range(MINUTES + 1):
        spool = place / f"spool-{number}"
        for rank in range(10_000, 10_000 + 64):
            telemetry.put(spool, table, telemetry.segment_rows(table, rank, number, 60 * telemetry.SPANS_A_STEP))
        for kind, some in costs.items():
            lake = place / f"{kind}-{number}"
            if kind == "full":  # as it was: the minutes before would have been merged in one of the rounds
                subprocess.run(["cp", "-a", str(full), str(lake)], check=True)
            cpu_s = _cpu_s()
            run_ingest(spool, table, lake)
            if number:
                some.append(_cpu_s() - cpu_s)
            subprocess.run(["rm", "-rf", str(lake)], check=True)
    for kind, some in costs.items():
        print(f"a minute into the lake, {kind:5}: " + ", ".join(f"{cpu_s:.3f}" for cpu_s in sorted(some)) + " CPU-s")
    ratio = min(costs["full"]) / min(costs["empty"])
    print(f"{ratio:.2f} times as much (aim 1.2): {'met' if ratio <= 1.2 else 'MISSED'}")
    return ratio <= 1.2


def sizes(place: Path, rows: int) -> bool:
    """Print what a value takes in the lake's files, by table."""
    aims = {"scalars": (5.2, "sample"), "steps": (3.2, "value"), "gpu_samples": (2.0, "value")}
    met = True
    for table, (aim, unit) in aims.items():
        telemetry.fill(place / table / "spool", table, rows, ranks=8, again=0)
        lake = Lake.create(str(place / table / "lake"))
        ingest(lake, Spool(str(place / table / "spool")), InProcess())
        names = [field.name for field in arrow_schema(contract(table), segment=True)]
        envelope = {"run", "attempt", "rank", *KEY, "ts"}
        values = size = 0
        for path, part in read_files(lake.tables, contract(table), names):
            size += lake.fs.size(lake.path("tables", table, path))
            own = [name for name in names if name not in envelope]
            values += part.num_rows if unit == "sample" else sum(part.num_rows - part[name].null_count for name in own)
        held = size / values <= aim
        met &= held
        print(f"{table:12} {size / values:5.2f} bytes a {unit} (aim {aim}): {'met' if held else 'MISSED'}", flush=True)
    return met


def main() -> int:
    """Run what is asked for; 1 if an aim was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--table", default="spans", choices=sorted(telemetry.MAKERS))
    parser.add_argument("--segment-rows", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", action="store_true")
    for mode in ("linear", "cores", "incremental", "sizes"):
        parser.add_argument(f"--{mode}", action="store_true")
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--spool", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.only:
        print(json.dumps(asdict(measured(asked.only, asked.spool, asked.table, asked.out))))
        return 0
    with tempfile.TemporaryDirectory(prefix="lake-bench-") as folder:
        place = Path(folder)
        if asked.linear:
            met = linear(asked.table, [asked.rows // 16, asked.rows // 4, asked.rows], place, asked.rounds)
        elif asked.cores:
            met = cores(asked.table, asked.rows, place)
        elif asked.incremental:
            met = incremental(asked.table, asked.rows, place)
        elif asked.sizes:
            met = sizes(place, asked.rows)
        else:
            costs = compare(asked.table, asked.rows, asked.segment_rows, place, asked.rounds, asked.ways.split(","))
            if asked.json:
                found: dict[str, Any] = {way: [asdict(cost) for cost in some] for way, some in costs.items()}
                print(json.dumps(found))
            met = show(costs, asked.rows)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
