"""``ranklake up`` for real: one of them for all tests here. `tests/crash/test_up_kills.py` kills what it runs."""

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import libfaketime
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from segments import put_segment, step_rows
from serving import PATIENCE_S, Up, wait_for
from stores import Proxy, Store, moto_server, s3_storage, sent

from ranklake.cli import run
from ranklake.flows.deploy import ENVIRONMENT, NAME, register_automation
from ranklake.flows.deployments import DEPLOYMENTS
from ranklake.flows.serving.runs import collapse_overdue
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

SECRET = "q8Zr3xKpW1vT6yLmN4cJ9sHd2fGb7aQe"
ELSEWHERE = "planted9vXs2LkQw7TzR4mB8nYc5HdJ1"
PLANTED = "planted7uWq3Zk8RtY5pLm2Xc6VbN4gHj9"
ENVIRON = {"AWS_SECRET_ACCESS_KEY": ELSEWHERE, "PREFECT_SERVER_METRICS_ENABLED": "true"}
pytestmark = pytest.mark.up
CANCEL = {"state": {"type": "CANCELLED"}, "force": True}
LEAKY = pytest.mark.leaky("Prefect's client starts a thread with an event loop that stays as long as the process")


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """Return one that is ready; it has a segment to bring in, and secrets in its configuration and environment."""
    folder = tmp_path_factory.mktemp("up")
    put_segment(folder / "spool", step_rows(50))
    (folder / "ranklake.toml").write_text(
        f'lake.uri = "{folder}/lake"\nspool.uri = "{folder}/spool"\nstorage.aws_secret_access_key = "{SECRET}"\n'
    )
    found = Up.start(folder, "--every-s", "3600", environment=ENVIRON)
    try:
        found.ready()
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def lake(up):
    """Return the lake once the first run of the pipeline, which makes it, has come to its end."""

    def completed():
        return [one for one in up.runs("pipeline") if one["state_type"] == "COMPLETED"]

    wait_for("a run of the pipeline", completed, 2 * PATIENCE_S)  # of all its tasks; SQLite may be busy for a minute
    return Lake.open(str(up.folder / "lake"))


def test_all_deployments_are_served(up):
    """Every deployment is there with its schedule, one run at a time, parameters described and no secret in them."""
    there = up.deployments()
    assert {one.name for one in DEPLOYMENTS} == set(there)
    for one in DEPLOYMENTS:
        assert one.name in up.out()
        served = there[one.name]
        assert bool(served["schedules"]) == bool(one.schedule)
        assert served["global_concurrency_limit"]["limit"] == 1
        assert served["concurrency_options"]["collision_strategy"] == "ENQUEUE"
        described = served["parameter_openapi_schema"]["definitions"]["FlowSettings"]["properties"]
        assert all(parameter["description"] for parameter in described.values())
    assert there["deep-check"]["parameters"]["with_scrub"] is True


def test_the_server_answers_prometheus_where_it_was_asked_to(up):
    """A setting of the user's that counts, of all of Prefect's."""
    answer = httpx.get(f"http://127.0.0.1:{up.port}/api/metrics", timeout=60)
    assert answer.status_code == httpx.codes.OK
    assert "python_info" in answer.text


@pytest.mark.timeout(600)
def test_what_lies_in_the_spool_is_brought_in_without_a_hand(lake):
    """The pipeline runs at once: rows are in the lake, checked and rolled up."""
    assert read(lake.tables, contract("steps")).num_rows == 50
    assert read(lake.tables, contract("step_rollup")).num_rows == 50
    assert read(lake.tables, contract("quality_results")).num_rows


def test_the_scheduler_plans_runs(up):
    """Runs of scheduled deployments are planned ahead; those by name only have none."""
    wait_for("a planned run", lambda: [one for one in up.runs("upkeep") if one["state_type"] == "SCHEDULED"])
    assert not up.runs("rollup")


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("lake")
def test_a_broken_configuration_fails_the_run_and_no_more(up):
    """While `up` runs, the file is edited into nonsense: the run fails with the line and the mend; the next goes on."""
    file = up.folder / "ranklake.toml"
    before = file.read_text()
    file.write_text(f"{before}dask.worker = 2\n")
    broken = up.run("catalog")
    wait_for("the end of the run", lambda: up.state(broken) == "FAILED")
    file.write_text(before)
    message = up.ask(f"flow_runs/{broken}")["state"]["message"]
    assert "unknown key 'worker'" in message
    assert "did you mean 'workers'?" in message
    mended = up.run("catalog")
    wait_for("the next run", lambda: up.state(mended) == "COMPLETED")


