"""`/metrics` and `/healthz` of a real `ranklake up`: what becomes of them when its worker, server and lake go."""

import json
import signal
import socket

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from segments import put_segment, step_rows
from serving import Up, free_port, wait_for

from ranklake.cli import run
from ranklake.flows.serving.up import POOL

pytestmark = pytest.mark.up


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """Return one that is ready, looks each three seconds, and has brought a segment in; and the port of its metrics."""
    folder = tmp_path_factory.mktemp("up")
    put_segment(folder / "spool", step_rows(50))
    (folder / "ranklake.toml").write_text(
        f'lake.uri = "{folder}/lake"\nspool.uri = "{folder}/spool"\nhealth.every_s = 3\n'
    )
    port = free_port()
    found = Up.start(folder, "--every-s", "3600", "--metrics-port", str(port))
    try:
        found.ready()
        yield found, f"http://127.0.0.1:{port}"
    finally:
        found.kill()


def healthz(url):
    """Return the status, and what is wrong by check."""
    answer = httpx.get(f"{url}/healthz", timeout=30)
    return answer.status_code, {each["check"]: each["what"] for each in answer.json()["problems"]}


def test_a_sound_one_is_healthy_and_its_figures_are_those_of_the_lake(up):
    """In the end nothing is wrong: the pool is polled, rows are counted, the last run of the pipeline did not fail."""
    up, url = up
    wait_for("the first run", lambda: [run for run in up.runs("pipeline") if run["state_type"] == "COMPLETED"])
    wait_for("health", lambda: healthz(url) == (200, {}))

    def figures():
        families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=30).text)
        return {(one.name.removeprefix("ranklake_"), *one.labels.values()): one.value
                for family in families for one in family.samples}  # fmt: skip

    wait_for("a look after the run", lambda: figures().get(("deployment_failed", "pipeline")) == 0)
    found = figures()
    assert found["ingest_rows_total", "stored"] == 50
    assert found["pool_polled", POOL] == 1
    assert found["spool_backlog_segments",] == 0
    assert (found["child_up", "server"], found["child_up", "worker"]) == (1, 1)
    assert found["disk_free_bytes", "home"] > 0


def test_the_doctor_is_a_deployment_that_fails_for_what_it_finds(up, monkeypatch, capsys):
    """Its run ends Failed and names the fault; metrics have it; the next doctor does not find its failure."""
    up, url = up
    file = up.folder / "ranklake.toml"
    before = file.read_text()
    file.write_text(f'{before}cost.prices = "/nowhere/prices.csv"\n')
    unsound = up.run("doctor")
    wait_for("its end", lambda: up.state(unsound) == "FAILED")
    file.write_text(before)
    assert "prices: " in up.ask(f"flow_runs/{unsound}")["state"]["message"]
    wait_for("the metric", lambda: 'deployment_failed{deployment="doctor"} 1.0' in httpx.get(f"{url}/metrics").text)
    monkeypatch.chdir(up.folder)
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{up.port}/api")
    run(["doctor", "--json", "--limit-s", "60"])
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "prefect-runs"]
    assert [one["state"] for one in found] == ["ok"], found


def test_a_worker_that_is_stopped_is_told_and_then_its_pool(up):
    """SIGSTOP shows at once; when its heartbeat is late, nobody polls the pool; SIGCONT ends both."""
    up, url = up
    worker = up.child("worker start")
    worker.send_signal(signal.SIGSTOP)
    wait_for("the worker", lambda: "is stopped" in healthz(url)[1].get("worker", ""))
    wait_for("the pool", lambda: f"no worker polls the pool {POOL}" in healthz(url)[1].get("pool", ""))
    worker.send_signal(signal.SIGCONT)
    wait_for("health", lambda: healthz(url) == (200, {}))


def test_a_server_that_is_stopped_or_killed_is_told(up):
    """A server that hangs hangs no answer; one that is killed is started again, and counted."""
    up, url = up
    server = up.child("uvicorn")
    server.send_signal(signal.SIGSTOP)
    wait_for("the server", lambda: {"server", "prefect"} <= healthz(url)[1].keys())
    server.kill()
    wait_for("health", lambda: healthz(url) == (200, {}))
    assert 'ranklake_child_restarts_total{child="server"} 1.0' in httpx.get(f"{url}/metrics", timeout=30).text


def test_a_lake_that_is_gone_is_told(up):
    """The lake's folder is moved away, as a mount that is lost, and back."""
    up, url = up
    (up.folder / "lake").rename(up.folder / "elsewhere")
    wait_for("the lake", lambda: "lake" in healthz(url)[1])
    (up.folder / "elsewhere").rename(up.folder / "lake")
    wait_for("health", lambda: healthz(url) == (200, {}))


def test_a_port_that_is_taken_is_refused_where_it_was_asked_for(up, tmp_path):
    """One line, exit code 2; the port by default costs the metrics alone, which `test_up` has in each of its lines."""
    (tmp_path / "ranklake.toml").write_text(f'lake.uri = "{tmp_path}/lake"\nspool.uri = "{tmp_path}/spool"\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        second = Up.start(tmp_path, "--metrics-port", str(port))
        assert second.process.wait(60) == 2
    assert f"127.0.0.1:{port}" in second.out()
    assert "--metrics-port" in second.out()


def test_it_ends_with_all_that_it_started(up):
    """Also while a look is under way: no process of it is left, and nobody answers any more."""
    up, url = up
    assert up.stop() == 0
    assert not up.members()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz", timeout=30)
