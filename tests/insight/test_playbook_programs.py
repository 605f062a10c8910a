"""Programs of playbooks: ended with all of their group when their time is over; their output bounded and redacted."""

import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import pytest

from ranklake.pipeline.playbooks.programs import OUTPUT_CHARACTERS, post_webhook, run_program

HANGS = 300.0
"""Seconds that what hangs would sleep, and that nothing here may take."""


def ended(tmp_path, *argv, timeout_s=20.0, given=b"", **more):
    """Run a program in a folder of the test."""
    return run_program(argv, {}, given, timeout_s=timeout_s, folder=tmp_path, **more)


def python(tmp_path, code, **more):
    """Run a program in Python."""
    return ended(tmp_path, sys.executable, "-c", code, **more)


def is_there(pid):
    """Whether a process goes on; one that its new parent has not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid):
    """Wait until a process that was killed is gone, for far less long than it would sleep."""
    until = time.monotonic() + HANGS / 2
    while is_there(pid):
        assert time.monotonic() < until, f"process {pid} goes on"
        time.sleep(0.02)


def test_how_it_ended_is_told(tmp_path):
    """Its exit code and output; one that is not there is a failure, not an error of ours."""
    done = ended(tmp_path, "sh", "-c", "cat; echo to stderr >&2; pwd", given=b"given\n")
    assert (done.outcome, done.exit_code) == ("done", 0)
    assert done.output == f"given\nto stderr\n{tmp_path}"
    assert (ended(tmp_path, "sh", "-c", "exit 3").outcome, ended(tmp_path, "sh", "-c", "exit 3").exit_code) == (
        "failed",
        3,
    )
    missing = ended(tmp_path, "/no/such/program")
    assert (missing.outcome, missing.exit_code) == ("failed", None)
    assert missing.output == "cannot be run: No such file or directory"


@pytest.mark.parametrize("ignores", [False, True])
def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path, ignores):
    """Children, too, also where all of them ignore the signal that asks them to end."""
    trap = "trap '' TERM; " if ignores else ""
    began = time.monotonic()
    code = f"{trap}sleep {HANGS:g} & echo $! > child; (sleep {HANGS:g} & echo $! > grandchild; wait) & wait"
    over = ended(tmp_path, "sh", "-c", code, timeout_s=0.5)
    assert (over.outcome, over.exit_code) == ("timed out", None)
    assert time.monotonic() - began < HANGS
    for name in ("child", "grandchild"):
        wait_until_gone(int((tmp_path / name).read_text()))


def test_a_child_that_holds_the_output_is_not_waited_for(tmp_path):
    """A program may leave something running on purpose: a restarted job."""
    began = time.monotonic()
    done = ended(tmp_path, "sh", "-c", f"sleep {HANGS:g} & echo $! > child; echo started")
    assert (done.outcome, done.output) == ("done", "started")
    assert time.monotonic() - began < HANGS
    pid = int((tmp_path / "child").read_text())
    assert is_there(pid)
    os.kill(pid, 9)


def test_output_without_end_is_bounded(tmp_path):
    """One that prints as fast as it can is ended in time, and the end of its output is kept."""
    over = ended(tmp_path, "yes", "x" * 100, timeout_s=0.5)
    assert over.outcome == "timed out"
    assert len(over.output) <= OUTPUT_CHARACTERS
    assert over.output.endswith("x" * 50) or "x" * 50 in over.output


def test_half_a_credential_is_not_kept(tmp_path):
    """Where the output is cut, the rest of the line is left out: the name that tells what it is, is gone."""
    code = "print('password=hunter22hunter'); print('x' * 99 + '\\n' + ('y' * 99 + '\\n') * 654, 'z' * 27)"
    output = python(tmp_path, code, output_characters=1 << 16).output
    assert "z" in output
    assert "hunter" not in output


def test_an_interrupt_ends_the_program(tmp_path):
    """Ctrl-C leaves nothing running."""

    def interrupt(_, frame):
        names = [each.f_code.co_name for each, _ in traceback.walk_stack(frame)]
        if "_output" in names and (tmp_path / "child").exists() and (tmp_path / "child").read_text().endswith("\n"):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(KeyboardInterrupt):
            ended(tmp_path, "sh", "-c", f"sleep {HANGS:g} & echo $! > child; wait", timeout_s=HANGS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    wait_until_gone(int((tmp_path / "child").read_text()))


def test_one_that_reads_nothing_is_given_much(tmp_path):
    """What it does not read holds nobody up."""
    assert ended(tmp_path, "true", given=b"x" * (1 << 20)).outcome == "done"


def test_credentials_and_names_are_not_kept(tmp_path, monkeypatch):
    """Neither those that look so, nor values of variables that it was given by name; others it does not get."""
    monkeypatch.setenv("PAGER_TOKEN", "plain words here")
    monkeypatch.setenv("OTHER_TOKEN", "must not be there")
    code = (
        "import os, sys; print('got', os.environ['PAGER_TOKEN'], os.environ.get('OTHER_TOKEN'));"
        "print('password=hunter22hunter', '/home/lovelace/x', 'AKIAIOSFODNN7EXAMPLE'); print('\\x1b[2Jred')"
    )
    monkeypatch.setenv("PAGER_LEVEL", "1")
    output = python(tmp_path, f"{code}; print('rank 11')", pass_env=["PAGER_TOKEN", "PAGER_LEVEL"]).output
    assert "rank 11" in output
    assert "None" in output
    for secret in ("plain words", "must not", "hunter22", "lovelace", "AKIA", "\x1b"):
        assert secret not in output


@pytest.fixture
def server():
    """Give a server that notes what is posted; paths say what it answers."""
    posted = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            code = int(self.path.strip("/").partition("/")[0] or 200)
            self.send_response(code)
            if code in {302, 307}:
                self.send_header("Location", "/200")
            self.end_headers()
            self.wfile.write(b"answer" + self.path.encode() * (code == 404))
            with suppress(OSError):
                while self.path.endswith("endless"):
                    self.wfile.write(b"x" * 4096)

        def do_GET(self):  # where a redirect that is followed ends
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}", posted
        served.shutdown()
        thread.join()


def test_a_webhook_gets_the_body_and_redirects_are_not_followed(server, tmp_path):
    """A status of success is done, any other failed, with the beginning of the answer."""
    url, posted = server
    body = json.dumps({"text": "the loss jumped"}).encode()
    assert post_webhook(f"{url}/204", body, timeout_s=20, folder=tmp_path).outcome == "done"
    refused = post_webhook(f"{url}/500", body, timeout_s=20, folder=tmp_path)
    assert (refused.outcome, refused.output) == ("failed", "status 500\nanswer")
    for code in (302, 307):
        assert post_webhook(f"{url}/{code}", body, timeout_s=20, folder=tmp_path).outcome == "failed"
    assert [path for path, _ in posted] == ["/204", "/500", "/302", "/307"]
    assert {given for _, given in posted} == {body}
    unknown = post_webhook(f"{url}/404/T0/secret-path-of-hook", body, timeout_s=20, folder=tmp_path)
    assert (unknown.output[:10], "secret-path" in unknown.output) == ("status 404", False)
    endless = post_webhook(f"{url}/500/endless", body, timeout_s=HANGS, folder=tmp_path)
    assert (endless.outcome, endless.output[:17]) == ("failed", "status 500\nanswer")


def test_what_is_no_answer_of_a_web_server_is_one_line(tmp_path):
    """Something else listens there."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            peer, _ = other.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(b"220 mail.example.org ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        gone = post_webhook(f"http://127.0.0.1:{other.getsockname()[1]}/", b"{}", timeout_s=HANGS, folder=tmp_path)
        thread.join()
    assert (gone.outcome, gone.output) == ("failed", "not reached: BadStatusLine")


def test_a_webhook_that_never_answers_is_given_up(tmp_path):
    """It accepts the connection and says nothing; the URL, which may be a secret, is in no output."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/T0/secret-path-of-hook"
        over = post_webhook(url, b"{}", timeout_s=0.5, folder=tmp_path)
    assert over.outcome == "timed out"
    assert "secret-path" not in over.output
    gone = post_webhook(url, b"{}", timeout_s=20, folder=tmp_path)
    assert (gone.outcome, "not reached" in gone.output, "secret-path" in gone.output) == ("failed", True, False)
