"""The warm process of ``ranklake up``: what it forks is as if it had been started by itself."""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import psutil
import pytest
from serving import wait_for

from ranklake.flows.serving import warm

WARM = [sys.executable, "-m", "ranklake.flows.serving.warm"]
MODULE = """
    import json, os, pathlib, signal, sys, time
    how, *rest = sys.argv[1:]
    variables = [os.environ.get(name) for name in ("MARKED", "LEFT")]
    print(json.dumps([how, rest, os.getcwd(), *variables, "json" in sys.modules, __name__]), flush=True)
    if how == "wait":
        pathlib.Path(rest[0]).write_text(str(os.getpid()))
        time.sleep(600)
    if how == "term":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        pathlib.Path(rest[0]).write_text(str(os.getpid()))
        time.sleep(600)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "raise":
        raise ValueError("planted")
    sys.exit(int(rest[0]))
"""


@pytest.fixture
def home(tmp_path):
    """Give a home with a long path that has a warm process, and a module to run in it."""
    made = tmp_path / ("long" * 30)
    made.mkdir()
    (tmp_path / "planted_module.py").write_text(textwrap.dedent(MODULE))
    environment = {**os.environ, "LEFT": "of the warm process, and of no run"}
    process = subprocess.Popen([*WARM, "serve", str(made), "decimal"], cwd=tmp_path, env=environment)
    (tmp_path / "warm").write_text(str(process.pid))
    wait_for("its socket", lambda: is_answered(made))
    yield made
    process.kill()
    process.wait()


def is_answered(home):
    """Whether the warm process of a home takes connections."""
    try:
        with socket.socket(socket.AF_UNIX) as probe, warm._socket_path(str(home)) as place:
            probe.connect(place)
    except OSError:
        return False
    return True


def ask(home, *arguments, **options):
    """Start a client, and return it."""
    environment = {**os.environ, "MARKED": "yes", "PYTHONPATH": str(home.parent)}
    command = [*WARM, "run", str(home), "planted_module", *arguments]
    return subprocess.Popen(
        command, cwd=home.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def code_of(client):
    """Wait for a client and for whoever has its streams, and return its exit code."""
    client.communicate(timeout=240)
    return client.returncode


def pid_of(file):
    """Return the process that a run has written down."""
    return int(wait_for("the run", lambda: file.exists() and file.read_text()))


def test_a_run_is_as_if_started_by_itself(home):
    """Arguments, folder, environment, streams and exit code are the client's; a crash is one, and the next run goes."""
    for how, code in (("exit", 0), ("exit", 5), ("crash", -signal.SIGSEGV), ("raise", 1), ("exit", 0)):
        client = ask(home, how, str(code))
        out, err = client.communicate(timeout=240)
        assert client.returncode == code, err
        assert out == f'["{how}", ["{code}"], "{home.parent}", "yes", null, true, "__main__"]\n'
        assert ("ValueError: planted" in err) is (how == "raise")
        assert (not err) is (how != "raise")


def test_signals_reach_the_run_and_its_end_reaches_the_client(home, tmp_path):
    """SIGTERM is the run's to answer; a client that is killed takes its run along, one that is not stays."""
    client = ask(home, "term", str(tmp_path / "one"))
    pid_of(tmp_path / "one")
    client.terminate()
    assert code_of(client) == 7
    killed, left = ask(home, "wait", str(tmp_path / "two")), ask(home, "wait", str(tmp_path / "three"))
    runs = [pid_of(tmp_path / name) for name in ("two", "three")]
    killed.kill()
    assert code_of(killed) == -signal.SIGKILL
    wait_for("the end of the run", lambda: not psutil.pid_exists(runs[0]))
    assert psutil.pid_exists(runs[1])
    os.kill(runs[1], signal.SIGKILL)
    assert code_of(left) == -signal.SIGKILL


def test_without_a_warm_process_the_client_becomes_the_run(home, tmp_path):
    """Runs of a warm process that is killed end with it; whoever comes after runs by itself."""
    client = ask(home, "wait", str(tmp_path / "one"))
    run = pid_of(tmp_path / "one")
    os.kill(pid_of(tmp_path / "warm"), signal.SIGKILL)
    assert code_of(client) == -signal.SIGKILL
    wait_for("the end of the run", lambda: not psutil.pid_exists(run))
    after = ask(home, "exit", "5")
    assert after.communicate(timeout=240)[0].startswith('["exit", ["5"]')
    assert after.returncode == 5


def test_once_packages_were_installed_clients_are_their_runs(home, tmp_path):
    """A run that was forked goes on, the next one is the client itself, and the warm process ends after the last."""
    left = ask(home, "wait", str(tmp_path / "one"))
    run = pid_of(tmp_path / "one")
    folder = Path(sysconfig.get_path("purelib"))
    (folder / "planted-1.0.dist-info").mkdir()
    (folder / "planted-1.0.dist-info").rmdir()
    after = ask(home, "wait", str(tmp_path / "two"))
    assert pid_of(tmp_path / "two") == after.pid
    os.kill(after.pid, signal.SIGKILL)
    code_of(after)
    assert psutil.pid_exists(run)
    os.kill(run, signal.SIGKILL)
    assert code_of(left) == -signal.SIGKILL
    wait_for("the end of the warm process", lambda: not is_answered(home))


def test_a_client_that_says_nothing_holds_up_nobody(home):
    """One that is gone at once, and one that sends no descriptors: the next is answered."""
    for said in (b"", b"\0\0\0\2{}"):
        with socket.socket(socket.AF_UNIX) as mute, warm._socket_path(str(home)) as place:
            mute.connect(place)
            mute.sendall(said)
    assert code_of(ask(home, "exit", "0")) == 0
