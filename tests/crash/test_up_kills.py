"""What ``ranklake up`` runs is killed piece by piece; one of them for all tests here."""

from datetime import UTC, datetime

import pytest
from segments import put_segment, step_rows
from serving import Up, wait_for

from ranklake.flows.deployments import DEPLOYMENTS
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """Return one that is ready; it has a lake with a segment in it."""
    folder = tmp_path_factory.mktemp("up")
    put_segment(folder / "spool", step_rows(50))
    ingest(Lake.create(str(folder / "lake")), Spool(str(folder / "spool")), InProcess())
    (folder / "ranklake.toml").write_text(f'lake.uri = "{folder}/lake"\nspool.uri = "{folder}/spool"\n')
    found = Up.start(folder, "--every-s", "3600")
    try:
        found.ready()
        yield found
    finally:
        found.kill()


def test_a_killed_server_is_started_again(up):
    """The server is killed: it is told, another one answers, and what was registered is still there."""
    up.child("uvicorn").kill()
    wait_for("the news", lambda: "server killed by SIGKILL" in up.out())
    wait_for("another server", lambda: up.asked("health"))
    assert {one.name for one in DEPLOYMENTS} <= set(up.deployments())


def test_a_killed_worker_leaves_no_run_in_running(up):
    """The worker is killed with a run in flight, which is marked Crashed. The next one completes, but not at once.

    It waits while another drives the lake, as the one that was killed did, and goes on as soon as the lake is free.
    """
    (mark,) = [tag for tag in up.deployments()["ingest"]["tags"] if tag.startswith("lake:")]
    body = {"slots": 1, "names": [mark.removeprefix("lake:")], "mode": "concurrency"}
    lease = wait_for("the lake", lambda: up.asked("v2/concurrency_limits/increment-with-lease", **body))["lease_id"]
    lost = up.run("ingest")
    wait_for("a run that waits", lambda: up.state(lost) == "RUNNING")
    up.child("worker").kill()
    wait_for("the end of what was lost", lambda: up.state(lost) == "CRASHED")
    following = up.run("ingest")
    wait_for("another run that waits", lambda: up.state(following) == "RUNNING")
    free = datetime.now(UTC)
    up.ask("v2/concurrency_limits/decrement-with-lease", lease_id=lease)
    wait_for("the next run", lambda: up.state(following) == "COMPLETED")
    tasks = up.ask("task_runs/filter", flow_runs={"id": {"any_": [following]}})
    assert tasks
    assert min(datetime.fromisoformat(one["start_time"]) for one in tasks) > free


def test_a_killed_run_leaves_no_sub_flow_in_running(up):
    """The process of a pipeline's run is killed: the run ends Crashed, and so does what was begun below it."""
    of_pipeline = {"deployments": {"name": {"any_": ["pipeline"]}}}
    wait_for("the end of the first run", lambda: up.runs("pipeline") and not begun(up, of_pipeline))
    killed = up.run("pipeline")
    below = {"flow_runs": {"parent_flow_run_id": {"any_": [killed]}}}
    wait_for("a sub-flow at work", lambda: [one for one in begun(up, below) if one["state_type"] == "RUNNING"])
    for one in up.members():
        if "prefect.engine" in " ".join(one.cmdline()):
            one.kill()
    wait_for("the end of the run", lambda: up.state(killed) == "CRASHED")
    wait_for("the end of what is below it", lambda: up.asked("flow_runs/filter", **below) and not begun(up, below))


def begun(up, body):
    """Return the runs of a query that are begun and not ended."""
    return [one for one in up.asked("flow_runs/filter", **body) or [] if one["state_type"] in {"PENDING", "RUNNING"}]
