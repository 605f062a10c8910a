"""A `ranklake up` of its own for tests and campaigns: started, watched through its lines and Prefect's API, ended."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from ranklake.flows.serving.environment import MARK

PATIENCE_S = 240.0


def free_port():
    """Return a port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, told, patience_s=PATIENCE_S):
    """Return the first true answer of `told`; AssertionError with `what` after a while."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if found := told():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited in vain for {what}")


@dataclass
class Up:
    """A running one. Its folder has ``ranklake.toml``, the lake, the spool, the home and its lines in ``out``."""

    folder: Path
    port: int
    process: subprocess.Popen

    @classmethod
    def start(cls, folder, *options, port=0, environment=None):
        """Start one in a folder whose ``ranklake.toml`` says what is to be served."""
        port = port or free_port()
        command = [
            sys.executable,
            "-m",
            "ranklake",
            "up",
            "--home",
            str(folder / "home"),
            "--port",
            str(port),
            *options,
        ]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RANKLAKE_"))}
        with (folder / "out").open("ab") as out:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env={**clean, **(environment or {})},
            )
        return cls(folder, port, process)

    @property
    def home(self):
        """Its home."""
        return self.folder / "home"

    def out(self):
        """Return what it has said so far."""
        return (self.folder / "out").read_text()

    def ready(self, times=1):
        """Wait until it says that it is ready, for the first or a later time; return after how many seconds."""

        def told():
            assert self.process.poll() is None, self.out()
            return re.findall(r"ready after (\d+) s", self.out())[times - 1 :]

        return int(wait_for("ready", told)[0])

    def ask(self, path, **body):
        """Ask Prefect's API: GET, or POST where there is a body; again where it says that its database is busy."""
        url = f"http://127.0.0.1:{self.port}/api/{path}"

        def answer():
            found = httpx.post(url, json=body, timeout=30) if body else httpx.get(url, timeout=30)
            return None if found.status_code == httpx.codes.SERVICE_UNAVAILABLE else found

        found = wait_for("an answer", answer)
        found.raise_for_status()
        return found.json() if found.content else None

    def asked(self, path, **body):
        """Ask it; None while it does not answer."""
        try:
            return self.ask(path, **body)
        except httpx.HTTPError:
            return None

    def deployments(self):
        """Return {name: deployment}."""
        found = wait_for("deployments", lambda: self.asked("deployments/filter", limit=50))
        return {one["name"]: one for one in found}

    def runs(self, deployment):
        """Return the runs of a deployment, the oldest first; none while nobody answers."""
        body = {"deployments": {"name": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_ASC"}
        return self.asked("flow_runs/filter", **body) or []

    def run(self, deployment):
        """Have a deployment run now; return the run's id."""
        found = self.deployments()[deployment]["id"]
        place = f"deployments/{found}/create_flow_run"  # SQLite may be busy: the answer is then 503, ask again
        return wait_for(f"a run of {deployment}", lambda: self.asked(place, state={"type": "SCHEDULED"}))["id"]

    def state(self, run):
        """Return the type of a run's state."""
        return (self.asked(f"flow_runs/{run}") or {}).get("state_type")

    def child(self, word):
        """Return the process of the server (``uvicorn``) or the worker (``worker``)."""
        return wait_for(word, lambda: [one for one in self.children() if word in " ".join(one.cmdline())])[0]

    def children(self):
        """Return its direct children."""
        return [one for one in psutil.Process(self.process.pid).children() if one.status() != psutil.STATUS_ZOMBIE]

    def members(self):
        """Return all processes that say they belong to it, itself included."""
        found = []
        for one in psutil.process_iter():
            try:
                if one.environ().get(MARK) == str(self.home):
                    found.append(one)
            except psutil.Error:
                continue
        return found

    def stop(self, number=signal.SIGINT):
        """Stop it by a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def kill(self):
        """Kill it, if it is there."""
        self.process.kill()
        self.process.wait()
