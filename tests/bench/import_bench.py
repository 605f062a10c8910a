"""What importing an MLPerf log of many ranks costs, beside parsing its lines and writing as many bare Parquet files.

    python tests/bench/import_bench.py [--ranks N] [--steps N] [--rounds N] [--json]

The log is made here, after those of MLPerf Training: an ``init_start`` of every rank, a ``cache_clear`` of every node
of eight, and the steps, blocks and evaluations of one rank, as its benchmarks write them.

    ranklake    the command ``ranklake import mlperf``, whole: its start, the rows, a segment or two a table, the spool
    limit       Python's decoder line by line, and as many bare Parquet files of one row of `events` by pyarrow

each in a process of its own, in turns; of the rounds the least. CPU seconds are user and system, of all threads.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BEGIN_MS = 1_727_896_379_069
NODE = 8
BLOCK = 12
"""Steps between evaluations."""


def lines(ranks, steps):
    """Yield the lines of a log."""
    at = BEGIN_MS

    def line(key, kind="POINT_IN_TIME", value=None, **metadata):
        told = {"namespace": "", "time_ms": at, "event_type": kind, "key": key, "value": value, "metadata": metadata}
        return f":::MLLOG {json.dumps(told)}\n"

    for _ in range(0, ranks, NODE):
        at += 1
        yield line("cache_clear", value=True, file="<string>", lineno=3)
    for _ in range(ranks):
        at += 1
        yield line("init_start", file="main.py", lineno=101)
    yield line("init_stop", "INTERVAL_END", file="main.py", lineno=207)
    yield line("run_start", "INTERVAL_START", file="main.py", lineno=208)
    for first in range(0, steps, BLOCK):
        yield line("block_start", "INTERVAL_START", samples_count=first, file="callbacks.py", lineno=64)
        for step in range(first, min(first + BLOCK, steps)):
            at += 9_493
            timing = {"train_step_time": 9.493, "reduced_train_loss": 2.7 + 1 / (1 + step)}
            yield line("tracked_stats", value=timing, step=step, file="callbacks.py", lineno=131)
        yield line("block_stop", "INTERVAL_END", samples_count=first + BLOCK, file="callbacks.py", lineno=70)
        yield line("eval_start", "INTERVAL_START", samples_count=first + BLOCK, file="callbacks.py", lineno=80)
        at += 9_900
        yield line("eval_accuracy", value=2.75, samples_count=first + BLOCK, file="callbacks.py", lineno=90)
        yield line("eval_stop", "INTERVAL_END", samples_count=first + BLOCK, file="callbacks.py", lineno=91)
    yield line("run_stop", "INTERVAL_END", status="success", file="callbacks.py", lineno=99)


LIMIT = """
import io, json, sys
import pyarrow as pa, pyarrow.parquet as pq
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
row = {"run": "many", "attempt": 0, "rank": 0, "incarnation": 1, "segment": 0, "slot": 0, "event": "init_start"}
schema = arrow_schema(contract("events"))
schema = pa.schema([schema.field(name) for name in row])
for line in open(sys.argv[1], encoding="utf-8"):
    json.loads(line.partition(":::MLLOG")[2])
for number in range(int(sys.argv[2])):
    pq.write_table(pa.Table.from_pylist([row | {"rank": number}], schema=schema), io.BytesIO(), compression="zstd")
"""


def spent(command, environment):
    """Run a command; return its CPU seconds, wall seconds and output."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took, done.stdout


def measured(ranks, steps, rounds, place):
    """Return a row a way: CPU seconds, wall seconds, and what the import said of its rows."""
    log = place / "result_0.txt"
    log.write_text("".join(lines(ranks, steps)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKLAKE_")}
    best, said = {}, {}
    for number in range(rounds):
        spool = ["--spool", str(place / f"spool-{number}")]
        command = [sys.executable, "-m", "ranklake", "import", "mlperf", str(log), "--run", "many", *spool, "--json"]
        cpu_s, wall_s, out = spent(command, environment)
        said = json.loads(out)
        limit = spent([sys.executable, "-c", LIMIT, str(log), str(said["segments"])], environment)
        for way, took in (("ranklake", (cpu_s, wall_s)), ("limit", limit[:2])):
            best[way] = min(best.get(way, took), took)
    return [
        {
            "way": way,
            "ranks": ranks,
            "segments": said["segments"],
            "rows": said["rows"],
            "cpu_s": took[0],
            "wall_s": took[1],
        }
        for way, took in best.items()
    ]


def main():
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=11_616)
    options.add_argument("--steps", type=int, default=288)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measured(chosen.ranks, chosen.steps, chosen.rounds, Path(place))
    if chosen.json:
        print(json.dumps(found))
        return
    base = next(row["cpu_s"] for row in found if row["way"] == "limit")
    print("way | ranks | segments | CPU-s | wall-s | x limit")
    for row in found:
        told = f"{row['ranks']:,} | {row['segments']:,} | {row['cpu_s']:.2f} | {row['wall_s']:.2f}"
        print(f"{row['way']} | {told} | {row['cpu_s'] / base:.2f}")


if __name__ == "__main__":
    main()
