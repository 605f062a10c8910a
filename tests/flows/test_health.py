"""What `/healthz` and `/metrics` answer: of real child processes and real looks, without a server of Prefect's."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from receivers import serve
from segments import put_segment, step_rows
from serving import free_port, wait_for
from stores import s3_storage

from ranklake.capture.node.endpoint import Endpoint
from ranklake.config.settings import HealthSection
from ranklake.flows.serving import health as serving
from ranklake.flows.serving.child import Child
from ranklake.flows.serving.health import Health
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.health.declaration import Sample
from ranklake.pipeline.health.problems import problems

HOME = Path("/nowhere")
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def environment(tmp_path):
    """Give an environment in which nothing of this machine is configured."""
    given = ("RANKLAKE_", "PREFECT_", "AWS_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(given)}
    return {**clean, "HOME": str(tmp_path), "RANKLAKE_LOCAL_SPOOL": str(tmp_path / "local")}


@pytest.fixture
def lake(tmp_path):
    """Give the options of a look at a lake into which a segment came."""
    put_segment(tmp_path / "spool", step_rows(10, start=datetime.now(UTC)))
    ingest(Lake.create(str(tmp_path / "lake")), Spool(str(tmp_path / "spool")), InProcess())
    return ["--lake", str(tmp_path / "lake"), "--spool", str(tmp_path / "spool")]


async def children(environment):
    """Return a server and a worker that do nothing, started."""
    result = {name: Child(name, SLEEP, environment, lambda _: None) for name in ("server", "worker")}
    for child in result.values():
        await child.start()
    return result


async def stopped(some):
    """End them."""
    for child in some.values():
        await child.stop(0)


def healthz(health):
    """Return the status, and what is wrong by check."""
    answer = health.answer("/healthz")
    facts = json.loads(answer.body)
    assert facts["healthy"] is (answer.status == 200)
    return int(answer.status), {each["check"]: each["what"] for each in facts["problems"]}


def test_a_worker_that_is_stopped_or_dead_is_told_at_once(environment, lake):
    """SIGSTOP, SIGCONT, SIGKILL: each shows without a further look, in health and metrics alike."""

    def up(health, child):
        samples = [sample for family in text_string_to_metric_families(health.answer("/metrics").body.decode())
                   for sample in family.samples]  # fmt: skip
        return next(one.value for one in samples if one.name == "ranklake_child_up" and one.labels["child"] == child)

    async def check():
        some = await children(environment)
        health = Health(some, HOME, lake, environment, HealthSection())
        try:
            assert healthz(health) == (503, {"look": "the first look is not over yet"})
            await health.look()
            assert healthz(health) == (200, {})
            assert b'ranklake_ingest_rows_total{fate="stored"} 10.0' in health.answer("/metrics").body
            worker = psutil.Process(some["worker"].process.pid)
            worker.send_signal(signal.SIGSTOP)
            wait_for("the stop", lambda: worker.status() == psutil.STATUS_STOPPED)
            assert f"kill -CONT {worker.pid}" in healthz(health)[1]["worker"]
            assert (up(health, "worker"), up(health, "server")) == (0, 1)
            worker.send_signal(signal.SIGCONT)
            wait_for("its end", lambda: worker.status() != psutil.STATUS_STOPPED)
            assert healthz(health) == (200, {})
            worker.kill()
            await some["worker"].process.wait()
            assert healthz(health)[1] == {"worker": "the worker is dead, and is started again"}
        finally:
            await stopped(some)

    asyncio.run(check())


def test_a_lake_that_is_gone_is_told(environment, lake, tmp_path):
    """The folder is moved away: the next look says that there is no lake; when it is back, all is well."""

    async def check():
        health = Health({}, HOME, lake, environment, HealthSection())
        await health.look()
        assert healthz(health) == (200, {})
        (tmp_path / "lake").rename(tmp_path / "elsewhere")
        await health.look()
        status, wrong = healthz(health)
        assert (status, set(wrong)) == (503, {"lake"})
        (tmp_path / "elsewhere").rename(tmp_path / "lake")
        await health.look()
        assert healthz(health) == (200, {})

    asyncio.run(check())


def test_a_store_that_hangs_hangs_no_scrape(environment, tmp_path):
    """While a look waits for a store that never answers, a scrape is answered; then the lake is down."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        storage = s3_storage(f"http://127.0.0.1:{server.getsockname()[1]}")
        lines = ["[storage]", *(f"{key} = {json.dumps(value)}" for key, value in storage.items())]
        (tmp_path / "ranklake.toml").write_text("\n".join(lines) + "\n")
        environment["RANKLAKE_CONFIG"] = str(tmp_path / "ranklake.toml")
        health = Health({}, HOME, ["--lake", "s3://bucket/lake", "--limit-s", "2"], environment, HealthSection())

        async def check():
            look = asyncio.create_task(health.look())
            await asyncio.sleep(0.1)
            with Endpoint(0, health.answer) as endpoint:
                reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
                writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
                assert b"200 OK" in await reader.readline()
                assert not look.done()
                writer.close()
            await look

        asyncio.run(check())
    status, wrong = healthz(health)
    assert status == 503
    assert "no answer within 2 s" in wrong["lake"]


