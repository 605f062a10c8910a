"""What the audit log costs when it is long: an append, and a proof of all of it and of its end.

    python tests/bench/audit_bench.py [--rows N] [--json]

    append    `ranklake.lake.audit.trail.record`: a row by itself, each a commit; the first of a process opens the table
              beside: a trail of a hundredth of the rows
    verify    `ranklake.lake.audit.proof.prove`: the whole chain, and from the last thousand rows on

Wall time in milliseconds and seconds, CPU time of all threads beside it. Appends are at the end of a trail whose last
rows came one by one, as they do: their small files are not merged yet.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import Entry, record, record_all
from ranklake.lake.store.lake import Lake

AT_ONCE, SINGLE, MEASURED, LAST = 20_000, 100, 30, 1_000
AIM_APPEND_MS, AIM_VERIFY_S, AIM_SINCE_S = 20.0, 10.0, 0.5


def entry(number):
    """Return an entry like those of queries on classified data."""
    details = {"tables": ["logs", "runs"], "rows": number % 977, "sha256": f"{number:064x}"}
    return Entry(f"person-{number % 50}", "query", f"role-{number % 7}", "an incident", details)


def long_trail(lake, rows):
    """Append rows, most of them many at a time, and the last ones by themselves."""
    for first in range(0, max(0, rows - SINGLE), AT_ONCE):
        record_all(lake, [entry(number) for number in range(first, min(first + AT_ONCE, rows - SINGLE))])
    for number in range(max(0, rows - SINGLE), rows):
        record_all(lake, [entry(number)])


def append_ms(lake, count=MEASURED):
    """Return the least, the median and the most of some appends, in milliseconds."""
    took = []
    for number in range(count):
        began = time.monotonic()
        record(lake, "somebody", "query", f"role-{number}", "a look", {"rows": number})
        took.append(1e3 * (time.monotonic() - began))
    return min(took), statistics.median(took), max(took)


def first_append_ms(lake):
    """Return the median of appends that each open the table, as the first of a process does, in milliseconds."""
    return statistics.median(append_ms(lake.configured(), 1)[0] for _ in range(MEASURED))


def proved(lake, since=0):
    """Return wall and CPU seconds of a proof."""
    began, cpu = time.monotonic(), time.process_time()
    found = prove(lake, since)
    assert found.whole, found.why
    return time.monotonic() - began, time.process_time() - cpu


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ranklake-audit-") as folder:
        short = Lake.create(str(Path(folder) / "short"))
        long_trail(short, given.rows // 100)
        _, short_ms, _ = append_ms(short)
        lake = Lake.create(str(Path(folder) / "lake"))
        long_trail(lake, given.rows)
        proved(lake, given.rows - LAST)  # warms
        least_ms, median_ms, most_ms = append_ms(lake)
        first_ms = first_append_ms(lake)
        whole_s, whole_cpu_s = proved(lake)
        since_s, since_cpu_s = proved(lake, given.rows - LAST)
    told = {
        "rows": given.rows,
        "append_ms": median_ms,
        "append_least_ms": least_ms,
        "append_first_ms": first_ms,
        "append_most_ms": most_ms,
        "append_to_short": median_ms / short_ms,
        "verify_s": whole_s,
        "verify_cpu_s": whole_cpu_s,
        "since_s": since_s,
        "since_cpu_s": since_cpu_s,
    }
    if given.json:
        print(json.dumps(told))
        return
    rows = [
        ("append a row, ms, median", median_ms, AIM_APPEND_MS, f"{median_ms / short_ms:.2f} of a trail of a hundredth"),
        ("append a row, ms, least", least_ms, AIM_APPEND_MS, f"most {most_ms:.1f}"),
        ("append as the first of a process, ms", first_ms, AIM_APPEND_MS, "median; opens the table"),
        ("verify all, s", whole_s, AIM_VERIFY_S, f"{whole_cpu_s:.2f} CPU-s"),
        (f"verify the last {LAST:,} rows, s", since_s, AIM_SINCE_S, f"{since_cpu_s:.2f} CPU-s"),
    ]
    print(f"{given.rows:,} rows\n\n| what | took | asked | beside |\n|---|---:|---:|---|")
    for what, took, asked, beside in rows:
        print(f"| {what} | {took:.2f} | {asked:g} | {beside} |")
    missed = [what for what, took, asked, _ in rows if took > asked]
    print("\nmissed: " + ", ".join(missed) if missed else "\nall met")


if __name__ == "__main__":
    sys.exit(main())
