"""The flows, for real: a Prefect server, a Dask cluster, a Delta lake."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing

import httpx
import pytest
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from segments import put_segment, step_rows

from ranklake.flows.retrying import may_pass
from ranklake.flows.settings import FlowSettings, StorageReferenceError, storage_options
from ranklake.flows.stage_flows import without_stored_exception
from ranklake.lake.contracts.load import contract
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError, NotALakeError
from ranklake.lake.tables.read import read
from ranklake.pipeline.calls import ingest_once
from ranklake.pipeline.stages import pipeline_once
from ranklake.quality.check import run_checks

SECRET = "q8Zr3xKpW1vT6yLmN4cJ9sHd2fGb7aQe"  # the scenario's, too


@pytest.mark.slow
def test_the_embedded_pipeline_runs_on_prefect_and_dask(scenario):
    """The pipeline flow ingests, checks, rolls up and checks again, with a server of its own.

    Where a check fails, the flows end Failed, after all stages ran; a credential among the storage options is in no
    byte that Prefect keeps. No result of a flow or task is kept, though the server's default is to keep all.
    """
    home = scenario.folder / "prefect"
    assert scenario.told["configurations"] == 1, "all steps of a pipeline read one"
    assert not scenario.told["done"]["check"]["passed"]
    lake = Lake.open(str(scenario.folder / "lake"))
    assert scenario.told["rows"] == {"steps": 101, "step_rollup": 50}, "before retention takes them"
    judged = set(read(lake.tables, contract("quality_results"))["table"].to_pylist())
    assert {"steps", "step_rollup", "goodput"} <= judged, "rollups are judged in the run that made them"
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]
    assert [path for path in kept if path.is_relative_to(home / "storage")] == []
    assert home.stat().st_mode & 0o077 == 0
    (database,) = home.glob("*.db")
    with closing(sqlite3.connect(database)) as base:
        rows = base.execute(
            "SELECT flow.name, flow_run.state_type FROM flow_run JOIN flow ON flow.id = flow_run.flow_id"
            " WHERE flow.name LIKE 'ranklake-%'"
        )
        ended = sorted(rows.fetchall())
    assert ended == [
        ("ranklake-catalog", "COMPLETED"),
        ("ranklake-check", "COMPLETED"),
        ("ranklake-check", "FAILED"),
        ("ranklake-ingest", "COMPLETED"),
        ("ranklake-pipeline", "FAILED"),
        ("ranklake-report", "COMPLETED"),
        ("ranklake-retention_apply", "COMPLETED"),
        ("ranklake-retention_apply", "FAILED"),
        ("ranklake-retention_plan", "COMPLETED"),
        ("ranklake-retention_plan", "COMPLETED"),
        ("ranklake-rollup", "COMPLETED"),
        ("ranklake-slo", "COMPLETED"),
    ]


@pytest.mark.slow
def test_the_pipeline_checks_rollups_that_it_made(tmp_path):
    """One call checks facts, rolls them up, and checks what came of them: nothing derived is left unjudged."""
    put_segment(tmp_path / "spool", step_rows(10))
    lake = Lake.create(str(tmp_path / "lake"))
    done = pipeline_once(FlowSettings(lake.uri, str(tmp_path / "spool")).context())
    derived = {rollup.name for rollup in ROLLUPS if read(lake.tables, contract(rollup.name)).num_rows}
    assert derived <= set(read(lake.tables, contract("quality_results"))["table"].to_pylist())
    assert done["check"]["checks"]["passed"] > 0
    again = run_checks(lake)
    assert again.partitions == 0, "nothing is left for the next call"


@pytest.mark.parametrize("given", [{"storage": {"aws_secret_access_key": SECRET}}, {"lake": f"s3://a:{SECRET}@b/c"}])
def test_parameters_take_no_secret(given):
    """Options in place of a reference, and a URI with credentials, are refused without being said again."""
    with pytest.raises(StorageReferenceError) as error:
        FlowSettings(**{"lake": "l", "spool": "s", **given})
    assert SECRET not in str(error.value)


def test_a_folder_of_any_name_is_no_credential():
    """Only what is a credential for sure is refused; a name that looks drawn at random is none."""
    for place in ("/tmp/s/tmp0y7_8vxj/lake", "s3://b/Xq7Tz9LmWp3RkV2cJdY8sNfH/lake", "/data/9fK2.mZ7qLxW4vTb/lake"):
        assert FlowSettings(lake=place, spool=place).lake == place
    for place in ("s3://b/lake?X-Amz-Signature=0123456789abcdef", "s3://b/ghp_16C7e42F292c6912E7710c838347Ae178B4a"):
        with pytest.raises(StorageReferenceError, match="a credential stands in a URI"):
            FlowSettings(lake="l", spool=place)


def test_options_are_read_where_they_are_needed(tmp_path, monkeypatch):
    """A file's section [storage] or a variable's JSON object; what gives none says so, and nothing that it read."""
    (tmp_path / "c.toml").write_text('[storage]\na = "b"\nn = 1\n')
    assert storage_options(f"file:{tmp_path}/c.toml") == {"a": "b", "n": "1"}
    monkeypatch.setenv("OPTIONS", '{"a": "b"}')
    assert FlowSettings("l", "s", storage="env:OPTIONS").context().config.storage == {"a": "b"}
    assert FlowSettings("l", "s").context().config.storage == {}
    monkeypatch.setenv("OPTIONS", SECRET)
    for reference in ("env:OPTIONS", "env:NOWHERE", "file:/nowhere", SECRET):
        with pytest.raises(StorageReferenceError) as error:
            storage_options(reference)
        assert SECRET not in str(error.value)


@pytest.mark.slow
def test_calls_need_no_prefect(tmp_path):
    """The plain calls work in a process that never imports Prefect."""
    code = (
        "import sys; from ranklake.pipeline.stages import pipeline_once;"
        "assert 'prefect' not in sys.modules and 'great_expectations' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class _State:
    def __init__(self, error):
        self.error = error

    async def aresult(self, *, raise_on_failure):
        assert not raise_on_failure
        return self.error


def _without_server():
    """Return what a task ends with whose server was killed: an error of Prefect's, and where it came from."""
    error = ConcurrencySlotAcquisitionError("Unable to acquire concurrency slots on ['tag:ranklake']")
    error.__cause__ = httpx.ConnectError("All connection attempts failed")
    error.__cause__.__cause__ = OSError("All connection attempts failed")
    return error


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (LakeUnreachableError("x"), True),
        (NotALakeError("x"), False),
        (ConnectionResetError(), True),
        (FileNotFoundError(), False),
        (TypeError(), False),
        (_without_server(), True),
    ],
)
def test_only_what_may_pass_is_tried_again(error, again):
    """An outage is tried again; a lake that is none is not."""
    assert asyncio.run(may_pass(None, None, _State(error))) is again


def test_a_server_that_is_gone_is_one_line_of_the_log(caplog):
    """What the flow's code raised comes with its traceback; that Prefect's server was killed does not."""

    @without_stored_exception
    async def run(error):
        raise error

    asyncio.run(run(_without_server()))
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.message.startswith("Prefect's server does not answer (All connection attempts failed); the next run")
    caplog.clear()
    asyncio.run(run(TypeError("of ours")))
    assert caplog.records[0].exc_info


@pytest.mark.slow
@pytest.mark.leaky("the first process that Dask starts brings a resource tracker, and a pipe to it, that stay")
def test_ingest_once_is_repeatable(tmp_path):
    """Calling the ingest of a flow twice stores rows once and says that the second found nothing."""
    put_segment(tmp_path / "spool", step_rows(10))
    settings = FlowSettings(str(tmp_path / "lake"), str(tmp_path / "spool"), dask_workers=1)
    assert ingest_once(settings.context())["rows_stored"] == 10
    assert ingest_once(settings.context())["plans"] == []
