"""Measures 20 expectations over rows of ``steps`` beside others on the same files: ratios within one run.

    lake        `--rows` rows in real partitions of a million; a few rows fail two of the expectations, if `--dirty`
    ranklake    the scan behind ``ranklake check``, a partition at a time, in `--processes` processes
    gx          Great Expectations' pandas engine, on NumPy columns, which it judges fastest
    duckdb      the SQL that Soda and its like write: one query for all counts, one for repeated keys
    pointblank  on a Polars frame; if it is installed

Each engine has a process of its own, in turns within each round, so that none finds the other's memory warm; imports
are not counted, reading is. Each figure is the least of the rounds. All must find the same failing rows.
"""

import argparse
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract, load_metrics
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table
from ranklake.quality.suite import Suite, compile_suite
from ranklake.quality.tally import Partition

EXPECTATIONS = (
    *("required:run", "required:rank", "required:ts", "required:step", "required:step_time_s", "run_name"),
    *("attempt_from_zero", "rank_from_zero", "step_from_zero", "step_time_not_negative", "data_time_not_negative"),
    *("forward_time_not_negative", "backward_time_not_negative", "tokens_not_negative"),
    *("memory_allocated_not_negative", "memory_reserved_not_negative"),
    *("data_within_step", "lr_not_negative", "allocated_within_reserved", "steps_unique"),
)
OURS = "ranklake"
ENGINES = (OURS, "gx", "duckdb", "pointblank")
PARTITION_ROWS = 1_000_000
RANKS = 64
FIRST = date(2026, 3, 1)
MOST_FOR_ALL = 4_000_000
"""Rows above which engines that hold all of them in memory are left out."""
_IMPORTS = {OURS: "ranklake.quality.scan", "gx": "great_expectations", "duckdb": "duckdb", "pointblank": "pointblank"}


@dataclass(frozen=True)
class Measured:
    """One engine: the least seconds of the rounds, the most memory, and the CPU seconds over ours."""

    engine: str
    cpu_s: float
    wall_s: float
    rss_mib: float
    ratio: float


def fill(lake: Lake, rows: int, *, dirty: bool) -> None:
    """Write partitions of a million rows or what is left."""
    for number, begin in enumerate(range(0, rows, PARTITION_ROWS)):
        count = min(PARTITION_ROWS, rows - begin)
        replace_partitions(
            lake.tables, contract("steps"), made(count, number, dirty=dirty), [FIRST + timedelta(number)]
        )


