"""A Dask cluster that goes away under its tasks: one line that says what, and a new client goes on."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from functools import partial

import psutil
import pytest
from serving import free_port, wait_for

from ranklake.flows.retrying import is_transient
from ranklake.lake.plans.dask_tasks import ClusterLostError
from ranklake.lake.plans.dask_workers import workers
from ranklake.lake.plans.workers import DaskSection, WorkersError

pytestmark = pytest.mark.leaky("distributed keeps threads of its own for a while")
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def listens(port):
    """Return whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Cluster:
    """A scheduler and a worker, as an operator starts them."""

    def __init__(self, port):
        self.address = f"tcp://127.0.0.1:{port}"
        place = ["--host", "127.0.0.1", "--no-dashboard"]
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *place, "--port", str(port)]
        self.scheduler = subprocess.Popen(command, **QUIET)
        wait_for("the scheduler", lambda: listens(port))
        command = [sys.executable, "-m", "distributed.cli.dask_worker", *place, "--nthreads", "1", self.address]
        self._worker = subprocess.Popen(command, **QUIET)

    def end(self):
        """Kill what is there."""
        found = psutil.Process(self._worker.pid)
        for one in (*found.children(recursive=True), found, psutil.Process(self.scheduler.pid)):
            one.kill()
        self._worker.wait()
        self.scheduler.wait()


@pytest.mark.slow
def test_a_scheduler_that_is_killed_is_told_and_the_next_run_goes_on():
    """Whose scheduler dies under its tasks gets one line, as an outage that may pass; a new one goes on."""
    port = free_port()
    first = Cluster(port)
    with workers(DaskSection(address=first.address)) as crew:
        with pytest.raises(ClusterLostError, match=r"scheduler was lost .*repeat the command") as lost:
            crew.run(partial(os.kill, first.scheduler.pid), [signal.SIGKILL])
        with pytest.raises(ClusterLostError):  # of the same client nothing more comes
            crew.run(abs, [-1])
    assert is_transient(lost.value)
    first.end()
    second = Cluster(port)
    with workers(DaskSection(address=second.address)) as crew:
        assert crew.run(abs, [-1]) == [1]
    second.end()


@pytest.mark.slow
def test_a_task_that_kills_each_worker_is_given_up():
    """A worker that dies is replaced and its task tried again; one that kills each of them ends with what to do."""
    with workers(DaskSection(workers=1)) as crew:
        with pytest.raises(WorkersError, match=r"died over and over .*memory_limit"):
            crew.run(ctypes.string_at, [0])
        assert crew.run(abs, [-1]) == [1]
