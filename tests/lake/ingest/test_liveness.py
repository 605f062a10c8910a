"""Who trains, who hangs and who is dead: ranks that are killed, stopped and stuck, seen through the lake."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bringing import bring
from click.testing import CliRunner

from ranklake.capture.recover import recover
from ranklake.commands.status import status
from ranklake.lake.contracts import contract
from ranklake.lake.ingest.status.liveness import liveness
from ranklake.lake.tables.read import read

CHILD = Path(__file__).parents[2] / "capture" / "lifecycle_child.py"
INTERVAL_S = 0.5


class Cluster:
    """Ranks on this machine, their spool and their lake."""

    def __init__(self, folder, lake, spool):
        self.lake, self.spool, self.place, self.local = lake, spool, str(folder / "spool"), folder / "local"
        self.ranks = {}

    def start(self, rank, how, world_size=1):
        """Start a rank and wait until it is at it."""
        command = [sys.executable, str(CHILD), how, self.place, str(self.local)]
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "RANKLAKE_RUN": "run",
            **dict.fromkeys(("RANKLAKE_CAPTURE_HEARTBEAT_EVERY_S", "RANKLAKE_CAPTURE_SEAL_EVERY_S"), str(INTERVAL_S)),
        }
        self.ranks[rank] = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.ranks[rank].stdout.readline() == "ready\n"

    def states(self):
        """Ingest, and return the states of the ranks as of the last that was heard of any of them.

        A busy machine brings late what the ranks said: by its own clock, those that train would look silent, too.
        """
        bring(self.lake, self.spool)
        heard = [one.heard for one in liveness(self.lake) if one.heard is not None]
        return {one.rank: one for one in liveness(self.lake, now=max(heard, default=None))}

    def until(self, wanted, within_s=300.0):
        """Ingest again and again until all states are as wanted; return them."""
        deadline = time.monotonic() + within_s
        while True:
            states = self.states()
            found = {rank: one.state for rank, one in states.items()}
            if found == wanted:
                return states
            assert time.monotonic() < deadline, found
            time.sleep(INTERVAL_S / 4)  # the ranks want the core, too


@pytest.fixture
def cluster(tmp_path, lake, spool):
    """Give a cluster; its ranks are killed when the test ends."""
    made = Cluster(tmp_path, lake, spool)
    yield made
    for process in made.ranks.values():
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_the_dead_the_hung_and_the_stopped_are_told_apart(cluster):
    """Rank 0 trains, 1 hangs, 2 is killed, 3 is stopped and 4 never came; stopped, a rank goes on where it was."""
    for rank, how in enumerate(("trains", "hangs", "trains", "trains")):
        cluster.start(rank, how, world_size=5)
    cluster.until({0: "running", 1: "hung", 2: "running", 3: "running", 4: "missing"})
    cluster.ranks[2].kill()
    cluster.ranks[3].send_signal(signal.SIGSTOP)
    states = cluster.until({0: "running", 1: "hung", 2: "silent", 3: "silent", 4: "missing"})
    assert states[1].still_s > 3 * INTERVAL_S >= states[1].unheard_s
    assert states[2].unheard_s >= 3 * INTERVAL_S  # told to the millisecond
    assert states[4].heard is None
    asked = CliRunner().invoke(
        status, ["--lake", str(cluster.lake.uri), "--spool", cluster.place, "--ranks"], standalone_mode=False
    )
    assert asked.return_value == 1
    # by the machine's own clock: where it is busy ranks 0 and 1 may be late
    assert re.search(r"run run attempt 0: (1 hung, )?1 missing, (1 running, )?[234] silent", asked.output)
    assert "rank 2 silent: last heard of" in asked.output
    cluster.ranks[3].send_signal(signal.SIGCONT)
    cluster.until({0: "running", 1: "hung", 2: "silent", 3: "running", 4: "missing"})
    cluster.ranks[1].terminate()
    cluster.ranks[1].wait()
    recover(cluster.local, cluster.place)
    cluster.until({0: "running", 1: "preempted", 2: "abandoned", 3: "running", 4: "missing"})


@pytest.mark.slow
def test_a_rank_that_trains_hardly_beats(cluster):
    """Its segments are its signs of life: of ten heartbeats one is written. One that hangs writes each."""
    cluster.start(0, "trains", world_size=2)
    cluster.start(1, "hangs", world_size=2)
    cluster.until({0: "running", 1: "hung"})
    beats = [
        row["rank"] for row in read(cluster.lake.tables, contract("events")).to_pylist() if row["event"] == "heartbeat"
    ]
    assert beats.count(1) >= 3
    assert beats.count(0) <= 1 + beats.count(1) // 9