def test_a_password_in_a_parameter_is_refused_before_it_is_stored(up):
    """Who asks for a run by the API with a password in a URI, or options for a reference, is refused by the server."""
    found = up.deployments()["check"]["id"]
    for name, given in [
        ("lake", f"s3://key:{PLANTED}@bucket/lake"),
        ("dask_address", f"tls://u:{PLANTED}@host:8786"),
        ("storage", f'{{"aws_secret_access_key": "{PLANTED}"}}'),
        ("storage", {"aws_secret_access_key": PLANTED}),
    ]:
        body = {"parameters": {"settings": {name: given}}}
        answer = httpx.post(
            f"http://127.0.0.1:{up.port}/api/deployments/{found}/create_flow_run", json=body, timeout=60
        )
        assert answer.status_code in {httpx.codes.CONFLICT, httpx.codes.UNPROCESSABLE_ENTITY}, name


@LEAKY
def test_late_runs_collapse_to_one(server):
    """Of six runs that came due while nobody was there, `up` leaves the newest when it starts."""
    worker = server.child("worker")
    found = server.deployments()["upkeep"]["id"]
    worker.suspend()
    try:
        now = datetime.now(UTC)
        window = {"start_time": (now - timedelta(days=6)).isoformat(), "end_time": now.isoformat()}
        server.ask(f"deployments/{found}/schedule", **window, min_runs=6, max_runs=6)
        overdue = [one for one in server.runs("upkeep") if one["expected_start_time"] < datetime.now(UTC).isoformat()]
        assert len(overdue) == 6

        async def collapse():
            async with get_client() as client:
                return await collapse_overdue(client, [UUID(found)])

        assert asyncio.run(collapse()) == (5, {UUID(found)})
        after = {one["id"]: one["state"] for one in server.runs("upkeep")}
        assert [one["id"] in after for one in overdue] == [False] * 5 + [True]
        assert after[overdue[-1]["id"]]["type"] == "SCHEDULED"
        wait_for("the end of it", lambda: server.asked(f"flow_runs/{overdue[-1]['id']}/set_state", **CANCEL))
    finally:
        worker.resume()


@pytest.fixture
def server(up, monkeypatch):
    """Make the server the one that Prefect's settings name; it has pools of two types."""
    url = f"http://127.0.0.1:{up.port}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    pools = (("pods", "kubernetes"), ("elsewhere", "prefect:managed"), ("idle", "process"))
    for name, kind in pools:
        if up.asked(f"work_pools/{name}") is None:
            wait_for("a pool", lambda name=name, kind=kind: up.asked("work_pools/", name=name, type=kind))
    with temporary_settings({PREFECT_API_URL: url}):
        yield up


def deploy(capsys, *options):
    """Run the command here; return its exit code, and what it printed and told."""
    capsys.readouterr()
    code = run(["deploy", "--lake", "s3://bucket/lake", "--spool", "s3://bucket/spool", *options])
    return code, *capsys.readouterr()


@LEAKY
def test_deployments_are_registered_on_a_pool_of_an_existing_server(server, capsys):
    """All are created, with the image and references for parameters; again, and they are updated and nothing else."""
    options = ("--pool", "pods", "--image", "registry/ranklake:1", "--name", "prod", "--config", "/etc/ranklake.toml")
    code, out, _ = deploy(capsys, *options, "--dry-run")
    assert (code, out.count("would be created")) == (0, len(DEPLOYMENTS))
    assert not [name for name in server.deployments() if name.startswith("prod-")]
    assert deploy(capsys, *options, "--json")[0] == 0
    first = server.deployments()
    assert {f"prod-{one.name}" for one in DEPLOYMENTS} <= set(first)
    made = first["prod-pipeline"]
    assert made["work_pool_name"] == "pods"
    assert made["job_variables"] == {"image": "registry/ranklake:1", "env": ENVIRONMENT}
    assert made["parameters"]["settings"]["config"] == "/etc/ranklake.toml"
    code, out, _ = deploy(capsys, *options)
    assert (code, out.count("updated")) == (0, len(DEPLOYMENTS))
    second = server.deployments()
    assert {name: one["id"] for name, one in first.items()} == {name: one["id"] for name, one in second.items()}
    assert all(len(one["schedules"]) == len(first[name]["schedules"]) for name, one in second.items())


