"""The server of `ranklake ui` as a client asks it, and all of its addresses that pages lead to."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from posixpath import dirname, join, normpath

from serving import free_port, wait_for
from starlette.testclient import TestClient

from ranklake.capture.sealing.keys import SealingKeys
from ranklake.config import Config
from ranklake.context import Context
from ranklake.ui import app as serving
from ranklake.ui.app import ui_app
from ranklake.ui.ask import Asker
from ranklake.ui.guard import FormTokens
from ranklake.ui.live import LiveRuns
from ranklake.ui.pages import Pages
from ranklake.ui.saved import SavedPages
from ranklake.ui.viewers import Everybody

HOSTS = frozenset({"127.0.0.1"})
_LINK = re.compile(r'\b(?:href|src|data-library|data-src)="([^"#?]*)')


def context_of(lake, **overrides):
    """Return the context of a lake."""
    return Context.of(Config(), {"lake.uri": lake.uri, **overrides})


@contextmanager
def asking(
    lake, role=None, *, viewers=None, context=None, local=Path("/nowhere"), url="http://127.0.0.1", annotator=None,
    peer="testclient",
):  # fmt: skip
    """Give a client of the server, which shows what a role sees."""
    before, serving.library = serving.library, lambda: b"// the chart library"
    context = context or context_of(lake)
    viewers, live = viewers or Everybody(lambda: role), LiveRuns(local, SealingKeys())
    tokens = FormTokens()
    saved = SavedPages(context, tokens)
    app = ui_app(Pages(context), viewers, HOSTS, live, Asker(context, tokens), saved, annotator)
    try:
        with TestClient(app, base_url=url, follow_redirects=False, client=(peer, 50_000)) as client:
            yield client
    finally:
        serving.library = before


def addresses(client, **asked):
    """Return all pages and assets that the home page leads to, step by step, with their answers by path."""
    due, known = ["index.html"], {}
    while due:
        path = due.pop()
        known[path] = answer = client.get(f"/{path}", **asked)
        if path.endswith(".html"):
            for link in _LINK.findall(answer.text):
                there = normpath(join(dirname(path), link))
                if link and not link.startswith("data:") and there not in known and there not in due:
                    due.append(there)
    return known


@contextmanager
def ui_server(lake, *options, folder=None, environment=None):
    """Give the address of a `ranklake ui` in a process of its own, once it answers."""
    with ui_process(lake, *options, folder=folder, environment=environment) as (_, url):
        yield url


@contextmanager
def ui_process(lake, *options, folder=None, environment=None):
    """Give a process of `ranklake ui` and its address, once it answers."""
    port = free_port()
    command = [sys.executable, "-m", "ranklake", "ui", "--port", str(port), *options]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RANKLAKE_")}
    environment = {**clean, "RANKLAKE_LAKE": lake.uri, **(environment or {})}
    process = subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL)
    try:
        wait_for("the server", lambda: _answers(process, port))
        yield process, f"http://127.0.0.1:{port}/"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _answers(process, port):
    assert process.poll() is None
    try:
        return socket.create_connection(("127.0.0.1", port), 1).close() is None
    except OSError:
        return False
