"""Prefect's database is lost: it has no data of the lake, so a new home goes on where the last left off."""

import shutil

import pytest
from segments import put_segment, step_rows
from serving import Up, wait_for

from ranklake.flows.deployments import DEPLOYMENTS
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

pytestmark = pytest.mark.up


def ingested(up):
    """Have the deployment ingest run, and wait until it is completed."""
    up.ready()
    run = up.run("ingest")
    wait_for("the run", lambda: up.state(run) in {"COMPLETED", "FAILED", "CRASHED"})
    assert up.state(run) == "COMPLETED", up.out()


def test_a_new_database_goes_on_after_the_last_plan(tmp_path):
    """The home is deleted with its database; all deployments are there again, and the next segment comes in once."""
    (tmp_path / "ranklake.toml").write_text(f'lake.uri = "{tmp_path}/lake"\nspool.uri = "{tmp_path}/spool"\n')
    for segment in range(2):
        put_segment(tmp_path / "spool", step_rows(50, segment=segment), rows_before=50 * segment)
        (tmp_path / "out").unlink(missing_ok=True)
        up = Up.start(tmp_path, "--every-s", "3600")
        try:
            ingested(up)
            assert {deployment.name for deployment in DEPLOYMENTS} == set(up.deployments())
        finally:
            up.kill()
        shutil.rmtree(tmp_path / "home")
    lake = Lake.open(str(tmp_path / "lake"))
    assert len(read(lake.tables, contract("steps"))) == 100
    assert [fault for item in balance(lake) for fault in item.faults] == []
