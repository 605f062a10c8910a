"""A compiled training under torchrun: the parts of its start are those of the training's own clock."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake

CHILD = Path(__file__).with_name("startup_child.py")


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Train two ranks with one restart; return the lake, rank 0's notes of each attempt, and when torchrun started."""
    place = tmp_path_factory.mktemp("startup")
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(CHILD)]
    command += [str(place / "spool"), str(place / "local"), str(place)]
    launched_ns = time.time_ns()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lake = Lake.create(str(place / "lake"))
    ingest(lake, Spool(str(place / "spool")), InProcess())
    run_rollups(lake)
    notes = [json.loads((place / f"notes-a{attempt}-r0.json").read_text()) for attempt in range(2)]
    return lake, notes, launched_ns


def parts_of(lake, attempt):
    """Return {part: seconds} of an attempt's start, which add up to it."""
    rows = query(lake, f"SELECT * FROM goodput_daily WHERE attempt = {attempt}").to_pylist()
    (whole,) = query(lake, f"SELECT init_ns + restart_ns AS ns FROM goodput WHERE attempt = {attempt}").to_pylist()
    parts = {}
    for row in rows:
        if row["start_part"] is not None:
            ns = row["init_ns"] + row["restart_ns"]
            assert ns == row["wall_ns"] > 0
            parts[row["start_part"]] = parts.get(row["start_part"], 0) + ns
    assert sum(parts.values()) == whole["ns"]
    return {part: ns / 1e9 for part, ns in parts.items()}


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.parametrize("attempt", [0, 1])
def test_a_start_is_told_by_its_parts(started, attempt):
    """Each attempt has its own: nothing is longer than it was, and a named part is as long as it was."""
    lake, notes, _ = started
    parts = parts_of(lake, attempt)
    notes = notes[attempt]
    took = {part: (pair[1] - pair[0]) / 1e9 for part, pair in notes.items() if part != "capture"}
    assert parts["tokenizer"] == pytest.approx(took["tokenizer"], abs=0.2)
    assert parts["imports"] > 0.5
    assert 0.2 * took["distributed"] < parts["distributed"]
    steps = [length for part, length in took.items() if part.startswith("step")]
    assert 0 < parts["compile"] + parts.get("first_step", 0) < steps[0] + 0.3
    assert {"before_capture", "capture", "compile", "imports", "distributed", "tokenizer"} <= parts.keys()
    assert ("downtime" in parts) == (attempt == 1)


@pytest.mark.frameworks
@pytest.mark.slow
def test_a_run_begins_when_its_process_does(started):
    """Not when it imports us; not before it was launched."""
    lake, notes, launched_ns = started
    (row,) = query(lake, "SELECT ts FROM goodput WHERE attempt = 0").to_pylist()
    began_ns = row["ts"].timestamp() * 1e9
    assert launched_ns - 2e7 < began_ns < notes[0]["capture"]
    before = parts_of(lake, 0)["before_capture"] + parts_of(lake, 0)["capture"]
    assert before == pytest.approx((notes[0]["capture"] - began_ns) / 1e9, abs=0.3)