def made(count: int, number: int, *, dirty: bool) -> pa.Table:
    """Return rows of one date: a run of 64 ranks."""
    rng = np.random.default_rng(number)
    day = FIRST + timedelta(number)
    rank = np.arange(count) % RANKS
    step = np.arange(count) // RANKS
    whole = rng.gamma(20, 0.05, count)
    begin = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1e6)
    forward = whole * 0.3
    tokens = np.full(count, 8192)
    if dirty:
        bad = rng.choice(count, max(1, count // 10_000), replace=False)
        forward[bad] = whole[bad] + 1
        tokens[bad] = -1
    columns = {
        "run": pa.array([f"run-{number}"]).take(pa.array(np.zeros(count, np.int8))),
        "attempt": np.zeros(count, np.int32),
        "rank": rank.astype(np.int32),
        "incarnation": rank + 1000 * number,
        "segment": np.zeros(count, np.int32),
        "slot": step.astype(np.int32),
        "ts": pa.array(begin + step * 5_000_000, pa.timestamp("us", "UTC")),
        "date": pa.array([day]).take(pa.array(np.zeros(count, np.int8))),
        "step": step,
        "step_time_s": whole.astype(np.float32),
        "data_time_s": (whole * 0.02).astype(np.float32),
        "forward_time_s": forward.astype(np.float32),
        "backward_time_s": (whole * 0.6).astype(np.float32),
        "tokens": tokens,
        "loss": rng.normal(3, 0.1, count).astype(np.float32),
        "lr": np.full(count, 3e-4, np.float32),  # a column without a value is not in a file
        "memory_allocated_bytes": 60 * 2**30 + 512 * rng.integers(0, 999, count),
        "memory_reserved_bytes": np.full(count, 64 * 2**30),
    }
    schema = arrow_schema(contract("steps"))
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.table([pa.array(one).cast(field.type) for one, field in zip(arrays, schema, strict=True)], schema=schema)


def suite() -> Suite:
    """Return the suite of the contract with these expectations alone."""
    whole = compile_suite(contract("steps"), load_metrics())
    by_id = {one.check.id: one for one in whole.expectations}
    return replace(whole, expectations=tuple(by_id[name] for name in EXPECTATIONS))


def partitions(lake: Lake) -> list[Partition]:
    """Return the lake's partitions as a check finds them."""
    handle = delta_table(lake.store, "steps")
    live = files(handle)
    days = live["date"].to_pylist()
    return [
        Partition(day, handle.version(), live.take([at for at, one in enumerate(days) if one == day]))
        for day in sorted(set(days))
    ]


def _scanned(task: tuple[str, Partition]) -> dict[str, int]:
    from ranklake.quality.engine import judge
    from ranklake.quality.scan import scan

    lake = Lake.open(task[0])
    tallies = scan(lake.store, contract("steps"), suite(), task[1], judge)
    assert not any(one.error for one in tallies), [one.error for one in tallies]
    return {name: one.failed for name, one in zip(EXPECTATIONS, tallies, strict=True)}


def _ready(_: int) -> None:
    importlib.import_module(_IMPORTS[OURS])
    time.sleep(0.2)  # so that each process of the pool takes one


def ranklake(lake: Lake, processes: int) -> dict[str, int]:
    """Scan all partitions."""
    tasks = [(lake.uri, part) for part in partitions(lake)]
    if processes == 1 or len(tasks) == 1:
        return _summed(map(_scanned, tasks))
    return _summed(_POOL[0].map(_scanned, tasks))


def gx(lake: Lake, _processes: int) -> dict[str, int]:
    """Put all rows to Great Expectations' pandas engine, a partition at a time."""
    from ranklake.lake.tables.read import read
    from ranklake.quality.engine import _judge_of_process, frame

    judge = _judge_of_process()
    (unique,) = (one for one in suite().expectations if not one.per_row)
    compound = judge._gx.expectations.ExpectCompoundColumnsToBeUnique(column_list=list(unique.check.columns))
    chosen = [one for one in suite().expectations if one.per_row]
    names = sorted({name for one in chosen for name in one.check.columns})
    found = []
    for part in partitions(lake):
        rows = read(lake.tables, contract("steps"), names, partitions=[part.day])
        table = frame(rows, chosen, {})
        verdicts = judge(contract("steps"), table, chosen, classified=False)
        assert all(one.success is not None for one in verdicts), [one.error for one in verdicts]
        repeated = judge._batches.get_batch(batch_parameters={"dataframe": table}).validate(compound)
        counts = {one.check.id: verdict.failed or 0 for one, verdict in zip(chosen, verdicts, strict=True)}
        found.append({**counts, unique.check.id: int(repeated.result["unexpected_count"])})
    return _summed(found)


def duckdb(lake: Lake, processes: int) -> dict[str, int]:
    """Count in SQL."""
    import duckdb as duck

    live = [lake.path("tables", "steps", path) for path in files(delta_table(lake.store, "steps"))["path"].to_pylist()]
    counts = [
        f'count(*) FILTER (WHERE {_wrong(one.check)}) AS "{one.check.id}"'
        for one in suite().expectations
        if one.check.kind != "unique"
    ]
    with duck.connect(config={"threads": processes}) as connection:
        source = connection.read_parquet(live, hive_partitioning=True)
        found = dict(connection.sql(f"SELECT {', '.join(counts)} FROM source").to_arrow_table().to_pylist()[0])
        key = 'run, attempt, rank, step, "date"'
        repeated = f"SELECT coalesce(sum(n), 0) FROM (SELECT count(*) AS n FROM source GROUP BY {key} HAVING n > 1)"
        found["steps_unique"] = int(connection.execute(repeated).fetchall()[0][0])
    del source
    return {name: found[name] for name in EXPECTATIONS}


def _wrong(check: object) -> str:
    """Return the SQL of rows that fail."""
    name = check.columns[0]
    if check.kind == "not_null":
        return f"{name} IS NULL"
    if check.kind == "matches":
        return f"NOT regexp_full_match({name}, '{check.pattern}')"
    if check.kind == "at_most":
        return f"{name} > CAST({check.columns[1]} AS DOUBLE) + {check.tolerance or 0}"
    ends = [f"{name} < {check.min}"] if check.min is not None else []
    return " OR ".join([*ends, *([f"{name} > {check.max}"] if check.max is not None else [])])


def pointblank(lake: Lake, _processes: int) -> dict[str, int]:
    """Interrogate a Polars frame."""
    import pointblank as pb
    import polars as pl

    live = [lake.path("tables", "steps", path) for path in files(delta_table(lake.store, "steps"))["path"].to_pylist()]
    chosen = suite().expectations
    names = sorted({name for one in chosen for name in one.check.columns} | {"date"})
    plan = pb.Validate(pl.read_parquet(live, hive_partitioning=True, columns=names))
    for one in chosen:
        check = one.check
        if check.kind == "not_null":
            plan = plan.col_vals_not_null(check.columns[0])
        elif check.kind == "matches":
            plan = plan.col_vals_regex(check.columns[0], f"^(?:{check.pattern})$", na_pass=True)
        elif check.kind == "at_most":
            low, high = (pl.col(name).cast(pl.Float64) for name in check.columns)
            plan = plan.col_vals_expr((low <= high + (check.tolerance or 0)).fill_null(value=True))
        elif check.kind == "unique":
            plan = plan.rows_distinct([*check.columns, "date"])
        else:
            plan = plan.col_vals_ge(check.columns[0], check.min, na_pass=True)
    failed = plan.interrogate(get_first_n=0).n_failed()
    return {name: failed[at] for at, name in enumerate(EXPECTATIONS, 1)}


def _summed(parts: object) -> dict[str, int]:
    found = dict.fromkeys(EXPECTATIONS, 0)
    for part in parts:
        for name, failed in part.items():
            found[name] += failed
    return found


_POOL: list[ProcessPoolExecutor] = []


def child(engine: str, uri: str, processes: int, *, dirty: bool) -> None:
    """Measure one engine in this process, and print what it took and found."""
    importlib.import_module(_IMPORTS[engine])
    if engine == "gx" or (engine == OURS and dirty):  # which asks it of what is in doubt
        importlib.import_module("ranklake.quality.engine")._judge_of_process()
    lake = Lake.open(uri)
    suite()
    if engine == OURS and processes > 1:
        _POOL.append(ProcessPoolExecutor(processes))
        list(_POOL[0].map(_ready, range(processes)))
    cpu, wall = _cpu_s(), time.perf_counter()
    failed = {OURS: ranklake, "gx": gx, "duckdb": duckdb, "pointblank": pointblank}[engine](lake, processes)
    wall = time.perf_counter() - wall
    for pool in _POOL:
        pool.shutdown()
    most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"cpu_s": _cpu_s() - cpu, "wall_s": wall, "rss_mib": most / 1024, "failed": failed}))


