"""Measures `ranklake sql` beside DuckDB, Polars and bare DataFusion on the same files: ratios within one run.

    lake       about `--rows` rows of made-up scalars in real Delta tables (`sql_lake.py`)
    questions  one run's one metric over one hour; aggregates over everything
    ranklake   `ranklake.lake.query.sql.query`: opens the log, chooses files, plans, reads, every time anew
    others     are handed the live files, and open them anew every time, too

Engines take turns within each round; each figure is the least of the rounds, since what disturbs only adds. CPU seconds
are those of the whole process; wall seconds depend on who else is at work. All must give the same rows.
"""

import argparse
import json
import math
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CORES = os.cpu_count() or 1
os.environ.setdefault("POLARS_MAX_THREADS", str(CORES))

import duckdb  # noqa: E402 - Polars reads its number of threads when it is imported
import polars as pl  # noqa: E402
import pyarrow as pa  # noqa: E402
from datafusion import SessionConfig, SessionContext  # noqa: E402
from sql_lake import METRIC, fill  # noqa: E402

from ranklake.lake.query.sql import query  # noqa: E402
from ranklake.lake.store.lake import Lake  # noqa: E402
from ranklake.lake.tables.live_files import files  # noqa: E402
from ranklake.lake.tables.tables import delta_table  # noqa: E402

QUESTIONS = {
    "one hour": f"""
        SELECT rank, ts, value FROM scalars WHERE run = 'run-2' AND metric = '{METRIC}' AND date = '2026-03-01'
        AND ts >= '2026-03-01T00:00:00Z' AND ts < '2026-03-01T01:00:00Z' ORDER BY rank, ts
    """,
    "all rows": "SELECT count(*) AS n, avg(value) AS mean, min(value) AS low, max(value) AS high FROM scalars",
    "by rank": """
        SELECT rank, count(*) AS n, avg(value) AS mean, min(value) AS low, max(value) AS high
        FROM scalars GROUP BY rank ORDER BY rank
    """,
    "by metric": """
        SELECT metric, count(*) AS n, avg(value) AS mean, min(value) AS low, max(value) AS high
        FROM scalars GROUP BY metric ORDER BY metric
    """,
}
OURS = "ranklake"


@dataclass(frozen=True)
class Measured:
    """One engine's answer to one question: the least seconds of the rounds."""

    question: str
    engine: str
    rows: int
    cpu_s: float
    wall_s: float
    ratio: float
    """CPU seconds over those of the fastest of the other engines."""


def engines(lake: Lake) -> dict[str, Callable[[str], pa.Table]]:
    """Return what answers a question, by engine."""
    live = [
        lake.path("tables", "scalars", path) for path in files(delta_table(lake.store, "scalars"))["path"].to_pylist()
    ]

    def bare(text: str) -> pa.Table:
        ctx = SessionContext(SessionConfig().with_target_partitions(CORES))
        ctx.register_parquet("scalars", lake.path("tables", "scalars"), table_partition_cols=[("date", pa.date32())])
        return ctx.sql(text).to_arrow_table()

    def duck(text: str) -> pa.Table:
        with duckdb.connect(config={"threads": CORES}) as connection:
            connection.execute("SET timezone = 'UTC'")
            source = "read_parquet($files, hive_partitioning = true, hive_types = {date: DATE})"
            return connection.sql(
                text.replace("FROM scalars", f"FROM {source}"), params={"files": live}
            ).to_arrow_table()

    def polars(text: str) -> pa.Table:
        frame = pl.scan_parquet(live, hive_partitioning=True, hive_schema={"date": pl.Date})
        return pl.SQLContext(scalars=frame).execute(_for_polars(text)).collect(engine="streaming").to_arrow()

    return {OURS: lambda text: query(lake, text), "datafusion": bare, "duckdb": duck, "polars": polars}


def _for_polars(text: str) -> str:
    """Return a question in Polars's dialect, which wants times and dates cast."""
    for moment in ("2026-03-01T00:00:00Z", "2026-03-01T01:00:00Z"):
        text = text.replace(f"'{moment}'", f"CAST('{moment[:-1]}' AS TIMESTAMP) AT TIME ZONE 'UTC'")
    return text.replace("date = '2026-03-01'", "date = DATE '2026-03-01'")


def measure(lake: Lake, rounds: int) -> list[Measured]:
    """Ask every engine every question, in turns."""
    answering = engines(lake)
    results = []
    for question, text in QUESTIONS.items():
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in answering}
        answers = {}
        for turn in range(rounds):
            names = list(answering)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                cpu, wall = _cpu_s(), time.perf_counter()
                answers[name] = answering[name](text)
                spent[name].append((_cpu_s() - cpu, time.perf_counter() - wall))
        for name, answer in answers.items():
            if not _same(answer, answers[OURS]):
                raise SystemExit(f"{name} answers {question!r} otherwise than {OURS}")
        least = {name: [min(column) for column in zip(*pairs, strict=True)] for name, pairs in spent.items()}
        fastest = min(cpu for name, (cpu, _) in least.items() if name != OURS)
        results += [
            Measured(question, name, answers[name].num_rows, cpu, wall, cpu / fastest)
            for name, (cpu, wall) in least.items()
        ]
    return results


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _same(some: pa.Table, other: pa.Table) -> bool:
    """Return whether two answers are the same but for types and the last digits of means."""
    if some.num_rows != other.num_rows or some.column_names != other.column_names:
        return False
    for left, right in zip(some.to_pylist(), other.to_pylist(), strict=True):
        for one, two in zip(left.values(), right.values(), strict=True):
            if not (math.isclose(one, two, rel_tol=1e-9) if isinstance(two, float) else one == two):
                return False
    return True


def report(results: Sequence[Measured], rows: int, size_bytes: int) -> str:
    """Return the table for people."""
    lines = [f"{rows:,} rows of scalars, {size_bytes / rows:.2f} bytes a row, {CORES} cores", ""]
    lines.append(f"{'question':<10} {'engine':<11} {'rows':>7} {'CPU s':>8} {'wall s':>8}  x fastest other (CPU)")
    lines += [
        f"{one.question:<10} {one.engine:<11} {one.rows:>7,} {one.cpu_s:>8.3f} {one.wall_s:>8.3f}  {one.ratio:.2f}"
        for one in results
    ]
    return "\n".join(lines)


def main() -> None:
    """Make the lake, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="about so many; the largest that was tried: 160 M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hour-s", type=int, default=3600, help="seconds that are recorded of each hour")
    parser.add_argument("--lake", type=Path, help="folder to make the lake in, or to find it in, and to leave it in")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.lake or Path(tempfile.mkdtemp(prefix="ranklake-bench-"))
    try:
        made = (folder / "ranklake.json").exists()
        lake = Lake.create(str(folder))
        if not made:
            print(f"writing about {options.rows:,} rows…", file=sys.stderr)
            fill(lake, options.rows, hour_s=options.hour_s)
        live = files(delta_table(lake.store, "scalars"))
        rows, size_bytes = (sum(live[name].to_pylist()) for name in ("num_records", "size_bytes"))
        results = measure(lake, options.rounds)
        if options.json:
            print(json.dumps({"rows": rows, "bytes": size_bytes, "results": [asdict(one) for one in results]}))
        else:
            print(report(results, rows, size_bytes))
    finally:
        if options.lake is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
