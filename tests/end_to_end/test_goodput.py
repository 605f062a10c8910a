"""A training that is killed and goes on: what the pipeline says was lost is what the training's own clock says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake

CHILD = Path(__file__).with_name("goodput_child.py")
KINDS = ("init", "productive", "checkpoint", "evaluation", "restart", "lost_work", "stall", "unattributed")
RESUMED = 5
"""Step after the checkpoint that the second attempt starts from; the kill comes in step 8."""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Train two ranks under torchrun with one restart; return the lake and rank 0's own notes of each attempt."""
    place = tmp_path_factory.mktemp("goodput")
    (place / "own").mkdir()
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(CHILD)]
    command += [str(place / name) for name in ("spool", "local", "own")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lake = Lake.create(str(place / "lake"))
    ingest(lake, Spool(str(place / "spool")), InProcess())
    run_rollups(lake)
    notes = []
    for attempt in range(2):
        lines = (place / "own" / f"notes-a{attempt}-r0.jsonl").read_text().splitlines()
        notes.append({line[0]: line[1:] for line in map(json.loads, lines)})
    return lake, notes


def ns(moment):
    """Return nanoseconds since 1970 of a time with microseconds."""
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000


@pytest.mark.frameworks
@pytest.mark.slow
def test_lost_work_and_restart_of_a_killed_run(told):
    """Steps 5 to 8 are lost, the restart lasts until step 5 begins again; all kinds add up, to the nanosecond."""
    lake, (first, second) = told
    dead, alive = query(lake, "SELECT * FROM goodput ORDER BY attempt").to_pylist()
    for row in (dead, alive):
        assert sum(row[f"{kind}_ns"] for kind in KINDS) == row["wall_ns"]
    assert dead["status"] in {"failed", "abandoned"}  # whether rank 0 sees the broken connection or SIGTERM first
    assert alive["status"] == "finished"
    assert (dead["steps"] - dead["steps_lost"], alive["steps"]) == (RESUMED, 9)
    assert (dead["checkpoints"], alive["checkpoints"], alive["steps_lost"]) == (1, 1, 0)

    def within(attempt, steps):
        return sum(attempt[step][2] - attempt[step][1] for step in steps)

    def around(attempt, steps):
        return sum(attempt[step][3] - attempt[step][0] for step in steps)

    lost = range(RESUMED, 8)  # of step 8, which it was killed in, the child says nothing
    assert within(first, lost) - 1000 <= dead["lost_work_ns"] <= ns(dead["end_ts"]) - first[RESUMED][0]
    assert dead["productive_ns"] <= around(first, range(RESUMED))
    begin, held = first["checkpoint"]
    assert dead["checkpoint_ns"] <= held - begin
    start = ns(alive["ts"]) + alive["restart_ns"]
    assert second[RESUMED][0] - 1000 <= start <= second[RESUMED][1]
    assert alive["ts"] == dead["end_ts"]
    assert 0 < alive["downtime_ns"] < alive["restart_ns"]
    assert alive["tokens"] == 9 * 1000 * 2


@pytest.mark.frameworks
@pytest.mark.slow
def test_the_run_as_a_whole(told):
    """The run's row is the sum of its attempts: one failure in the time under way, two checkpoints."""
    lake, _ = told
    attempts = query(lake, "SELECT * FROM goodput").to_pylist()
    (run,) = query(lake, "SELECT * FROM run_goodput").to_pylist()
    for name in ("wall_ns", "downtime_ns", "steps", "steps_lost", *(f"{kind}_ns" for kind in KINDS)):
        assert run[name] == sum(row[name] for row in attempts), name
    assert (run["status"], run["restarts"], run["failures"], run["checkpoints"]) == ("finished", 1, 1, 2)
    assert run["mttf_s"] == pytest.approx((run["wall_ns"] - run["downtime_ns"]) / 1e9)
    assert run["device_s"] == pytest.approx(2 * run["under_way_ns"] / 1e9)
    assert run["time_to_train_ns"] == run["wall_ns"] - run["init_ns"]
    assert json.loads(run["unavailable"]).keys() == {"queue_ns"}
    (epoch,) = query(lake, "SELECT sum(steps) AS steps FROM goodput_daily WHERE epoch = 1").to_pylist()
    assert epoch["steps"] == 4
