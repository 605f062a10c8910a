"""Dask clusters: one by address, or a local one that starts when enough work is there."""

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
    """No local cluster could be started, for example on a busy machine. No task was begun."""


class OnDemand:
    """A local cluster that starts with the first large work; this process does the small work.

    Parameters
    ----------
    start
        Starts the cluster; called once at most.
    least_cpu_s
        Work for which it is started, in CPU-seconds.
    """

    def __init__(self, start: Callable[[], OnDask], least_cpu_s: float) -> None:
        self._start = cache(start)
        self._least_cpu_s = least_cpu_s

    def fitting(self, cpu_s: float) -> Workers:
        """Return this process for work that it finishes before a cluster would have started."""
        return InProcess() if cpu_s < self._least_cpu_s else self._start()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of the cluster's
        """Start the cluster on first use."""
        return getattr(self._start(), name)


WORTH_CPU_S: Final = 4.0
"""Work from which on a cluster pays: two workers take 2.4 CPU-seconds, and two to five seconds, to start and to end."""

_PURGE: Final = "MIMALLOC_PURGE_DELAY"
"""Milliseconds after which Arrow's allocator gives memory that it has freed back to the system; -1 for never. A worker
needs as much again for its next batch, and pages that are touched for the first time are a tenth of what ingest costs
where segments are small. The most that it holds stays the same."""

_TRIM: Final = "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_"
"""What Dask would have the C allocator give back. Any value of it ends that allocator's own adjustment, so that each
array of 128 KiB and more is mapped again, page by page: checks then take 1.5 times as long in a worker as elsewhere."""

_WITHOUT: Final = "NPY_DISABLE_CPU_FEATURES"
"""NumPy's paths for instruction sets that are left out. Its sort for AVX-512 takes five times as long as that for AVX2
on AMD's Zen 4, where the instruction that stores chosen lanes is microcode (github.com/numpy/x86-simd-sort/issues/6);
Zen 5 and Intel are fast."""

_WORKERLESS_S: Final = 30.0
"""How long a cluster may take to have a worker for the first task."""
_DEFAULT: Final = DaskSection()
_QUIET: Final = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "2s",
}
"""Dask profiles itself every 10, 20 and 500 ms in each process, for its dashboard. That is half of the driver's CPU
time while workers compute."""
_ONE_QUEUE: Final = {"distributed.scheduler.worker-saturation": 1.0}
"""Tasks wait with the scheduler for the first worker that is free. Dask gives a worker of one thread a second task to
hold, which then waits there for the first, however long that takes, while another worker has nothing to do."""
_NO_SPILL_NOR_PAUSE: Final = {f"distributed.worker.memory.{name}": False for name in ("target", "spill", "pause")}
"""Workers hold only descriptions of work, and never spill them to disk, where they would outlive an erasure. Nor do
they pause: a paused worker waits until memory is freed, but allocators keep it for the next task, so all workers would
wait for ever."""


@contextmanager
def workers(section: DaskSection = _DEFAULT) -> Iterator[OnDask]:
    """Give workers on a Dask cluster: the one by address, else a local one that lives as long as the context.

    A local cluster makes a TLS key of its own. Raises `WorkersError` if no scheduler answers at the address within ten
    seconds, no worker of it takes a task within thirty, a file for TLS is not there, or the memory limit is no amount.
    """
    # distributed costs a third of a second to import and many commands need no cluster.
    import dask
    from distributed import Client, Security

    if address := section.address:
        for name, path in (tls := section.tls).items():
            if not os.path.isfile(path):  # noqa: PTH113 - as Dask takes it
                raise WorkersError("no such file", where=f"[dask] {name} = {path}", hint="name a PEM file")
        security = {"security": Security(require_encryption=True, **tls)} if tls else {}
        with _client(address, security) as client:
            _refuse_without_workers(client, address)
            _LOG.info("Dask scheduler %s, dashboard %s", address, client.dashboard_link or "none")
            yield OnDask(client, is_ours=False)
        return
    _check_memory(section.memory_limit)
    variables = {_PURGE: "-1"} | ({_WITHOUT: without} if (without := _slow_features()) else {})
    added = {name: value for name, value in variables.items() if name not in os.environ}
    kept = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in added.items()}
    count = section.workers or min(4, usable_cores())
    with _interrupts_held(), dask.config.set(_QUIET | _ONE_QUEUE | _NO_SPILL_NOR_PAUSE | kept | {_TRIM: None}):
        cluster = _local_cluster(count, section.memory_limit)
    for name in added:  # Dask tells its workers by setting them here: they are not for this process
        os.environ.pop(name, None)
    # Not the default of this process: that would have to end in the thread in which it began (`shared_cluster`).
    with cluster, Client(cluster, set_as_default=False) as client:
        yield OnDask(client)