def _cpu_s() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def measure(
    lake: Lake, engines: tuple[str, ...], *, rounds: int, processes: int, peers: str, dirty: bool
) -> tuple[list[Measured], dict[str, str], dict[str, int]]:
    """Let each engine judge in turns; return figures, why an engine has none, and how many rows fail each."""
    spent: dict[str, list[dict[str, object]]] = {}
    missing: dict[str, str] = {}
    for turn in range(rounds):
        for name in engines[turn % len(engines) :] + engines[: turn % len(engines)]:
            if name in missing:
                continue
            command = [sys.executable, __file__, "--child", name, "--lake", lake.uri, "--processes", str(processes)]
            command += ["--peers", peers, *(["--dirty"] if dirty else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                missing[name] = done.stderr.strip().rpartition("\n")[2][:160]
                continue
            spent.setdefault(name, []).append(json.loads(done.stdout))
    for name, some in spent.items():
        if some[0]["failed"] != spent[OURS][0]["failed"]:
            raise SystemExit(f"{name} finds {some[0]['failed']}, {OURS} {spent[OURS][0]['failed']}")
    least = {name: {key: min(one[key] for one in some) for key in ("cpu_s", "wall_s")} for name, some in spent.items()}
    ours = least[OURS]["cpu_s"]
    figures = [
        Measured(name, one["cpu_s"], one["wall_s"], max(each["rss_mib"] for each in spent[name]), one["cpu_s"] / ours)
        for name, one in least.items()
    ]
    return figures, missing, spent[OURS][0]["failed"]


def main() -> None:
    """Make the lake, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="40000000 for a large lake")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--dirty", action="store_true", help="let one row in 10,000 fail two expectations")
    parser.add_argument("--lake", help="folder to make the lake in, or to find it in, and to leave it in")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--peers", default=".bench-peers", help="folder with packages that the environment lacks, as of pip --target"
    )
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.path.append(options.peers)  # what both have is the environment's
        child(options.child, options.lake, options.processes, dirty=options.dirty)
        return
    folder = Path(options.lake or tempfile.mkdtemp(prefix="ranklake-bench-"))
    try:
        is_new = not (folder / "ranklake.json").exists()
        lake = Lake.create(str(folder))
        if is_new:
            print(f"writing {options.rows:,} rows…", file=sys.stderr)
            fill(lake, options.rows, dirty=options.dirty)
        engines = ENGINES if options.rows <= MOST_FOR_ALL else (OURS, "duckdb")
        figures, missing, failed = measure(
            lake,
            engines,
            rounds=options.rounds,
            processes=options.processes,
            peers=options.peers,
            dirty=options.dirty,
        )
        missing |= dict.fromkeys(set(ENGINES) - set(engines), "holds all rows in memory: left out")
        if options.json:
            facts = {"rows": options.rows, "expectations": len(EXPECTATIONS), "missing": missing, "failed": failed}
            print(json.dumps({**facts, "results": [asdict(one) for one in figures]}))
        else:
            print(f"{len(EXPECTATIONS)} expectations over {options.rows:,} rows, {options.processes} processes\n")
            print(f"{'engine':<11} {'CPU s':>8} {'wall s':>8} {'MiB':>7}  x ranklake (CPU)")
            for one in figures:
                print(f"{one.engine:<11} {one.cpu_s:>8.3f} {one.wall_s:>8.3f} {one.rss_mib:>7.0f}  {one.ratio:.2f}")
            for name, why in missing.items():
                print(f"{name:<11} not measured: {why}")
    finally:
        if options.lake is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
