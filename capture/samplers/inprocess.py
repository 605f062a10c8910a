"""In process: samplers in a thread of local rank 0, for nodes without an agent. They pause while an agent runs."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ranklake.capture.common.gaps import LOGGER
from ranklake.capture.lifecycle.lifecycle import Lifecycle
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.samplers.gpu import GpuSampler
from ranklake.capture.samplers.gpu_parts import load_nvml
from ranklake.capture.samplers.host import HostSampler
from ranklake.capture.samplers.sample import Holders, Row, Sampler, SampleWriter, SourceStatus
from ranklake.capture.spool.leader import leader
from ranklake.capture.spool.owner import HELD, OWNER_FILE, Owner
from ranklake.capture.spool.stream_files import StreamName, streams

DEVICE_FILES: Final = ("/dev/nvidiactl", "/dev/dxg")
"""Where NVML can find a device, one of these exists: on Linux, and in WSL."""
_LOOK_S: Final = 10.0
_STOP_S: Final = 1.0


class SpoolHolders:
    """The live recording processes of a local spool, by their owner.json; refreshed every ten seconds."""

    def __init__(self, root: Path, own: StreamName | None) -> None:
        self._root, self._own = root, own
        self._streams: dict[int, StreamName] = {}
        self._next = 0.0

    def __call__(self) -> Mapping[int, StreamName]:
        """Return the processes' streams by pid."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOOK_S
            self._streams = dict(self._look())
            if self._own is not None:
                self._streams[os.getpid()] = self._own
        return self._streams

    def _look(self) -> Iterator[tuple[int, StreamName]]:
        for folder in streams(self._root):
            name = StreamName.of(folder)
            if name is None or HELD.has(name.incarnation):  # opening and closing an own file would release its lock
                continue
            try:
                owner = Owner.from_json((folder / OWNER_FILE).read_bytes())
            except (OSError, ValueError):
                continue
            if owner.runs():
                yield owner.pid, name


class InProcess:
    """Samples the node from within a rank's process.

    Parameters
    ----------
    writer
        Writer of the samples.
    root
        The local spool.
    every_s
        Time between ticks.
    beside_agent
        Whether to continue while an agent serves the local spool.
    """

    def __init__(self, writer: SampleWriter, root: Path, every_s: float, *, beside_agent: bool) -> None:
        self._writer, self._root, self._every_s, self._beside_agent = writer, root, every_s, beside_agent
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ranklake-sample", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `RuntimeError` if the system cannot start one."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait at most a second, because a driver may hang."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        next_look = 0.0
        sampled_by_agent = False
        due = time.monotonic() + self._every_s  # shorter processes are not training
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._every_s, time.monotonic())
            if not self._beside_agent and time.monotonic() >= next_look:
                next_look = time.monotonic() + self._every_s
                sampled_by_agent = leader(self._root) is not None
            if not sampled_by_agent:
                self._writer.tick()
        self._writer.close()


class _NoDevice:
    """Replaces the sampler of GPUs on hosts without GPUs; reports the reason once."""

    def __init__(self, problem: str) -> None:
        self._status, self._problem = SourceStatus("nvml"), problem

    def sample(self, now_ns: int) -> list[Row]:
        """Return the event at the first call; empty later."""
        return self._status.failed(self._problem, now_ns)

    def close(self) -> None:
        """Do nothing: no resource is open."""


def gpus(holders: Holders, *, wherever: bool = False) -> Sampler:
    """Return the sampler of GPUs. Without a device file, the library is loaded only if `wherever` is true."""
    if not wherever and not any(Path(file).exists() for file in DEVICE_FILES):
        return _NoDevice("no device file of NVIDIA's")
    try:
        return GpuSampler(load_nvml(), holders)
    except ImportError:
        return _NoDevice("nvidia-ml-py is not installed")


def samples_here(setting: str, launch: Launch) -> bool:
    """Whether this process samples its node: local rank 0, or a process without a launcher."""
    if setting == "off":
        return False
    return launch.local_rank == 0 or (launch.local_rank is None and launch.world_size == 1)


def begin(
    lifecycle: Lifecycle,
    write: Callable[[list[Sampler]], SampleWriter],
    root: Path,
    own: StreamName | None,
    launch: Launch,
) -> None:
    """Start sampling a run's node if its settings say so. Nothing is raised: the run works without samples, too.

    Parameters
    ----------
    write
        Returns a writer that records the samples of samplers in the run.
    own
        The rank's stream.
    """
    settings = lifecycle.settings
    if not samples_here(settings.samplers, launch):
        return
    try:
        holders = SpoolHolders(root, own)
        writer = write([HostSampler(holders, root), gpus(holders)])
        sampling = InProcess(writer, root, settings.sample_every_s, beside_agent=settings.samplers == "on")
        sampling.start()
    except Exception as error:  # noqa: BLE001 - no thread could be started, or a bug
        LOGGER.warning("ranklake: the node is not sampled: %s: %s", type(error).__name__, error)
        return
    lifecycle.closers.append(sampling.stop)
    lifecycle.on_reassigned.append(lambda launch: None if samples_here(settings.samplers, launch) else sampling.stop())
