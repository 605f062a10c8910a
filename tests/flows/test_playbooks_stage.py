"""The pipeline's playbooks for real: Prefect flows over a lake whose rows lead to an incident, and two at once."""

import subprocess
import sys

import pyarrow as pa
import pytest
from segments import put_segment, step_rows

from ranklake.lake.audit.trail import trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

BOOK = """
version: 1
playbooks:
  stop:
    where: {detector: non_finite, severity: [error, critical]}
    reason: A run that lost its way costs by the hour.
    owner: training
    steps:
      - name: pause
        command: [sh, -c, 'echo "$INCIDENT_RUN" >> ran']
        allow: true
"""
PIPELINE = """
import sys, time
from pathlib import Path
from ranklake.flows.embedded import run_pipeline
from ranklake.flows.settings import FlowSettings
from ranklake.pipeline.playbooks.running import Runner

folder, name, names = Path(sys.argv[1]), sys.argv[2], sys.argv[2:]
planned = Runner.plan

def meet(runner):
    # all have planned the same step before anyone claims it
    states = planned(runner)
    (folder / f"{name}.planned").touch()
    deadline = time.monotonic() + 300
    while not all((folder / f"{each}.planned").exists() for each in names):
        assert time.monotonic() < deadline, "the other pipeline never came to its playbooks"
        time.sleep(0.01)
    return states

Runner.plan = meet
settings = FlowSettings(str(folder / "lake"), str(folder / "spool"), config=str(folder / "ranklake.toml"))
run_pipeline(settings, folder / f"prefect-{name}")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give a folder with a lake, a run whose loss is no number from step 20 on in its spool, and a playbook."""
    folder = tmp_path_factory.mktemp("playbooks")
    rows = step_rows(60)
    losses = [None if step >= 20 else loss for step, loss in enumerate(rows["loss"].to_pylist())]
    flags = ["loss:nan" if loss is None else None for loss in losses]
    for name, values in (("loss", losses), ("non_finite", flags)):
        column = rows.schema.field(name)
        rows = rows.set_column(rows.schema.names.index(name), column, pa.array(values, column.type))
    put_segment(folder / "spool", rows)
    Lake.create(str(folder / "lake"))
    (folder / "books").mkdir()
    (folder / "books/stop.yaml").write_text(BOOK)
    return folder


def run(folder, act, *names):
    """Run pipelines of these names at once, each with a Prefect server of its own."""
    text = f'[playbooks]\nfiles = "{folder}/books"\nact = {act}\nmax_age_h = 1000000\n'
    (folder / "ranklake.toml").write_text(text)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PIPELINE, str(folder), name, *(each for each in names if each != name)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for process in processes:
        _, errors = process.communicate(timeout=400)
        assert process.returncode == 0, errors


def audited(folder):
    """Return what the audit log has of playbooks, in order."""
    rows = trail(Lake.open(str(folder / "lake")).tables)
    return [row["action"] for row in rows if row["action"].startswith("playbook.")]


@pytest.mark.slow
def test_dry_then_two_at_once(folder):
    """Without `act` the step is proposed, and nothing runs; with it two pipelines at once start its command once."""
    run(folder, "false", "dry")
    (incident,) = read(Lake.open(str(folder / "lake")).tables, contract("incidents")).to_pylist()
    assert (incident["kind"], incident["run"]) == ("non_finite", "r1")
    assert audited(folder) == ["playbook.propose"]
    assert not (folder / "books/ran").exists()
    run(folder, "true", "left", "right")
    assert audited(folder) == ["playbook.propose", "playbook.claim", "playbook.outcome"]
    assert (folder / "books/ran").read_text().splitlines() == ["r1"]
