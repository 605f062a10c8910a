"""Dask clusters: an existing one, given by address, or a local one that starts when there is enough work."""

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, cast

from ranklake.cores import usable_cores
from ranklake.lake.plans.dask_tasks import OnDask
from ranklake.lake.plans.workers import DaskSection, InProcess, Workers, WorkersError
from ranklake.lake.store.store_requests import COUNTS, take_counts

_LOG: Final = logging.getLogger(__name__)


class ClusterNotStartedError(WorkersError):
    """A local cluster could not be started, for example on a busy machine. No task was begun."""


class OnDemand:
    """A local cluster that starts for the first large work. This process does small work itself.

    Parameters
    ----------
    start
        Starts the cluster. Called at most once.
    least_cpu_s
        Amount of work, in CPU seconds, from which the cluster is started.
    """

    def __init__(self, start: Callable[[], OnDask], least_cpu_s: float) -> None:
        self._start = cache(start)
        self._least_cpu_s = least_cpu_s

    def fitting(self, cpu_s: float) -> Workers:
        """Return this process for work that takes less than `least_cpu_s`, else the cluster."""
        return InProcess() if cpu_s < self._least_cpu_s else self._start()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of the cluster's
        """Start the cluster on first use."""
        return getattr(self._start(), name)


WORTH_CPU_S: Final = 4.0
"""Amount of work from which a cluster pays off. Starting and stopping two workers takes 2.4 CPU seconds."""

_PURGE: Final = "MIMALLOC_PURGE_DELAY"
"""Environment variable: milliseconds after which Arrow's allocator returns freed memory to the system; -1 for never. A
worker needs the memory again for its next batch. With small segments, page faults are a tenth of the cost of ingest.
The peak of memory does not change."""

_TRIM: Final = "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_"
"""Dask's setting of glibc's trim threshold. Any value disables the allocator's dynamic thresholds, so that every array
of 128 KiB or more is mapped anew, page by page. Checks then take 1.5 times as long in a worker."""

_DISABLED_FEATURES: Final = "NPY_DISABLE_CPU_FEATURES"
"""Environment variable: instruction sets that NumPy must not use. On AMD's Zen 4 its AVX-512 sort takes five times as
long as the AVX2 sort, because compress-store is microcoded there (github.com/numpy/x86-simd-sort/issues/6). Zen 5 and
Intel are fast."""

_WORKERLESS_S: Final = 30.0
"""Timeout for the first task on a cluster, which may be waiting for workers."""
_DEFAULT: Final = DaskSection()
_QUIET: Final = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "2s",
}
"""Settings that reduce Dask's self-profiling. By default it runs every 10, 20 and 500 ms in each process, which is half
of the driver's CPU time while workers compute."""
_ONE_QUEUE: Final = {"distributed.scheduler.worker-saturation": 1.0}
"""Keep tasks in the scheduler until a worker is free. By default Dask assigns a second task to a worker with one
thread, where it waits for the first task even if other workers are idle."""
_NO_SPILL_NOR_PAUSE: Final = {f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause")}
"""Workers must not spill to disk, where data would outlive an erasure; they hold only descriptions of work anyway. They
must not pause either: a paused worker waits until memory is freed, but allocators keep memory for the next task, so all
workers would wait forever."""


@contextmanager
def workers(section: DaskSection = _DEFAULT) -> Iterator[OnDask]:
    """Yield workers on a Dask cluster: the one at the configured address, else a local one that ends with the block.

    A local cluster creates its own TLS key. Raises `WorkersError` if no scheduler answers at the address within 10 s,
    no worker takes a task within 30 s, a TLS file is missing, or the memory limit is invalid.
    """
    # Importing distributed takes a third of a second, and many commands need no cluster.
    import dask
    from distributed import Client, Security

    if address := section.address:
        for name, path in (tls := section.tls).items():
            if not os.path.isfile(path):  # noqa: PTH113 - the same text is passed to Dask
                raise WorkersError("no such file", where=f"[dask] {name} = {path}", hint="name a PEM file")
        security = {"security": Security(require_encryption=True, **tls)} if tls else {}
        with _client(address, security) as client:
            _refuse_without_workers(client, address)
            _LOG.info("Dask scheduler %s, dashboard %s", address, client.dashboard_link or "none")
            yield OnDask(client, is_ours=False)
        return
    _check_memory(section.memory_limit)
    variables = {_PURGE: "-1"} | ({_DISABLED_FEATURES: names} if (names := _slow_features()) else {})
    added = {name: value for name, value in variables.items() if name not in os.environ}
    environment = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in added.items()}
    count = section.workers or min(4, usable_cores())
    settings = _QUIET | _ONE_QUEUE | _NO_SPILL_NOR_PAUSE | environment | {_TRIM: None}
    with _interrupts_blocked(), dask.config.set(settings):
        cluster = _local_cluster(count, section.memory_limit)
    for name in added:  # Dask also sets the workers' environment variables in this process
        os.environ.pop(name, None)
    # A default client must be closed in the thread that created it, which `shared_cluster` cannot guarantee.
    with cluster, Client(cluster, set_as_default=False) as client:
        yield OnDask(client)


