"""Measures a cold ``ranklake check``: a process that begins, finds the one partition that changed, and judges it.

    lake     dates of `--rows` rows of ``steps``, all checked before
    a round  the last date gets other rows; then the command runs as a user runs it

Wall and CPU time are of the whole process: interpreter, imports, logs, scan, commit of the results. The rows are sound,
so that the screen decides all and Great Expectations need not be imported; that it was not is looked at.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from quality_bench import FIRST, made

from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.commit import replace_partitions
from ranklake.quality.check import run_checks

DATES = 3
_COMMAND = """
import sys
from ranklake.cli import run
code = run(["check", "--lake", sys.argv[1], "--json"])
print("engine" if "great_expectations" in sys.modules else "screen", file=sys.stderr)
sys.exit(code)
"""


def change(lake: Lake, date: int, seed: int, rows: int) -> None:
    """Replace the rows of a date by others."""
    day = FIRST + timedelta(date)
    found = made(rows, date, dirty=False).slice(0, rows - seed)  # fewer rows are another partition
    replace_partitions(lake.tables, contract("steps"), found, [day])


def check(uri: str) -> dict[str, object]:
    """Run the command cold; return wall and CPU seconds, memory, and what it says."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([sys.executable, "-c", _COMMAND, uri], stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        said = err.read().decode().strip().rpartition("\n")[2]
        told = out.read()
    if process.returncode not in {0, 1}:
        raise SystemExit(said)
    return {
        "wall_s": wall,
        "cpu_s": used.ru_utime + used.ru_stime,
        "rss_mib": used.ru_maxrss / 1024,
        "partitions": json.loads(told)["partitions"],
        "judged_by": said,
    }


def main() -> None:
    """Make the lake, check it, change and check it cold some times, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a date")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ranklake-bench-") as folder:
        lake = Lake.create(str(Path(folder) / "lake"))
        for date in range(DATES):
            change(lake, date, 0, options.rows)
        run_checks(lake)
        rounds = []
        for number in range(1, options.rounds + 1):
            change(lake, DATES - 1, number, options.rows)
            rounds.append(check(lake.uri))
    assert {one["partitions"] for one in rounds} == {1}, rounds
    assert {one["judged_by"] for one in rounds} == {"screen"}, rounds
    if options.json:
        print(json.dumps({"rows": options.rows, "rounds": rounds}))
        return
    print(f"cold ranklake check, one changed partition of {options.rows:,} rows, {options.rounds} rounds\n")
    for name, unit in (("wall_s", "s"), ("cpu_s", "CPU s"), ("rss_mib", "MiB")):
        some = [float(one[name]) for one in rounds]
        print(f"{name:<8} least {min(some):8.2f}  median {statistics.median(some):8.2f}  most {max(some):8.2f}  {unit}")


if __name__ == "__main__":
    main()