def test_a_look_that_never_ends_is_killed(environment, lake, monkeypatch):
    """Its process is gone afterwards, and health says that nothing is known; the last look's figures stay."""
    monkeypatch.setattr(serving, "LIMIT_S", 0.5)
    mark = {"RANKLAKE_TEST_LOOK": str(os.getpid())}

    async def check():
        health = Health({}, HOME, lake, {**environment, **mark}, HealthSection())
        health._command = list(SLEEP)  # the look hangs where no time limit of its own helps
        await health.look()
        assert "did not end within" in healthz(health)[1]["look"]

    asyncio.run(check())
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            left += [process] if process.environ().get("RANKLAKE_TEST_LOOK") == str(os.getpid()) else []
    assert not left


def test_a_broken_configuration_is_told(environment, lake, tmp_path):
    """A look that cannot begin says why: the line of the file, not a traceback."""
    (tmp_path / "ranklake.toml").write_text("[lake]\nurl = 'x'\n")
    environment["RANKLAKE_CONFIG"] = str(tmp_path / "ranklake.toml")
    health = Health({}, HOME, lake, environment, HealthSection())
    asyncio.run(health.look())
    assert "ranklake.toml:2" in healthz(health)[1]["look"]


RULES = """
version: 1
rules: {pipeline: {source: pipeline, where: {kind: prefect}, owner: o, summary: s}}
receivers: {team: {url: "env:TEAM_URL"}}
heartbeat: {url: "env:HEARTBEAT_URL"}
routes: [{receivers: [team]}]
"""


@pytest.mark.slow
def test_receivers_are_told_once_while_no_flow_can_run(environment, lake, tmp_path):
    """No server answers: after two looks a round of alerts says so, once, and sends no heartbeat."""
    with serve() as team, serve() as heartbeat:
        (tmp_path / "alerts.yaml").write_text(RULES)
        (tmp_path / "ranklake.toml").write_text(f'alerts.file = "{tmp_path}/alerts.yaml"\n')
        environment |= {
            "RANKLAKE_CONFIG": str(tmp_path / "ranklake.toml"), "PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api",
            "TEAM_URL": f"json://127.0.0.1:{team.port}/", "HEARTBEAT_URL": f"{heartbeat.url}/",
        }  # fmt: skip
        health = Health({}, HOME, lake, environment, HealthSection(every_s=1))

        def looked_again():
            looks.add(health._looked_ts)
            return len(looks) > 2

        async def check():
            looking = asyncio.create_task(health.keep_looking())
            await asyncio.to_thread(wait_for, "a message", lambda: team.requests)
            await asyncio.to_thread(wait_for, "two more looks", looked_again)
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

        looks = set()
        asyncio.run(check())
    (told,) = team.requests
    assert "The Prefect server does not answer" in told.json["message"]
    assert not heartbeat.requests


def test_nothing_else_is_answered():
    """Other paths are not found; a query behind a path changes nothing."""
    health = Health({}, HOME, [], {}, HealthSection())
    assert health.answer("/") is None
    assert health.answer("/healthz?x=1") is not None


@given(free=st.floats(0, 1e12), size=st.floats(1, 1e12), ratio=st.floats(0, 0.99))
def test_a_disk_is_full_below_its_share(free, size, ratio):
    """Full is what has less than the share free, whatever the sizes; unknown and empty disks are not."""
    label = {"place": "lake"}
    samples = [Sample("lake_up", 1), Sample("disk_free_bytes", free, label), Sample("disk_size_bytes", size, label)]
    assert bool(problems(samples, ratio)) is (free / size < ratio)
    assert not problems([Sample("lake_up", 1), Sample("disk_free_bytes", None, label)], ratio)


def test_each_problem_says_what_and_since_when():
    """A stage that is overdue, a pool that nobody polls, a server that does not answer; unknown is none of them."""
    samples = [
        Sample("lake_up", 1),
        Sample("stage_overdue", 1, {"stage": "check"}),
        Sample("stage_waiting_seconds", 7200, {"stage": "check"}),
        Sample("stage_overdue", 0, {"stage": "rollup"}),
        Sample("prefect_up", 0),
        Sample("pool_polled", 0, {"pool": "gpu"}),
    ]
    assert [(each.check, each.since_s) for each in problems(samples, 0.05)] == [
        ("prefect", None), ("pool", None), ("stage", 7200),
    ]  # fmt: skip
    assert not problems([Sample("lake_up", 1), Sample("prefect_up", None)], 0.05)
    (gone,) = problems([Sample("lake_up", 0), Sample("collector_success", 0, {"collector": "lake"}, "no bucket")], 0.05)
    assert gone.message == "no bucket"