@LEAKY
def test_the_doctor_names_a_pool_that_nobody_polls(server, capsys):
    """Runs of a deployment would wait there for ever; the pool of this `up` is polled."""
    assert deploy(capsys, "--pool", "pods", "--image", "registry/ranklake:1", "--name", "prod")[0] == 0
    run(["doctor", "--json"])
    lines = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "prefect-runs"]
    pools = [one["what"] for one in lines if "nobody polls" in one["what"]]
    assert pools == ["nobody polls the pool pods: its runs wait"], lines


@LEAKY
def test_a_run_whose_process_is_gone_is_ended_by_an_automation(server, capsys):
    """`deploy` makes one automation, however often it runs; it marks a run without heartbeats Crashed."""
    for _ in range(2):
        assert deploy(capsys, "--pool", "idle", "--name", "zombies")[0] == 0
    (made,) = [one for one in server.asked("automations/filter", limit=50) if one["name"] == NAME]
    assert made["enabled"]
    assert made["trigger"]["within"] == 90
    deployment = server.deployments()["zombies-pipeline"]
    assert deployment["job_variables"]["env"] == {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}

    async def lose_a_run():
        async with get_client() as client:
            await register_automation(client, within_s=10)
            lost = await client.create_flow_run_from_deployment(UUID(deployment["id"]))
            for kind in (StateType.PENDING, StateType.RUNNING):
                await client.set_flow_run_state(lost.id, State(type=kind), force=True)
            return str(lost.id)

    lost = asyncio.run(lose_a_run())
    tag = {"prefect.resource.id": "prefect.tag.ranklake", "prefect.resource.role": "tag"}
    event = {"event": "prefect.flow-run.heartbeat", "resource": {"prefect.resource.id": f"prefect.flow-run.{lost}"}}
    event |= {"id": str(uuid4()), "occurred": datetime.now(UTC).isoformat(), "related": [tag]}
    httpx.post(f"http://127.0.0.1:{server.port}/api/events", json=[event], timeout=30).raise_for_status()
    wait_for("the end of the run", lambda: server.state(lost) == "CRASHED")
    assert "sends no heartbeat" in server.ask(f"flow_runs/{lost}")["state"]["message"]

    async def as_it_was():  # runs of later tests are given as long as all others
        async with get_client() as client:
            await register_automation(client)

    asyncio.run(as_it_was())


@LEAKY
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("lake")
def test_runs_that_come_due_while_one_runs_leave_no_trace(up):
    """One run waits for the one in flight, does the work of all that came due, and none of them ends Cancelled."""
    found = up.deployments()["catalog"]["id"]
    lost = up.run("catalog")
    wait_for("the end of the run before", lambda: up.state(lost) == "COMPLETED")
    now = datetime.now(UTC)
    window = {"start_time": (now - timedelta(days=6)).isoformat(), "end_time": now.isoformat()}
    up.ask(f"deployments/{found}/schedule", **window, min_runs=6, max_runs=6)

    def left():
        runs = [one for one in up.runs("catalog") if one["auto_scheduled"]]
        due = [one for one in runs if datetime.fromisoformat(one["expected_start_time"]) < now]
        return due if due and all(one["state_type"] not in {"SCHEDULED", "PENDING", "RUNNING"} for one in due) else []

    due = wait_for("the end of what came due", left, 2 * PATIENCE_S)
    assert {one["state_type"] for one in due} == {"COMPLETED"}
    assert len(due) < 6


@LEAKY
def test_a_deployment_that_this_version_cannot_run_is_paused(server, capsys):
    """One that an older version registered, with a parameter that is gone or a flow: told and paused, no more."""
    made = server.deployments()["prod-check"]
    old = {name: made[name] for name in ("flow_id", "tags", "entrypoint", "work_pool_name", "parameters")}
    every = [{"active": True, "schedule": {"interval": 86_400}}]
    gone = {"parameters": {**old["parameters"], "with_profile": True}}
    for name, other in {"gone-parameter": gone, "gone-flow": {"entrypoint": "ranklake.flows.ingest:flow"}}.items():
        wait_for(
            "it", lambda name=name, other=other: server.asked("deployments/", name=name, schedules=every, **old | other)
        )
    code, out, _ = deploy(capsys, "--pool", "pods", "--image", "registry/ranklake:1", "--name", "prod", "--json")
    told = {one["name"]: one["action"] for one in json.loads(out)["deployments"]}
    assert code == 0
    assert told["gone-parameter"] == "paused: there is no parameter with_profile any more"
    assert told["gone-flow"] == "paused: there is no flow ranklake.flows.ingest:flow any more"
    after = server.deployments()
    assert [name for name, one in after.items() if one["paused"]] == ["gone-flow", "gone-parameter"]
    assert after["gone-parameter"]["parameters"] == gone["parameters"]


