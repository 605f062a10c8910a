"""The flows, for real: a Prefect server, a Dask cluster, a Delta lake."""

import asyncio
import subprocess
import sys

import pytest
from segments import put_segment, step_rows

from ranklake.flows.calls import Settings, ingest_once
from ranklake.flows.retrying import may_pass
from ranklake.lake.contracts.load import contract
from ranklake.lake.read import read
from ranklake.lake.store import Lake, LakeUnreachableError, NotALakeError

EMBEDDED = """
import json, sys
from pathlib import Path
from ranklake.flows.calls import Settings
from ranklake.flows.embedded import run_pipeline
if __name__ == "__main__":
    print(json.dumps(run_pipeline(Settings(sys.argv[1], sys.argv[2]), Path(sys.argv[3])), default=str))
"""


@pytest.mark.slow
def test_the_embedded_pipeline_runs_on_prefect_and_dask(tmp_path):
    """The pipeline flow brings segments into the lake, checks them and rolls them up, with a server of its own."""
    spool, home = tmp_path / "spool", tmp_path / "prefect"
    for rank in range(2):
        put_segment(spool, step_rows(50, rank=rank, incarnation=7 + rank))
    command = [sys.executable, "-c", EMBEDDED, str(tmp_path / "lake"), str(spool), str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    lake = Lake.open(str(tmp_path / "lake"))
    assert read(lake, contract("steps")).num_rows == 100
    assert read(lake, contract("step_rollup")).num_rows == 50
    assert read(lake, contract("quality_results")).num_rows > 0
    assert list(home.glob("*.db")), "Prefect kept its database where it was told"


def test_calls_need_no_prefect(tmp_path):
    """The plain calls work in a process that never imports Prefect."""
    code = (
        "import sys; from ranklake.flows.calls import Settings, ingest_once;"
        "assert 'prefect' not in sys.modules and 'great_expectations' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class _State:
    def __init__(self, error):
        self.error = error

    async def aresult(self, *, raise_on_failure):
        assert not raise_on_failure
        return self.error


@pytest.mark.parametrize(
    ("error", "again"),
    [(LakeUnreachableError("x"), True), (NotALakeError("x"), False), (ConnectionResetError(), True)],
)
def test_only_what_may_pass_is_tried_again(error, again):
    """An outage is tried again; a lake that is none is not."""
    assert asyncio.run(may_pass(None, None, _State(error))) is again


@pytest.mark.leaky("the first process that Dask starts brings a resource tracker, and a pipe to it, that stay")
def test_ingest_once_is_repeatable(tmp_path):
    """Calling the ingest of a flow twice stores rows once and says that the second found nothing."""
    put_segment(tmp_path / "spool", step_rows(10))
    settings = Settings(str(tmp_path / "lake"), str(tmp_path / "spool"), dask_workers=1)
    assert ingest_once(settings)["rows_stored"] == 10
    assert ingest_once(settings)["plans"] == []
