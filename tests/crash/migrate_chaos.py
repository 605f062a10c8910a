"""A migration forth and back under SIGKILL, with ingest and upkeep beside it, and a reader that looks all the time.

    python migrate_chaos.py PLACE [--rows 20000000] [--kills 100] [--seed N]

PLACE is an empty folder. The table `steps` gets `--rows` rows by ingest; a migration renames a column of it and
converts another. It is applied and undone in turn, each as often as it is killed, while segments keep coming: an older
release stores them as long as it may, the later one afterwards. A reader asks by SQL under the former names, and by
DuckDB over the files of the Delta log: each look sees all rows of before or all rows of after, and never fewer than
the look before.

Exits 0 if no look saw anything else and, after an undisturbed apply and ingest, every row is there once, converted
once, the books add up, and what was left behind is purged without changing that.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import migrate_child
import pyarrow as pa
import pytest
from changed_contracts import ChangedContracts
from segments import DAY, put_segment, step_rows

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.load import contract
from ranklake.lake.delta.read import read
from ranklake.lake.ingest.run import ingest
from ranklake.lake.maintenance.run import upkeep
from ranklake.lake.maintenance.vacuum import garbage
from ranklake.lake.migrations.proof import verify
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.spool.spool import Spool
from ranklake.lake.status.reconciliation import balance
from ranklake.lake.storage.store import Lake

PER_SEGMENT = 500_000
LATE_ROWS = 200
CHILD = Path(__file__).with_name("migrate_child.py")
EXPECTED = {0, 3, -9}
"""How a child may end: done; another release's turn, or done already; killed."""


class Source:
    """Puts segments into the spool whose values follow from their keys."""

    def __init__(self, spool):
        self.spool = spool
        self.rows = []

    def put(self, count):
        """Put one segment of some rows."""
        number = len(self.rows)
        rows = step_rows(count, segment=number, start=DAY + timedelta(days=number % 40))
        place = rows.schema.get_field_index("step_time_s")
        times = [migrate_child.LOW_S + slot % 1000 / 1000 for slot in range(count)]
        rows = rows.set_column(place, rows.schema.field(place), pa.array(times, pa.float32()))
        put_segment(self.spool, rows, rows_before=sum(self.rows))
        self.rows.append(count)


def change(facts):
    """Have two columns under other names, one of them in another unit, wherever the document has them."""
    names = dict(zip(migrate_child.BEFORE, migrate_child.AFTER, strict=True))
    for one in facts["columns"]:
        if one["name"] == migrate_child.BEFORE[0]:
            one["unit"] = "ms"
        one["name"] = names.get(one["name"], one["name"])
    for check in facts["checks"]:
        check["columns"] = [names.get(name, name) for name in check.get("columns", [])]


