"""Writers of the audit log that are killed anywhere: acknowledged rows are there, once, in one whole chain."""

import random
import signal
import subprocess
import sys
import time

import pytest

from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake

WRITERS, KILLS = 3, 10
CHILD = """
import sys
from ranklake.lake.audit.trail import record
from ranklake.lake.store.lake import Lake

lake = Lake.open(sys.argv[1])
for index in range(10_000):
    seq = record(lake, sys.argv[2], "test.act", f"{sys.argv[2]} {index}", once=index % 3 == 0)
    print(seq, index, flush=True)
"""


@pytest.mark.slow
def test_writers_that_are_killed_leave_one_whole_chain(tmp_path):
    """Three write at once, each dies by SIGKILL and another takes its place, while files are merged."""
    lake, draws = Lake.create(str(tmp_path / "lake")), random.Random(20261127)
    record(lake, "first", "test.act", "first")
    told, count = {}, 0

    def started():
        nonlocal count
        count += 1
        out = (tmp_path / f"out{count}").open("w")
        return subprocess.Popen([sys.executable, "-c", CHILD, lake.uri, f"w{count}"], stdout=out), out, f"w{count}"

    def end(process, out, name):
        process.send_signal(signal.SIGKILL)
        process.wait()
        out.close()
        lines = (tmp_path / f"out{name[1:]}").read_text().split("\n")[:-1]
        told.update({int(seq): f"{name} {index}" for seq, index in map(str.split, lines)})

    writers = [started() for _ in range(WRITERS)]
    for kill in range(KILLS):
        before = prove(lake).rows
        while prove(lake).rows < before + 5:  # each writes for a while, however slow the machine is
            time.sleep(draws.random() / 10)
        end(*writers.pop(draws.randrange(WRITERS)))
        if kill % 4 == 3:
            upkeep(lake, InProcess())
        writers.append(started())
    for one in writers:
        end(*one)
    assert record(lake, "last", "test.act", "last") is not None
    found = prove(lake)
    assert found.whole, found.why
    rows = trail(lake.tables)
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    assert len({row["subject"] for row in rows}) == len(rows)
    assert {seq: rows[seq]["subject"] for seq in told} == told
    assert len(told) > KILLS
