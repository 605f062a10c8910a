"""``ranklake up`` on a real PostgreSQL that goes away in the middle of a run: `make test-postgres`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from postgres import HINT, Postgres, programs
from segments import put_segment, step_rows
from serving import PATIENCE_S, Up, wait_for

from ranklake.flows.deployments import DEPLOYMENTS
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(programs() is None, reason=f"no PostgreSQL is here; {HINT}"),
    pytest.mark.timeout(1200),
]
DEPLOY = Path(__file__).parents[2] / "docs/deploy/prefect.yaml"


@pytest.fixture(scope="module")
def database():
    """Give a database that runs."""
    found = Postgres()
    found.start()
    yield found
    found.end()


@pytest.fixture(scope="module")
def up(database, tmp_path_factory):
    """Give one that keeps its runs there, and runs the pipeline often."""
    folder = tmp_path_factory.mktemp("up")
    put_segment(folder / "spool", step_rows(50))
    (folder / "ranklake.toml").write_text(f'lake.uri = "{folder}/lake"\nspool.uri = "{folder}/spool"\n')
    environment = {"DATABASE": database.address}
    found = Up.start(folder, "--every-s", "30", "--database", "env:DATABASE", environment=environment)
    try:
        found.ready()
        yield found
    finally:
        found.kill()


def completed(up):
    """Return the ids of the pipeline's runs that completed."""
    return {one["id"] for one in up.runs("pipeline") if one["state_type"] == "COMPLETED"}


def test_a_database_that_goes_away_costs_nothing(up, database):
    """It is killed under a run, and comes back: that is told in one line, all rows are stored, and schedules go on."""
    wait_for("a run of the pipeline", lambda: completed(up), 2 * PATIENCE_S)
    put_segment(up.folder / "spool", step_rows(50, rank=1, incarnation=8))
    begun = wait_for("a run", lambda: [one for one in up.runs("pipeline") if one["state_type"] == "RUNNING"])
    before = completed(up)
    database.kill()
    wait_for("a word of it", lambda: "cannot reach its database" in up.out())
    database.start()
    wait_for("the next run", lambda: completed(up) - before - {one["id"] for one in begun}, 2 * PATIENCE_S)
    assert read(Lake.open(str(up.folder / "lake")).tables, contract("steps")).num_rows == 100

    def ended():
        return not [
            one for one in up.runs("pipeline") if one["id"] == begun[0]["id"] and one["state_type"] == "RUNNING"
        ]

    wait_for("the end of the run that was cut off", ended)


def test_prefects_own_deploy_takes_the_file_of_the_documentation(up, tmp_path):
    """`prefect deploy --all` with `docs/deploy/prefect.yaml` registers every deployment, schedules and limits too."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    told = {**clean, "PREFECT_API_URL": f"http://127.0.0.1:{up.port}/api", "PREFECT_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(DEPLOY)]
    done = subprocess.run(command, cwd=tmp_path, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    there = up.deployments()
    assert set(there) == {one.name for one in DEPLOYMENTS}
    for one in DEPLOYMENTS:
        assert there[one.name]["parameters"]["settings"]["config"] == "/etc/ranklake/ranklake.toml"
        assert bool(there[one.name]["schedules"]) == bool(one.schedule)
        assert there[one.name]["global_concurrency_limit"]["limit"] == 1
