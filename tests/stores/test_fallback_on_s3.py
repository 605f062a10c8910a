"""A spool in one store and its fallback in another: the first goes away and comes back, agents are killed meanwhile."""

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from stores import KEY, SECRET, Proxy, Store, moto_server, s3_storage

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.read import read

pytestmark = pytest.mark.moto
RANK = """
import os, signal, sys
from ranklake import capture
run = capture.start(job="j", run=sys.argv[1])
for number in range(30):
    with run.step(number): pass
os.kill(os.getpid(), signal.SIGKILL)
"""
CONFIG = """
[lake]
uri = "{lake}"
[spool]
uri = "s3://bucket/spool"
local = "{local}"
fallback_uri = "s3://bucket/elsewhere"
fallback_after_s = {after_s}
[spool.fallback_storage]
aws_endpoint_url = "{second}"
aws_secret_access_key = "env:SECOND_SECRET"
[storage]
aws_access_key_id = "{key}"
aws_secret_access_key = "env:FIRST_SECRET"
aws_region = "us-east-1"
aws_endpoint_url = "{first}"
aws_allow_http = "true"
[capture]
encryption_key = "file:{keys}"
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Give a function that writes ranklake.toml, the proxy before the first store, and the fallback spool."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    keys, local = tmp_path / "keys", tmp_path / "local"
    keys.write_text(base64.b64encode(bytes(range(32))).decode())
    keys.chmod(0o600)
    local.mkdir()
    for name in ("RANKLAKE_SPOOL", "RANKLAKE_LOCAL_SPOOL", "RANKLAKE_LAKE"):
        monkeypatch.delenv(name, raising=False)
    with moto_server(tmp_path / "one") as one, moto_server(tmp_path / "two") as two, Proxy(one) as proxy:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FIRST_SECRET", SECRET)
        monkeypatch.setenv("SECOND_SECRET", SECRET)

        def configure(after_s):
            named = {"lake": tmp_path / "lake", "local": local, "keys": keys, "key": KEY, "after_s": after_s}
            text = CONFIG.format(**named, first=proxy.url, second=two)
            (tmp_path / "ranklake.toml").write_text(text)

        yield configure, proxy, Store("s3://bucket/elsewhere", s3_storage(two))


def record(name):
    """Have a run record, and die before it sends anything."""
    env = os.environ | {"RANKLAKE_NATIVE": "0"}
    subprocess.run([sys.executable, "-c", RANK, name], check=False, env=env)


def agent(*options):
    """Start the agent."""
    command = [sys.executable, "-m", "ranklake", "agent", "--no-sample", "--json", "--interval-s", "0.1", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def answer_of(args, capsys):
    """Run a command with --json; return what it says."""
    capsys.readouterr()
    code = run([*args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def steps(tmp_path):
    """Return the steps in the lake, each as often as it is there."""
    rows = read(Lake.open(str(tmp_path / "lake")).tables, contract("steps"), ["run", "step"]).to_pylist()
    return sorted((row["run"], row["step"]) for row in rows)


def test_a_store_that_goes_away_and_comes_back(site, tmp_path, capsys):
    """All goes to the other store, encrypted, by its own credentials; later rows to the first; stored once."""
    configure, proxy, second = site
    configure(1.0)
    proxy.rule = lambda _: "reset"
    record("away")
    process = agent("--spool", "s3://bucket/spool")
    deadline = time.monotonic() + 120
    while not second.contents():
        assert time.monotonic() < deadline, process.poll()
        time.sleep(0.1)
    proxy.rule = None
    record("back")
    while list((tmp_path / "local" / "back").rglob("*.*")):
        assert time.monotonic() < deadline + 120
        time.sleep(0.1)
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert SECRET not in said
    assert sum(json.loads(line).get("fallback", 0) for line in said.splitlines()) > 0
    assert all(b"away" not in raw for raw in second.contents().values() if b"PAR1" in raw)
    code, done = answer_of(["ingest"], capsys)
    assert (code, done["moved"] > 0, done["rows_duplicate"], done["held"]) == (0, True, 0, {})
    assert second.contents() == {}
    assert steps(tmp_path) == sorted((run, step) for run in ("away", "back") for step in range(30))
    code, state = answer_of(["status"], capsys)
    assert code == 0, state


@pytest.mark.slow
def test_agents_killed_between_the_two_uploads(site, tmp_path, capsys):
    """SIGKILL at random while the first store takes, refuses, or takes and denies PUTs: each row is stored once."""
    configure, proxy, second = site
    configure(0.0)
    rng = random.Random(int(os.environ.get("RANKLAKE_SEED", "11")))
    proxy.rule = lambda seen: rng.choice(["late", "reset", 503, None]) if seen.method == "PUT" else None
    kills, names = 0, []
    while kills < 8:
        names.append(f"run-{len(names)}")
        record(names[-1])
        puts = len(proxy.puts())
        process = agent("--once", "--spool", "s3://bucket/spool")
        while len(proxy.puts()) == puts and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.2))  # between the first upload and what comes after it
        killed = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += killed
    names.append("last")
    record("last")
    proxy.rule = lambda seen: 503 if seen.method == "PUT" else None
    process = agent("--once", "--spool", "s3://bucket/spool")
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert second.contents()
    proxy.rule = None
    code, done = answer_of(["ingest"], capsys)
    assert code == 0, done
    assert steps(tmp_path) == sorted((run, step) for run in names for step in range(30))
    assert answer_of(["status"], capsys)[0] == 0