@cache
def _slow_features(processors: Path = Path("/proc/cpuinfo")) -> str:
    """Return the value of `_DISABLED_FEATURES` for this machine: the AVX-512 features on Zen 4; empty elsewhere."""
    try:
        first = processors.read_text("utf-8", "replace").partition("\n\n")[0]
    except OSError:
        return ""
    facts = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in first.splitlines())}
    is_zen_4 = facts.get("vendor_id") == ["AuthenticAMD"] and facts.get("cpu family") == ["25"]
    if not is_zen_4 or "avx512f" not in facts.get("flags", ()):  # Zen 3 has none
        return ""
    import numpy as np

    features = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    return " ".join(name for name in features if name.startswith(("AVX512", "X86_V4")))


def _local_cluster(count: int, memory_limit: str) -> Any:  # noqa: ANN401 - distributed ships no types
    """Start a local cluster. Raises `ClusterNotStartedError`, after which no process of it is left."""
    try:
        return import_module("ranklake.lake.plans.local_cluster").local_cluster(count, memory_limit)
    except (OSError, TimeoutError, RuntimeError) as error:
        reason: BaseException = error
        while reason.__cause__ is not None:  # Dask wraps the original error
            reason = reason.__cause__
        reason_text = " ".join(str(reason).split()) or type(reason).__name__
        hint = "free memory and processes, or set fewer [dask] workers; then run it again"
        raise ClusterNotStartedError(f"{count} Dask workers did not start here: {reason_text}", hint=hint) from error


def _client(address: str, security: Mapping[str, Any]) -> Any:  # noqa: ANN401 - distributed ships no types
    """Return a client of the scheduler at an address. Raises `WorkersError`.

    A client that failed to connect is garbage-collected here. Dask closes it on collection, under a lock that starting
    a client takes, too. If it were collected while the next client starts, that client would deadlock.
    """
    from distributed import Client

    try:
        return Client(address, timeout="10s", **security)
    except (OSError, TimeoutError, ValueError, RuntimeError, TypeError) as error:
        text = str(error)
    gc.collect()
    hint = "start a scheduler there, or leave the address out for a local cluster"
    raise WorkersError(f"no Dask scheduler answers: {text}", where=address, hint=hint)


def _refuse_without_workers(client: Any, address: str) -> None:  # noqa: ANN401 - distributed ships no types
    """Raise `WorkersError` if no worker takes a task in time. Without workers, tasks would wait forever."""
    probe = client.submit(int, pure=False)
    try:
        probe.result(timeout=_WORKERLESS_S)
    except TimeoutError:
        message = f"no worker of the Dask scheduler took a task within {_WORKERLESS_S:.0f} s"
        raise WorkersError(message, where=address, hint=f"start workers: dask worker {address}") from None
    finally:
        probe.release()


@contextmanager
def on_demand(section: DaskSection = _DEFAULT) -> Iterator[Workers]:
    """Yield workers that do small work in this process and start a local cluster for the first large work.

    With a configured address, all work goes to that cluster. With a configured number of workers, all work goes to a
    local cluster. Within `shared_cluster`, its cluster is used. Raises the errors of `workers`; for an invalid memory
    limit already at the start.
    """
    if section.address:
        with workers(section) as pool:
            yield pool
        return
    shared = _SHARED.get()
    cluster = shared if shared is not None and shared.section == section else _LazyCluster(section)
    try:
        yield cast("Workers", cluster.workers())
    except BaseException:
        cluster.close()
        raise
    cluster.count_requests()
    if cluster is not shared:
        cluster.close()


@contextmanager
def shared_cluster(section: DaskSection = _DEFAULT) -> Iterator[None]:
    """Let all calls of `on_demand` in the block share one local cluster, which starts for the first large work.

    After an error the cluster is closed, and the next large work starts another one. A cluster with an address is not
    shared, so that each stage connects again after an outage.
    """
    cluster = _LazyCluster(section)
    token = _SHARED.set(cluster)
    try:
        yield
    finally:
        _SHARED.reset(token)
        cluster.close()


class _LazyCluster:
    """A local cluster that starts when it is needed, and again after it was closed."""

    def __init__(self, section: DaskSection) -> None:
        _check_memory(section.memory_limit)
        self.section = section
        self._stack = ExitStack()
        self._workers: OnDemand | None = None
        self._started: OnDask | None = None

    def count_requests(self) -> None:
        """Add the workers' counts of store requests to those of this process."""
        if self._started is not None:
            for counts in self._started.client.run(take_counts).values():
                COUNTS.update(counts)

    def _start(self) -> OnDask:
        self._started = self._stack.enter_context(workers(self.section))
        return self._started

    def workers(self) -> OnDemand:
        """Return the workers, which start for the first large work unless they have started."""
        if self._workers is None:
            self._workers = OnDemand(self._start, least_cpu_s=0 if self.section.workers else WORTH_CPU_S)
        return self._workers

    def close(self) -> None:
        """Close the cluster, if it has started."""
        self._workers = self._started = None
        self._stack.close()


_SHARED: Final[ContextVar[_LazyCluster | None]] = ContextVar("ranklake_workers", default=None)
"""The cluster that the stages of a pipeline share."""


def _check_memory(limit: str) -> None:
    """Raise `WorkersError` for an invalid memory limit, without importing distributed."""
    from dask.utils import parse_bytes

    try:
        if limit != "auto":
            parse_bytes(limit)
    except ValueError as error:
        hint = "write it like 2GiB, under [dask] memory_limit"
        raise WorkersError(f"{limit!r} is not an amount of memory", hint=hint) from error


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread until the block ends.

    New threads and processes inherit the signal mask of the thread that starts them. So the cluster's thread and its
    workers never receive the terminal's interrupt. Only the command receives it, and closes the cluster.
    """
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