@LEAKY
def test_what_cannot_be_deployed_is_refused_in_one_line(server, capsys):
    """No such pool, one of another kind, one that needs an image, a name that another lake's deployment has."""
    before = {name: one["updated"] for name, one in server.deployments().items()}
    for options, told in [
        (("--pool", "nowhere"), "prefect work-pool create nowhere"),
        (("--pool", "elsewhere"), "is a work pool of type prefect:managed"),
        (("--pool", "pods"), "--image"),
        (("--pool", "ranklake"), "a deployment of this name is for another lake; give these another name by --name"),
    ]:
        code, _, errors = deploy(capsys, *options)
        assert code == 2
        assert errors.count("\n") == 1
        assert told in errors
    assert {name: one["updated"] for name, one in server.deployments().items()} == before


@LEAKY
def test_a_deployment_of_somebody_else_is_left_alone(server, capsys):
    """One of the same name that does not carry our tag stays as it is, and none of the others is written."""
    flow = server.deployments()["check"]["flow_id"]
    wait_for("theirs", lambda: server.asked("deployments/", name="their-check", flow_id=flow, tags=["theirs"]))
    code, _, errors = deploy(capsys, "--pool", "ranklake", "--name", "their")
    assert code == 2
    assert "ranklake-check/their-check: a deployment of this name is not ranklake's" in errors
    assert [name for name in server.deployments() if name.startswith("their-")] == ["their-check"]


@LEAKY
def test_deployments_without_a_lake_are_told(server, capsys):
    """What `prefect deploy` registered names no lake: nothing is taken over, and the line says how to mend it."""
    made = server.deployments()["prod-check"]
    bare = {name: made[name] for name in ("flow_id", "entrypoint")}
    wait_for("it", lambda: server.asked("deployments/", name="bare-check", tags=["ranklake"], **bare))
    code, _, errors = deploy(capsys, "--pool", "ranklake", "--name", "bare")
    assert code == 2
    assert "`prefect deploy` registered it, and no lake is named there; prefect deployment delete" in errors


@pytest.mark.timeout(900)
def test_a_store_that_may_only_be_read(up, tmp_path):
    """While its bucket refuses writes a run fails with the place and the reason; nothing is lost, the next goes on."""
    put_segment(tmp_path / "spool", step_rows(30))
    file = up.folder / "ranklake.toml"
    before = file.read_text()
    with moto_server(tmp_path) as url, Proxy(url) as proxy:
        options = "".join(f'storage.{name} = "{value}"\n' for name, value in s3_storage(proxy.url).items())
        sent(Store("s3://bucket/spool", s3_storage(url)), tmp_path / "spool")
        Lake.create("s3://bucket/lake", s3_storage(url))
        file.write_text(f'lake.uri = "s3://bucket/lake"\nspool.uri = "s3://bucket/spool"\n{options}')
        try:
            proxy.rule = lambda one: 403 if one.method in {"PUT", "POST"} and "/lake/" in one.path else None
            refused = up.run("ingest")
            wait_for("the end of the run", lambda: up.state(refused) == "FAILED", 2 * PATIENCE_S)
            told = up.ask(f"flow_runs/{refused}")["state"]["message"]
            assert "s3://bucket/lake" in told
            assert "\n" not in told
            assert s3_storage(url)["aws_secret_access_key"] not in told
            proxy.rule = None
            again = up.run("ingest")
            wait_for("the next run", lambda: up.state(again) == "COMPLETED", 2 * PATIENCE_S)
        finally:
            file.write_text(before)
        assert read(Lake.open("s3://bucket/lake", s3_storage(url)).tables, contract("steps")).num_rows == 30


