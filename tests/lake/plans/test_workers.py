"""Dask clusters: nobody else gets into a local one, and one by address is spoken to as configuration says."""

import contextvars
import gc
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, Security

from ranklake.config import load_config
from ranklake.flows.retrying import is_transient
from ranklake.lake.plans import dask_tasks, dask_workers
from ranklake.lake.plans.dask_workers import ClusterNotStartedError, on_demand, shared_cluster, workers
from ranklake.lake.plans.workers import DaskSection, InProcess, Room, WorkersError
from ranklake.lake.store import store
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeUnreachableError

SCHEDULER = """
import asyncio, json, sys
from distributed import Scheduler, Security, Worker

async def main():
    security = Security(**json.loads(sys.argv[1]))
    async with Scheduler(security=security, host="127.0.0.1", protocol="tls://", port=0, dashboard=False) as one:
        async with Worker(one.address, security=security, nthreads=1, dashboard=False) as worker:
            print(one.address, flush=True)
            await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def ours():
    """Return this process and all below it."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def listening(processes):
    """Return the (address, port) pairs that some processes listen on, by their sockets and /proc/net/tcp."""
    sockets = set()
    for one in processes:
        for handle in Path(f"/proc/{one.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                sockets.add(os.readlink(handle))  # noqa: PTH115 - no path: socket:[inode]
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                address, port = words[1].split(":")
                found.add((address, int(port, 16)))
    return found


def turns_strangers_away(port):
    """Return whether a port answers TLS and turns away who shows no certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        try:
            with context.wrap_socket(plain) as one:
                return one.recv(1) == b""
        except ssl.SSLError as error:
            return "CERTIFICATE_REQUIRED" in str(error)
        except ConnectionResetError:
            return True


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_nobody_else_connects_to_a_local_cluster():
    """All that the cluster's processes listen on is TLS of a key of its own; who lacks it runs no code there."""
    before = listening([psutil.Process()])
    with workers(DaskSection(workers=1)) as crew:
        ports = listening(ours()) - before
        assert {address for address, _ in ports} == {"0100007F"}
        assert len(ports) == 3  # scheduler, nanny, worker
        assert all(turns_strangers_away(port) for _, port in ports)
        address = crew.client.scheduler.address
        assert address.startswith("tls://")
        for security in (Security(), Security.temporary()):
            plain = address.replace("tls://", "tcp://") if not security.require_encryption else address
            with (
                pytest.raises(OSError, match=r"[Tt]imed out|closed|TLS|SSL"),
                Client(plain, timeout="2s", security=security),
            ):
                pass
            gc.collect()  # else it would be closed whenever it is collected: within the start of the next one, for ever
        said = [one.cmdline() + list(one.environ().values()) for one in ours()]
        assert "PRIVATE KEY" not in json.dumps(said)
        # any value of it has each array of 128 KiB mapped anew
        assert crew.run(os.environ.get, ["OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"]) == ["1", None]
        found = crew.run(eval, ["__import__('numpy').show_config(mode='dicts')['SIMD Extensions']['found']"])[0]
        assert set(found).isdisjoint(dask_workers._slow_features().split())
        assert crew.run(abs, [-1, 2]) == [1, 2]


HOLDING = """
import os, sys
from ranklake.lake.plans.workers import DaskSection
from ranklake.lake.plans.dask_workers import workers

if __name__ == "__main__":
    with workers(DaskSection(workers=1)) as crew:
        begun = crew.begin("ada.lovelace ".__mul__, [4_000_000] * 3)
        crew.wait([begun])
        print(crew.run(os.path.expandvars, ["$TMPDIR"])[0], flush=True)
        sys.stdin.read()
"""


ZEN_3 = "processor : 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx avx2\n\nprocessor : 1\n"
ZEN_4 = ZEN_3.replace("avx2", "avx2 avx512f avx512_vbmi2")


@pytest.mark.parametrize(
    ("processors", "is_slow"),
    [
        (ZEN_4, True),
        (ZEN_3, False),
        (ZEN_4.replace(": 25", ": 26"), False),
        (ZEN_4.replace("AuthenticAMD", "GenuineIntel"), False),
        ("", False),
    ],
)
def test_slow_sorts_of_zen_4_are_left_out(tmp_path, processors, is_slow):
    """Of what NumPy found on this machine, and without a word from it."""
    (tmp_path / "cpuinfo").write_text(processors)
    found = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    slow = [name for name in found if name.startswith(("AVX512", "X86_V4"))] if is_slow else []
    without = dask_workers._slow_features(tmp_path / "cpuinfo")
    assert without == " ".join(slow)
    assert dask_workers._slow_features(tmp_path / "none") == ""
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": without}
    code = "import numpy; print(*numpy.show_config(mode='dicts')['SIMD Extensions']['found'])"
    asked = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
    assert (done.stderr, set(done.stdout.split())) == ("", set(found) - set(slow))


@pytest.mark.slow
def test_workers_write_no_result_to_disk(tmp_path):
    """Whatever Dask is told of spilling, and though command and workers are killed: nothing is there to find."""
    place = tmp_path / "tmp"
    place.mkdir()
    (tmp_path / "holding.py").write_text(HOLDING)
    told = {"TMPDIR": str(place), "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.001"}
    command = [sys.executable, str(tmp_path / "holding.py")]
    with subprocess.Popen(
        command, env={**os.environ, **told}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(place)
        every = [process, *psutil.Process(process.pid).children(recursive=True)]
        for one in every:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
    left = [path for path in place.rglob("*") if path.is_file()]
    assert left, "Dask's own folder is there, as the workers had no time to remove it"
    assert not [path for path in left if b"ada.lovelace" in path.read_bytes() or path.stat().st_size > 10_000]


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_a_cluster_by_address_is_spoken_to_by_tls_where_configured(tmp_path, monkeypatch):
    """`[dask]` names whom to trust and what to show; without it, or without a file, the command is told in one line."""
    made = Security.temporary()
    names = ("tls_ca_file", "tls_client_cert", "tls_client_key", "tls_scheduler_cert", "tls_scheduler_key")
    for name in names:
        (tmp_path / name).write_text(getattr(made, name))
    lines = [f'{name} = "{tmp_path / name}"' for name in names[:3]]
    (tmp_path / "ranklake.toml").write_text("\n".join(["[dask]", *lines]))
    monkeypatch.chdir(tmp_path)
    server = {"require_encryption": True, **{name: str(tmp_path / name) for name in (names[0], *names[3:])}}
    server |= {name.replace("scheduler", "worker"): path for name, path in server.items() if "scheduler" in name}
    command = [sys.executable, "-c", SCHEDULER, json.dumps(server)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with workers(replace(load_config().dask, address=address)) as crew:
            assert crew.room().tasks == 1
        gc.collect()
        gc.disable()
        with (
            pytest.raises(WorkersError, match="no Dask scheduler answers") as error,
            workers(replace(load_config().dask, address=address.replace("tls", "tcp"))),
        ):
            pass
        gc.enable()
        left = [one for one in gc.get_objects() if type(one) is Client and one.status != "closed"]
        assert not left, f"{error}: collected within the start of the next client, it would wait for itself for ever"
        process.communicate("", timeout=30)
    (tmp_path / "tls_client_key").unlink()
    with pytest.raises(WorkersError, match="tls_client_key"), workers(replace(load_config().dask, address=address)):
        pass


class Asked:
    """A client of a scheduler that counts how often it is asked who works for it."""

    def __init__(self):
        self.asked = 0

    def scheduler_info(self, n_workers):
        """Return one worker more each time."""
        del n_workers
        self.asked += 1
        return {"workers": {name: {"nthreads": 1, "memory_limit": 2**31} for name in range(self.asked)}}


def test_what_workers_have_is_not_asked_for_each_piece_of_work(monkeypatch):
    """A round asks for each of its tasks; the scheduler is asked once, and again after a while."""
    now = [0.0]
    monkeypatch.setattr(dask_tasks.time, "monotonic", lambda: now[0])
    crew = dask_tasks.OnDask(client := Asked())
    assert [crew.room() for _ in range(15)] == [Room(1, 2**31)] * 15
    assert client.asked == 1
    now[0] += dask_tasks.ROOM_S + 1
    assert crew.room() == Room(2, 2**31)


def held_up(path):
    """Wait until a file is gone."""
    while os.path.exists(path):  # noqa: PTH110 - what a worker gets
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_tasks_wait_for_the_first_worker_that_is_free(tmp_path):
    """No worker holds a task back behind another: what waits, waits with the scheduler."""
    gate = tmp_path / "gate"
    gate.touch()
    with workers(DaskSection(workers=2)) as crew:
        done = crew.begin(abs, [-1])
        crew.wait([done])
        begun = crew.begin(held_up, [str(gate)] * 2)
        after = crew.begin(abs, [-2])
        scheduler = crew.client.cluster.scheduler
        while sum(task.state in {"queued", "processing"} for task in list(scheduler.tasks.values())) < 3:
            time.sleep(0.01)
        states = Counter(task.state for task in list(scheduler.tasks.values()))
        gate.unlink()
        assert begun.results() == [None] * 2
        assert after.results() == [2]
    assert states == {"memory": 1, "processing": 2, "queued": 1}


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_what_is_abandoned_is_waited_for_where_it_was_begun(tmp_path):
    """What workers have cannot be called back: it ends, and who gives up learns what it left. The rest never begins."""
    gate = tmp_path / "gate"
    gate.touch()
    with workers(DaskSection(workers=1)) as crew, ThreadPoolExecutor(1) as pool:
        scheduler = crew.client.cluster.scheduler

        def at_work():
            return Counter(task.state for task in list(scheduler.tasks.values()))

        begun = crew.begin(held_up, [str(gate)] * 3)
        while at_work() != {"processing": 1, "queued": 2}:
            time.sleep(0.01)
        left = pool.submit(begun.abandon)
        while at_work() != {"processing": 1}:
            time.sleep(0.01)
        assert not left.done()
        gate.unlink()
        assert left.result() == [None]
        gone = crew.begin(held_up, [str(gate)])
        crew.client.close()
        assert gone.abandon() == []
    assert InProcess().begin(held_up, [str(gate)]).abandon() == []


def failing_once(path):
    """Fail where a file is, and remove it."""
    if os.path.exists(path):  # noqa: PTH110 - what a worker gets
        os.unlink(path)  # noqa: PTH108 - likewise
        raise OSError("the store is away")
    return path


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_what_failed_is_begun_anew_when_it_is_asked_for_again(tmp_path):
    """A task that fails is tried once; who asks again has all tasks carried out again."""
    mark = tmp_path / "mark"
    with workers(DaskSection(workers=2)) as crew:
        mark.touch()
        begun = crew.begin(failing_once, [str(mark)])
        with pytest.raises(OSError, match="away"):
            begun.results()
        assert begun.results() == [str(mark)]


CLUSTER = """
import asyncio, sys
from distributed import Scheduler, Worker

async def main():
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as one:
        async with Worker(one.address, nthreads=1, dashboard=False):
            print(one.address, flush=True)
            await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.mark.leaky("distributed keeps threads of its own for a while")
@pytest.mark.parametrize("other", ["", "deltalake"])
def test_workers_of_other_versions_get_no_work(tmp_path, other):
    """A worker that runs another version than the driver is named with both, before anything is sent to it."""
    if other:
        (tmp_path / f"{other}-0.0.1.dist-info").mkdir()
        (tmp_path / f"{other}-0.0.1.dist-info/METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {other}\nVersion: 0.0.1\n"
        )
    command, environment = [sys.executable, "-c", CLUSTER], {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        with workers(DaskSection(address=process.stdout.readline().strip())) as crew:
            if other:
                with pytest.raises(WorkersError) as error:
                    crew.run(abs, [-1])
                assert f"runs {other} 0.0.1 (here {version(other)})" in str(error.value)
                assert "tcp://127.0.0.1" in str(error.value)
            else:
                assert crew.run(abs, [-1, 2]) == [1, 2]
        process.communicate("", timeout=30)


NO_CHILDREN = "import os, sys\nif any('spawn_main' in one for one in sys.orig_argv): os._exit(3)\n"


@pytest.mark.leaky("the first process that Dask starts brings a resource tracker, and a pipe to it, that stay")
def test_workers_that_do_not_start_are_told_in_one_line(tmp_path, monkeypatch):
    """Where processes die as they begin, the reason and the mend are told, nothing stays, and a flow tries again."""
    (tmp_path / "sitecustomize.py").write_text(NO_CHILDREN)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(ClusterNotStartedError) as error, workers(DaskSection(workers=2)):
            pass
    line = str(error.value)
    assert "2 Dask workers did not start here: " in line
    assert "run it again" in line
    assert "\n" not in line
    assert not [one for one in ours() if "spawn_main" in " ".join(one.cmdline())]
    assert is_transient(error.value)


def test_a_local_cluster_starts_with_the_first_work():
    """Who says how many workers gets them for all work; where there is none, as in most rounds, none is started."""
    before = len(ours())
    with on_demand(DaskSection(workers=2)) as crew:
        assert isinstance(crew.fitting(-1.0), InProcess)
        assert len(ours()) == before


@pytest.mark.slow
def test_stages_share_one_cluster():
    """All who ask within the block get the same workers, in whatever thread; others, where something failed on them."""
    section = DaskSection(workers=1)

    def stage(*, fails=False):
        with suppress(OSError), on_demand(section) as crew:
            (pid,) = crew.fitting(1.0).run(_pid, [None])
            if fails:
                raise OSError("the store is away")
        return pid

    before = len(ours())
    with shared_cluster(section):
        assert len(ours()) == before
        first = stage()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(contextvars.copy_context().run, stage).result() == first
        assert stage(fails=True) == first
        assert len(ours()) == before
        assert stage() != first
    assert len(ours()) == before


def _pid(_):
    return os.getpid()


@pytest.mark.leaky("a Dask cluster's threads and files end with the process")
def test_a_scheduler_without_workers_is_told_in_time(monkeypatch):
    """Nothing waits for ever for a worker that nobody started: one line, after a while."""
    monkeypatch.setattr(dask_workers, "_WORKERLESS_S", 0.2)
    with LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        with (
            pytest.raises(WorkersError, match="no worker of the Dask scheduler took a task within 0 s; start workers"),
            dask_workers.workers(DaskSection(address=address)),
        ):
            pytest.fail("there is no worker")


def test_a_store_that_never_answers_is_told_in_time(monkeypatch):
    """It accepts the connection and says nothing: one line, after as many tries as there are."""
    monkeypatch.setattr(store, "_READ_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        storage = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": "r"}
        storage["aws_endpoint_url"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(LakeUnreachableError, match="Read timeout on endpoint"):
            Lake.open("s3://bucket/lake", storage)
    assert time.monotonic() - began < 15
