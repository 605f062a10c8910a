"""An erasure reaches into the database of a Prefect server that runs: nothing of the person, all of the others."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
from governed import any_rows
from serving import free_port, wait_for
from subjects import ADA, EMAIL, GRACE, VALUES

from ranklake.lake.ingest.spool.spool import Spool
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.search import search
from ranklake.retention.erasure.subject import Reach, subject_of

FLOWS = """
import sys
from prefect import flow, task, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.variables import Variable

@task(persist_result=True)
def greet(who):
    return {"who": who}

@flow(flow_run_name="{who}-nightly", persist_result=True)
def retrain(who, mail):
    get_run_logger().info("asked for by %s", mail)
    create_markdown_artifact(f"| who |\\n|---|\\n| {who} |", key="who")
    return greet(who)

for who, mail in zip(sys.argv[1::2], sys.argv[2::2]):
    retrain(who, mail)
    Variable.set("owner_" + who.partition(".")[0] + "s_team", who, overwrite=True)
"""


@contextmanager
def server(home):
    """Run a Prefect server of one's own on a database in a folder; give its address, and the environment of clients."""
    url = f"http://127.0.0.1:{(port := free_port())}/api"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLI_PROMPT": "false",
        "DO_NOT_TRACK": "1",
    }
    words = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    child = subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_for("the server", lambda: is_up(url), 240)
        yield url, {**environment, "PREFECT_API_URL": url}
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait(60)


def is_up(url):
    """Say whether a server answers."""
    try:
        return httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


def asked(url, what):
    """Return what the server tells of all things of a kind."""
    return httpx.post(f"{url}/{what}/filter", json={}, timeout=60).raise_for_status().json()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_person_is_erased_from_the_database_of_a_server_that_runs(site):
    """Runs, their parameters, logs, artifacts, variables, results: the server goes on, and tells of the others."""
    site.bring(any_rows("runs", 1, run="exp-1", incarnation=5, user=[ADA]), "runs")
    home = site.folder / "prefect"
    with server(home) as (url, environment):
        people = [ADA, EMAIL, GRACE, "grace@navy.example"]
        subprocess.run([sys.executable, "-c", FLOWS, *people], env=environment, check=True, capture_output=True)

        def told():
            return {what: json.dumps(asked(url, what)) for what in ("flow_runs", "logs", "artifacts", "variables")}

        wait_for("all that was told", lambda: all(ADA in one or EMAIL in one for one in told().values()), 120)
        reach = Reach(site.lake, Spool(str(site.spool)), (home,))
        before = search(site.lake, reach.spool, VALUES, [home])  # in tables, or in bytes of what is not there yet
        assert any(one.place.startswith("files below") for one in before.traces)
        subject = subject_of(site.lake, VALUES)
        made = make_plan(reach, subject)
        propose(site.lake, made, "Petra")
        approve(site.lake, made.name, "Anna")
        done = apply(reach, made.name, subject, "Otto")
        assert done.certificate.is_clean, done.certificate.facts["search"]
        after = told()
        assert not any(ADA in one or EMAIL in one for one in after.values())
        assert {one["name"] for one in asked(url, "flow_runs")} == {
            f"{GRACE}-nightly",
            f"{subject.pseudonym}-nightly",
        }
        assert "grace@navy.example" in after["logs"]
        assert GRACE in after["variables"]
        again = [sys.executable, "-c", FLOWS, GRACE, "grace@navy.example"]
        subprocess.run(again, env=environment, check=True, capture_output=True)
        assert len(asked(url, "flow_runs")) == 3
    for path in home.rglob("*"):
        assert not path.is_file() or not any(value.encode() in path.read_bytes() for value in VALUES), path
