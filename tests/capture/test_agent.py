"""`ranklake agent`: adopts what the ranks of a node left."""

import json
import signal
import subprocess
import sys
import time

import pytest
from recorded import check_books, rows

KILLED = """
import os, signal, sys
from ranklake import capture
run = capture.start(job="j", run="dead", spool=sys.argv[1], local_dir=sys.argv[2])
for number in range(20):
    with run.step(number): pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def node(tmp_path):
    """Give a folder with a local spool that a killed process left, meant for the spool beside it."""
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "spool"), str(tmp_path / "local")], check=False)
    return tmp_path


def agent(node, *options):
    """Return the command line of an agent."""
    command = [sys.executable, "-m", "ranklake", "agent", "--local-dir", str(node / "local")]
    return [*command, "--spool", str(node / "spool"), *options]


def test_once_adopts_uploads_and_tells(node):
    """One look stores all rows; a second one finds nothing."""
    done = subprocess.run(agent(node, "--once", "--json"), capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert (told["streams"], told["left"], told["troubles"]) == (1, 0, [])
    assert [row["step"] for row in rows(node / "spool", "steps")] == list(range(20))
    check_books(node / "spool")
    again = subprocess.run(agent(node, "--once"), capture_output=True, text=True, check=True)
    assert again.stdout == "0 streams adopted, 0 segments uploaded, 0 rows\n"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_goes_on_until_it_is_told_to_stop(node, how):
    """It looks again and again, and ends cleanly, within five seconds, on SIGTERM and Ctrl-C."""
    with subprocess.Popen(agent(node, "--interval-s", "0.1"), stdout=subprocess.PIPE, text=True) as process:
        assert "1 streams adopted" in process.stdout.readline()
        command = [sys.executable, "-c", KILLED, str(node / "spool"), str(node / "local")]
        subprocess.run(command, check=False)
        assert "1 streams adopted" in process.stdout.readline()
        started = time.monotonic()
        process.send_signal(how)
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - started < 5
    assert len(rows(node / "spool", "steps")) == 40


def test_a_stream_that_cannot_be_finished_is_an_exit_of_one(node):
    """What is wrong is told in one line on stderr."""
    (stream,) = (node / "local").glob("*/a*/r*")
    (stream / "meta.frames").unlink()
    (stream / "meta.frames").mkdir()
    done = subprocess.run(agent(node, "--once"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "meta.frames" in done.stderr
    assert "Traceback" not in done.stderr