def test_a_port_that_is_taken_is_told_in_one_line(up, tmp_path):
    """Another home on the port of the first: exit code 2, the address, the reason and the mend; the first goes on."""
    (tmp_path / "ranklake.toml").write_text(f'lake.uri = "{tmp_path}/lake"\nspool.uri = "{tmp_path}/spool"\n')
    second = Up.start(tmp_path, port=up.port)
    assert second.process.wait(60) == 2
    (line,) = second.out().splitlines()
    assert f"127.0.0.1:{up.port}: cannot listen there (Address already in use)" in line
    assert "--port" in line
    assert up.asked("health")


def test_a_second_one_is_refused_by_the_first_ones_pid(up):
    """Another one on the same home ends at once with one line."""
    second = Up.start(up.folder, port=up.port)
    assert second.process.wait(60) == 2
    assert f"ranklake up runs here already (process {up.process.pid} " in up.out()


def test_only_loopback_is_listened_at(up):
    """The server listens at 127.0.0.1 alone, and the home is for this user alone."""
    listening = {one.laddr for one in up.child("uvicorn").net_connections() if one.status == "LISTEN"}
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert up.home.stat().st_mode & 0o077 == 0


def test_ctrl_c_leaves_nothing_behind(up):
    """Ctrl-C while a run is in flight: exit code 0, no process left, the run is cancelled, no secret in any file."""
    run = up.run("check")
    wait_for("a run in flight", lambda: up.state(run) in {"PENDING", "RUNNING"})
    assert up.stop(signal.SIGINT) == 0
    assert not up.members()
    assert "is cancelled" in up.out()
    kept = [path for path in [*up.home.rglob("*"), up.folder / "out"] if path.is_file()]
    for secret in (SECRET, ELSEWHERE, PLANTED):
        assert not [path for path in kept if secret.encode() in path.read_bytes()]


@pytest.mark.timeout(900)
def test_a_clock_that_jumps(tmp_path):
    """Set forward by 12 hours, 24 runs are due at once: one makes up for all, and the schedule goes on from there."""
    library = next(Path(libfaketime.__file__).parent.rglob("libfaketime.so.1"))
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    put_segment(tmp_path / "spool", step_rows(50))
    (tmp_path / "ranklake.toml").write_text(f'lake.uri = "{tmp_path}/lake"\nspool.uri = "{tmp_path}/spool"\n')
    # Threads wait by the clock that is not faked; without the last of these each wait of Python's is a busy one.
    faked = {"FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    faked |= {"LD_PRELOAD": str(library), "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
    found = Up.start(tmp_path, "--every-s", "1800", environment=faked)
    later = datetime.now(UTC) + timedelta(hours=12)

    def runs(*states, since=None):
        told = [one for one in found.runs("pipeline") if one["state_type"] in states]
        begins = [datetime.fromisoformat(one["start_time"] or one["expected_start_time"]) for one in told]
        return [one for one, begin in zip(told, begins, strict=True) if since is None or begin > since]

    try:
        found.ready()
        wait_for("the first run", lambda: runs("COMPLETED"), 2 * PATIENCE_S)
        put_segment(tmp_path / "spool", step_rows(50, rank=1, incarnation=8))
        clock.write_text("+12h\n")
        wait_for("a run that makes up for all", lambda: runs("COMPLETED", since=later), 2 * PATIENCE_S)
        assert read(Lake.open(str(tmp_path / "lake")).tables, contract("steps")).num_rows == 100
        assert len(runs("COMPLETED", "RUNNING", since=later)) == 1, "a storm"
        wait_for("runs that are planned from there on", lambda: runs("SCHEDULED", since=later))
        hung_up = signal.SIGHUP if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else signal.SIGTERM  # under nohup
        assert found.stop(hung_up) == 0
        assert "stopping" in found.out()
        assert not found.members()
    finally:
        found.kill()


def test_another_lake_on_the_same_home_is_refused(up):
    """A home serves one lake: with another one `up` ends with one line that says what to name, and leaves nothing."""
    if up.process.poll() is None:
        up.stop()
    said = len(up.out())
    second = Up.start(up.folder, "--lake", str(up.folder / "other"), port=up.port)
    assert second.process.wait(PATIENCE_S) == 2
    last = up.out()[said:].splitlines()[-1]
    assert "a deployment of this name is for another lake; a home serves one lake: name another by --home" in last
    assert not up.members()
    assert not (up.folder / "other").exists()
