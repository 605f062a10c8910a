"""A migration forth and back under SIGKILL, with ingest and upkeep beside it, and a reader that looks all the time.

    python migrate_chaos.py PLACE [--rows 20000000] [--kills 100] [--minutes 20] [--seed N]

PLACE is an empty folder. The table `steps` gets `--rows` rows by ingest; a migration renames a column of it and
converts another. It is applied and undone in turn, each as often as it is killed, while segments keep coming: an older
release stores them as long as it may, the later one afterwards. A reader asks by SQL under the former names, and by
DuckDB over the files of the Delta log: each look sees all rows of before or all rows of after, and never fewer than
the look before.

A kill comes after up to 1.3 times what an undisturbed apply takes, or earlier where `--minutes` would not do else.

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
import numpy as np
import pyarrow as pa
import pytest
from changed_contracts import ChangedContracts
from segments import DAY, put_segment

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.maintenance.vacuum import garbage
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.migrations.proof import verify
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

PER_SEGMENT = 500_000
AT_ONCE = 2_000_000
"""Rows that one ingest brings at first."""
LATE_ROWS = 200
START_S = 3.0
"""What a turn takes besides waiting for its kill: two processes that import, and the end of the one that lives."""
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
        number, slots = len(self.rows), np.arange(count)
        begin = np.datetime64((DAY + timedelta(days=number % 40)).replace(tzinfo=None), "us")
        columns = {
            "run": pa.repeat("r1", count),
            "attempt": np.zeros(count, np.int32),
            "rank": np.zeros(count, np.int32),
            "incarnation": np.full(count, 7),
            "segment": np.full(count, number, np.int32),
            "slot": slots.astype(np.int32),
            "ts": begin + slots * np.timedelta64(100, "ms"),
            "step": number * 1_000_000 + slots,
            "step_time_s": (migrate_child.LOW_S + slots % 1000 / 1000).astype(np.float32),
            "tokens": np.full(count, migrate_child.TOKENS),
            "loss": (3 - slots % 1009 / 1009).astype(np.float32),
        }
        schema = arrow_schema(contract("steps"), segment=True)
        arrays = [
            pa.array(columns[column.name]).cast(column.type) if column.name in columns else pa.nulls(count, column.type)
            for column in schema
        ]
        put_segment(self.spool, pa.table(arrays, schema=schema), rows_before=sum(self.rows))
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
        """Run a piece of the migration beside other work, kill one or both; return whether the migration is done.

        `longest_s` is how long to wait for a kill at most.
        """
        other, is_later = self.rng.choice(["ingest", "ingest", "upkeep"]), self.rng.random() < 0.5
        moment_s = self.rng.uniform(0.0, longest_s)
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
    if read_plan(lake.store, last_finished(lake.tables) + 1) is not None:
        found.append("a plan is unfinished")
    told = read(lake.tables, contract("migrations"), ["plan", "status"]).sort_by("plan")["status"].to_pylist()
    if told != ["applied", "reverted"] * (len(told) // 2) + ["applied"]:
        found.append(f"the table migrations says {told}")
    return found


def fill(lake, spool, source, rows):
    """Have about as many rows ingested, some segments at a time."""
    while (left := rows - sum(source.rows)) > 0:
        for size in [min(PER_SEGMENT, left - done) for done in range(0, min(left, AT_ONCE), PER_SEGMENT)]:
            source.put(size)
        ingest(lake, spool, InProcess())


def campaign(place, rows, kills, minutes, seed, patch):
    """Run the campaign; return the findings and a line for people."""
    until = time.monotonic() + 60 * minutes
    run = Campaign(place, random.Random(seed))
    changed = ChangedContracts(run.contracts / "tables", patch)
    changed.migrate("steps", change, factor=1000)
    changed.earlier()
    lake, spool = Lake.create(str(run.lake)), Spool(str(run.spool))
    source = Source(run.spool)
    began = time.monotonic()
    fill(lake, spool, source, rows)
    filled_s = time.monotonic() - began
    print(f"{rows:,} rows filled in {filled_s:.0f} s", file=sys.stderr, flush=True)
    reader = run.start("read")
    first = run.start("apply")
    first.stdout.readline()
    began = time.monotonic()
    run.ended("first apply", first)
    whole_s = time.monotonic() - began
    until -= 4 * whole_s  # for the last apply, and looking at everything twice
    way, done, told = "undo", 1, 0
    while run.kills.total() < kills:
        source.put(LATE_ROWS)
        a_kill_s = max(0.0, until - time.monotonic()) / (kills - run.kills.total())
        if run.turn(way, min(1.3 * whole_s, 2 * max(0.2, a_kill_s - START_S))):
            way, done = ("undo" if way == "apply" else "apply"), done + 1
        if run.kills.total() >= told + 10:
            told = run.kills.total()
            gone_s = time.monotonic() - began
            print(f"{told} of {kills} kills, {done} ways done, {gone_s:.0f} s", file=sys.stderr, flush=True)
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
        f"an apply alone {whole_s:.1f} s, whole {time.monotonic() - began:.0f} s: "
        f"{'; '.join(run.findings) or 'every row once, and seen whole'}"
    )
    return run.findings, line


def main():
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("place", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=20261124)
    given = parser.parse_args()
    os.environ.setdefault("RANKLAKE_CAPTURE_SAMPLERS", "off")
    with pytest.MonkeyPatch.context() as patch:
        findings, line = campaign(given.place, given.rows, given.kills, given.minutes, given.seed, patch)
    print(line)
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