class Campaign:
    """The children, how they ended, and what is wrong."""

    def __init__(self, place, rng):
        self.place, self.rng = place, rng
        self.lake, self.spool, self.contracts = (place / name for name in ("lake", "spool", "contracts"))
        self.kills, self.ends = Counter(), Counter()
        self.findings = []

    def start(self, work, *, is_later=True):
        """Start a child."""
        contracts = str(self.contracts) if is_later else "-"
        command = [sys.executable, str(CHILD), work, contracts, str(self.lake), str(self.spool)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(self, work, child):
        """Wait for a child; note how it ended, and return the code."""
        _, told = child.communicate()
        self.ends[work, child.returncode] += 1
        if child.returncode == -9:
            self.kills[work] += 1
        if child.returncode not in EXPECTED:
            self.findings.append(f"{work} ended with {child.returncode}: {told.strip().splitlines()[-1:]}")
        return child.returncode

    def turn(self, work, longest_s):
        """Run a piece of the migration beside other work, kill one or both; return whether the migration is done."""
        other, is_later = self.rng.choice(["ingest", "ingest", "upkeep"]), self.rng.random() < 0.5
        moment_s = self.rng.uniform(0.0, 1.3) * longest_s
        children = {other: self.start(other, is_later=is_later), work: self.start(work)}
        doomed = self.rng.choice([[work], [work], [other], [work, other]])
        for name in doomed:
            children[name].stdout.readline()
        deadline = time.monotonic() + moment_s
        while time.monotonic() < deadline and all(children[name].poll() is None for name in doomed):
            time.sleep(0.01)
        for name in doomed:
            children[name].kill()
        codes = {name: self.ended(name, child) for name, child in children.items()}
        return codes[work] in {0, 3}


def judge(lake, spool, source):
    """Return what is wrong at the end, in words."""
    rows = query(lake, "SELECT segment, count(*) AS n, count(DISTINCT slot) AS slots FROM steps GROUP BY segment")
    found = [
        f"segment {row['segment']}: {row['n']} rows, {row['slots']} slots"
        for row in rows.to_pylist()
        if not row["n"] == row["slots"] == source.rows[row["segment"]]
    ]
    if rows.num_rows != len(source.rows):
        found.append(f"{rows.num_rows} of {len(source.rows)} segments are there")
    wrong = f"""
        SELECT count(*) AS n FROM steps WHERE tokens_seen <> {migrate_child.TOKENS} OR tokens_seen IS NULL
        OR step_time_ms IS NULL OR abs(step_time_ms - (250 + slot % 1000)) > 0.01
    """
    if count := query(lake, wrong)["n"][0].as_py():
        found.append(f"{count} rows have other values")
    found += [f"{item.table}: {fault}" for item in balance(lake, spool.listing()) for fault in item.faults]
    if read_plan(lake, last_finished(lake) + 1) is not None:
        found.append("a plan is unfinished")
    told = read(lake, contract("migrations"), ["plan", "status"]).sort_by("plan")["status"].to_pylist()
    if told != ["applied", "reverted"] * (len(told) // 2) + ["applied"]:
        found.append(f"the table migrations says {told}")
    return found


def campaign(place, rows, kills, seed, patch):
    """Run the campaign; return the findings and a line for people."""
    run = Campaign(place, random.Random(seed))
    changed = ChangedContracts(run.contracts / "tables", patch)
    changed.migrate("steps", change, factor=1000)
    changed.earlier()
    lake, spool = Lake.create(str(run.lake)), Spool(str(run.spool))
    source = Source(run.spool)
    began = time.monotonic()
    while sum(source.rows) < rows:
        source.put(min(PER_SEGMENT, rows - sum(source.rows)))
        ingest(lake, spool, InProcess())
    filled_s = time.monotonic() - began
    reader = run.start("read")
    first = run.start("apply")
    first.stdout.readline()
    began = time.monotonic()
    run.ended("first apply", first)
    whole_s = time.monotonic() - began
    way, done, told = "undo", 1, 0
    while run.kills.total() < kills:
        source.put(LATE_ROWS)
        if run.turn(way, whole_s):
            way, done = ("undo" if way == "apply" else "apply"), done + 1
        if run.kills.total() >= told + 10:
            told = run.kills.total()
            print(f"{told} of {kills} kills", file=sys.stderr, flush=True)
    for work in ("apply", "ingest"):
        run.ended(f"last {work}", run.start(work))
    Path(f"{run.lake}-stop").touch()
    said, _ = reader.communicate()
    looks = json.loads(said) if reader.returncode == 0 else {"looks": 0, "fell": 0, "faults": ["the reader died"]}
    run.findings += [f"a reader: {fault}" for fault in looks["faults"]]
    if looks["fell"]:
        run.findings.append(f"{looks['fell']} of {looks['looks']} looks saw fewer rows than the one before")
    changed.later()
    lake = Lake.open(str(run.lake))
    try:
        run.findings += judge(lake, spool, source) + verify(lake, "steps").faults
    except RanklakeError as error:
        run.findings.append(str(error))
    upkeep(lake, InProcess(), grace=timedelta(0))
    run.findings += [f"after upkeep: {what}" for what in judge(lake, spool, source)]
    if left := list(garbage(lake, timedelta(0))):
        run.findings.append(f"{len(left)} files that nobody names are left")
    dead = ", ".join(f"{count} of {name}" for name, count in sorted(run.kills.items()))
    line = (
        f"migrate: {run.kills.total()} kills ({dead}), seed {seed}, {sum(source.rows):,} rows in {len(source.rows)} "
        f"segments, {done} ways to their end, {looks['looks']} looks of a reader, filled in {filled_s:.0f} s, "
        f"whole {time.monotonic() - began:.0f} s: {'; '.join(run.findings) or 'every row once, and seen whole'}"
    )
    return run.findings, line


def main():
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("place", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20261124)
    given = parser.parse_args()
    os.environ.setdefault("RANKLAKE_CAPTURE_SAMPLERS", "off")
    with pytest.MonkeyPatch.context() as patch:
        findings, line = campaign(given.place, given.rows, given.kills, given.seed, patch)
    print(line)
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
