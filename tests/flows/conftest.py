"""Flows that ran once, on a Prefect server of their own, for all tests that ask what its API tells of them."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from segments import put_segment, step_rows

SECRET = "q8Zr3xKpW1vT6yLmN4cJ9sHd2fGb7aQe"
SCENARIO = Path(__file__).parents[1] / "support/flow_scenario.py"


@dataclass(frozen=True)
class Scenario:
    """Where flows ran, and what the server told afterwards."""

    folder: Path
    told: dict

    def run(self, what):
        """Return the first run of a flow whose name begins so."""
        runs = sorted(self.told["flow_runs"], key=lambda one: one["start_time"])
        return next(one for one in runs if one["name"].startswith(what))

    def tasks(self, what):
        """Return the task runs of that run, in the order of their beginning."""
        name = self.run(what)["id"]
        runs = [one for one in self.told["task_runs"] if one["flow_run_id"] == name]
        return sorted(runs, key=lambda one: one["start_time"])

    def pages(self, key):
        """Return what artifacts of a key's beginning hold, the oldest first."""
        found = [one for one in self.told["artifacts"] if (one["key"] or "").startswith(key)]
        return [one["data"] for one in sorted(found, key=lambda one: one["created"])]

    def said(self, what):
        """Return what the run logged, as (logger, text, whether a task said it)."""
        name = self.run(what)["id"]
        logs = [one for one in self.told["logs"] if one["flow_run_id"] == name]
        return [(one["name"], one["message"], bool(one["task_run_id"])) for one in logs]


@pytest.fixture(scope="session")
def scenario(tmp_path_factory):
    """Run the flows of `flow_scenario` over two ranks of 50 steps, one of which was recorded twice.

    They run once for all workers of the suite: whoever asks first runs them, and others wait.
    """
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    folder = place / "flows"
    with (place / "flows.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "told.json").exists():
            play(folder)
    return Scenario(folder, json.loads((folder / "told.json").read_text()))


def play(folder):
    """Run them in a folder, anew where that was broken off, and leave there what the server told."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    spool = folder / "spool"
    for rank in range(2):
        put_segment(spool, step_rows(50, rank=rank, incarnation=7 + rank))
    put_segment(spool, step_rows(1, rank=0, incarnation=9))  # a step of rank 0 for the second time
    config = folder / "ranklake.toml"
    config.write_text(
        f'[storage]\naws_secret_access_key = "{SECRET}"\n[report]\nout = "{folder}/site"\nurl = "https://pages/ml/"\n'
    )
    command = [sys.executable, str(SCENARIO), *map(str, (folder, folder / "lake", spool, f"file:{config}"))]
    environment = {**os.environ, "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true"}  # as a user may have set it
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=420, check=False)
    assert done.returncode == 0, done.stderr
