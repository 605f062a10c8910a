"""Refreshes of a share under SIGKILL, while rows come, are merged, change hands and are taken back.

    python share_chaos.py PLACE [--kills 60] [--seed N]

PLACE is an empty folder. A role of a team has a share of `steps` and `runs`. Each turn changes the lake, or the role;
then `ranklake share` refreshes the copies and is killed at a random moment, sometimes again, before one is let end.
Afterwards each copy has the rows that the role sees, each once; no file of the share holds a word of others; and no
data file lies there that its log does not name, but those that readers may still want.

Exits 0 if that held after each turn.
"""

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import yaml
from deltalake import DeltaTable
from rollup_inputs import NOON, append

from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.retention.shares.register import read_entry, shares

REFRESH = """
import sys
from ranklake.cli import run
import ranklake.commands.share, ranklake.lake.query.engine
print("imported", flush=True)
sys.exit(run(sys.argv[1:]))
"""
TABLES = ("steps", "runs")
WIDE = {"classes": ["operational"], "tables": list(TABLES), "teams": ["vision"]}
NARROW = {**WIDE, "where": {"steps": "step < 20"}}
LESS = {**WIDE, "tables": ["runs"]}


class Chaos:
    """A lake, a share of it, and what befalls them."""

    def __init__(self, place, seed):
        self.place, self.chance = place, random.Random(seed)
        self.lake = Lake.create(str(place / "lake"))
        self.runs, self.segment, self.kills, self.whole_s = 0, 0, 0, 2.0
        self.write(WIDE)

    def write(self, role):
        """Write the role's file."""
        self.role = role
        (self.place / "roles.yaml").write_text(yaml.safe_dump({"roles": {"reader": role}}))

    def begin(self):
        """Add a run of the team or of another, with steps of some days."""
        self.runs += 1
        run, team = f"run-{self.runs}", self.chance.choice(["vision", "vision", "speech"])
        append(self.lake, "runs", [self.row(run=run, team=team, pid=7)])
        for day in range(self.chance.randrange(1, 4)):
            ts = NOON + timedelta(days=day)
            append(self.lake, "steps", [self.row(run=run, step=n, ts=ts, step_time_s=1.0) for n in range(30)])

    def row(self, **facts):
        """Return a row of its own."""
        self.segment += 1
        return {"ts": NOON, "segment": self.segment, **facts}

    def claim(self):
        """Have another team claim a run, so that it is of neither."""
        if self.runs:
            run = f"run-{self.chance.randrange(1, self.runs + 1)}"
            append(self.lake, "runs", [self.row(run=run, team="speech", pid=8)])

    def merge(self):
        """Merge small files of the lake."""
        merge_small(self.lake, InProcess(), thorough=True)

    def turn(self):
        """Change the lake, and perhaps the role."""
        self.begin()
        moves = [self.claim, self.merge, *(lambda role=role: self.write(role) for role in (WIDE, WIDE, NARROW, LESS))]
        for move in self.chance.sample(moves, 2):
            move()

    def refresh(self, after_s=None):
        """Bring the share up to date, or kill the process after a time; return whether it was killed."""
        command = [sys.executable, "-c", REFRESH, "share", "reader", "--lake", self.lake.uri]
        command += ["--to", str(self.place / "out"), "--roles", str(self.place / "roles.yaml")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            assert child.stdout.readline() == "imported\n"
            begun = time.monotonic()
            try:
                out, _ = child.communicate(timeout=after_s)
            except subprocess.TimeoutExpired:
                child.kill()
                self.kills += 1
                return True
        assert child.returncode == 0, out
        self.whole_s = time.monotonic() - begun
        return False

    def look(self):
        """Hold the share against what the role sees."""
        role = load_role(self.place / "roles.yaml", "reader", load_contracts())
        (share,) = shares(self.lake.store)
        tables = Path(share.uri) / "tables"
        assert {path.relative_to(tables).parts[0] for path in tables.rglob("*.*")} == set(role.tables), "tables"
        for table in role.tables:
            handle = DeltaTable(str(tables / table))
            copies = handle.to_pyarrow_dataset().to_table(columns=["run", "segment"])
            seen = query(self.lake, f"SELECT run, segment FROM {table}", role=role)
            rows, wanted = (Counter(zip(*some.to_pydict().values(), strict=True)) for some in (copies, seen))
            assert rows == wanted, (table, "more", rows - wanted, "fewer", wanted - rows)
            live = {path.removeprefix("/") for path in handle.file_uris()}
            there = {str(path) for path in (tables / table).glob("date=*/*.parquet")}
            waiting = {str(tables / table / path) for path in read_entry(self.lake.store, share, table).waiting}
            assert there - waiting == {f"/{path}" for path in live}, (table, "files")
            mine = set(seen["run"].to_pylist())
            for path in there:
                assert set(pq.read_table(path, columns=["run"])["run"].to_pylist()) <= mine, (table, path)


def main():
    """Run the campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    chaos, turns = Chaos(options.place, options.seed), 0
    print(f"seed {options.seed}", flush=True)
    for _ in range(4):
        chaos.begin()
    chaos.refresh()
    chaos.look()
    while chaos.kills < options.kills:
        turns += 1
        chaos.turn()
        while chaos.refresh(chaos.chance.uniform(0, 1.2) * chaos.whole_s) and chaos.chance.random() < 0.3:
            pass
        chaos.refresh()
        chaos.look()
        print(f"turn {turns}: {chaos.kills} kills", flush=True)
    print(f"{chaos.kills} kills in {turns} turns: the share was what the role sees after each")


if __name__ == "__main__":
    main()