@cache
def _slow_features(processors: Path = Path("/proc/cpuinfo")) -> str:
    """Names of what `_WITHOUT` should leave out on this machine: AVX-512 on Zen 4; empty elsewhere."""
    try:
        first = processors.read_text("utf-8", "replace").partition("\n\n")[0]
    except OSError:
        return ""
    facts = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in first.splitlines())}
    is_zen_4 = facts.get("vendor_id") == ["AuthenticAMD"] and facts.get("cpu family") == ["25"]
    if not is_zen_4 or "avx512f" not in facts.get("flags", ()):  # Zen 3 has none
        return ""
    import numpy as np

    here = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    return " ".join(name for name in here if name.startswith(("AVX512", "X86_V4")))


def _local_cluster(count: int, memory_limit: str) -> Any:  # noqa: ANN401 - distributed ships no types
    """Return a cluster of this machine's own. Raises `ClusterNotStartedError`; nothing of it is left then."""
    try:
        return import_module("ranklake.lake.plans.local_cluster").local_cluster(count, memory_limit)
    except (OSError, TimeoutError, RuntimeError) as error:
        reason: BaseException = error
        while reason.__cause__ is not None:  # Dask wraps it: the first one says why
            reason = reason.__cause__
        reason_text = " ".join(str(reason).split()) or type(reason).__name__
        hint = "free memory and processes, or set fewer [dask] workers; then run it again"
        raise ClusterNotStartedError(f"{count} Dask workers did not start here: {reason_text}", hint=hint) from error


def _client(address: str, security: Mapping[str, Any]) -> Any:  # noqa: ANN401 - distributed ships no types
    """Return a client of the scheduler at an address. Raises `WorkersError`.

    A client that reached nobody is collected here. Dask closes it when it is collected, under a lock that each client
    takes to start: within the start of the next one it would wait for itself for ever.
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
    """Raise `WorkersError` where no worker takes a task in time: all others would wait there for ever."""
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
    """Give workers that do small work in this process, and start a local cluster for the first that is large.

    With an address, all work goes to that cluster from the start; with a number of workers, all work goes to a local
    cluster. Within `shared_cluster`, the local cluster is that of the block. Raises what `workers` does, and at once
    where the memory limit is no amount.
    """
    if section.address:
        with workers(section) as pool:
            yield pool
        return
    around = _HELD.get()
    crew = around if around is not None and around.section == section else _Crew(section)
    try:
        yield cast("Workers", crew.workers())
    except BaseException:
        crew.close()
        raise
    crew.count_requests()
    if crew is not around:
        crew.close()


@contextmanager
def shared_cluster(section: DaskSection = _DEFAULT) -> Iterator[None]:
    """Have all `on_demand` within the block share one local cluster, which starts with the first work that is worth it.

    A cluster on which something failed is closed, and the next stage that needs one starts another. A cluster by
    address is not held: after an outage the next stage connects again.
    """
    crew = _Crew(section)
    before = _HELD.set(crew)
    try:
        yield
    finally:
        _HELD.reset(before)
        crew.close()


class _Crew:
    """A local cluster of a section that may start, and end, several times."""

    def __init__(self, section: DaskSection) -> None:
        _check_memory(section.memory_limit)
        self.section = section
        self._stack = ExitStack()
        self._workers: OnDemand | None = None
        self._started: OnDask | None = None

    def count_requests(self) -> None:
        """Add the workers' requests to stores to this process's counts."""
        if self._started is not None:
            for counts in self._started.client.run(take_counts).values():
                COUNTS.update(counts)

    def _start(self) -> OnDask:
        self._started = self._stack.enter_context(workers(self.section))
        return self._started

    def workers(self) -> OnDemand:
        """Return workers that start with the first work that is worth it, or that work here already."""
        if self._workers is None:
            self._workers = OnDemand(self._start, least_cpu_s=0 if self.section.workers else WORTH_CPU_S)
        return self._workers

    def close(self) -> None:
        """End the cluster, if it has started."""
        self._workers = self._started = None
        self._stack.close()


_HELD: Final[ContextVar[_Crew | None]] = ContextVar("ranklake_workers", default=None)
"""The cluster that the stages of a pipeline share."""


def _check_memory(limit: str) -> None:
    """Raise `WorkersError` where a memory limit cannot be one: sooner than Dask would, and without importing it all."""
    from dask.utils import parse_bytes

    try:
        if limit != "auto":
            parse_bytes(limit)
    except ValueError as error:
        hint = "write it like 2GiB, under [dask] memory_limit"
        raise WorkersError(f"{limit!r} is not an amount of memory", hint=hint) from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C until the block ends.

    Threads and processes begin with the signal mask of the thread that starts them. So the cluster's thread, and every
    worker that it ever starts, never gets the interrupt of the terminal: it is for the command alone, which then closes
    the cluster.
    """
    resource_tracker.ensure_running()  # the first to need it would start it, and open the mask again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
