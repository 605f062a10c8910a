"""Agent run: the agent's own run, which is written without numpy, pyarrow or threads of its own.

A run of `start` seals what it records. This one hands its stream over, every few minutes, as a process does that ends:
it is then adopted, sealed and sent like any other, by a `WorkerTask`, and the next row opens another stream.
"""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ranklake.capture.common.gaps import LOGGER, RefusedError
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.lanes.lane import Lane
from ranklake.capture.lanes.masks import row_masks
from ranklake.capture.node.agent_metrics import COUNTERS, GAUGES, AgentMetrics
from ranklake.capture.node.spool_monitor import SpoolMonitor
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.provenance.provenance import run_row
from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.samplers.host import HostSampler
from ranklake.capture.samplers.inprocess import gpus
from ranklake.capture.samplers.prometheus import PrometheusSampler
from ranklake.capture.samplers.sample import Holders, Sampler, SampleWriter
from ranklake.capture.training.run import Run
from ranklake.segments.segment import AGENT_JOB

ANCHOR_EVERY_S: Final = 10.0
"""How often times are noted, and what was recorded is brought to the disk; a killed process loses nothing of it."""
HAND_OVER_S: Final = 300.0
"""How long the agent's own rows wait to be sealed, unless told otherwise."""
_FILE_BYTES: Final = {"scalars": 1 << 16, "rows": 1 << 16, "intervals": 1 << 14, "spans": 1 << 14}


class AgentRun:
    """A run named ``ranklake-agent-<host>-<time of its start>``: each start of an agent is a run of its own.

    Parameters
    ----------
    root
        The local spool.
    spool
        Where the segments go.
    hand_over_s
        How long rows wait to be sealed.

    Attributes
    ----------
    run
        Records. Only the thread that calls `tick` may use it.
    """

    def __init__(
        self, root: Path, spool: str, settings: CaptureSettings | None = None, *, hand_over_s: float = HAND_OVER_S
    ) -> None:
        # One thread writes, and nobody seals here: values that find no room cannot be folded.
        chosen = replace(settings or CaptureSettings(), shards="never", backpressure="drop_newest", sampling="")
        masks = row_masks(chosen, lambda _, message: LOGGER.warning("ranklake: %s", message))
        host = masks.masked_text("runs", "host", socket.gethostname())
        host = re.sub(r"[^A-Za-z0-9._-]", "-", host)[:64]
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        launch = Launch(run=f"{AGENT_JOB}-{host}-{began}", local_world_size=1, node_count=1)
        self._recorder = Recorder(root, launch, spool, chosen, _FILE_BYTES)
        for lane in self._recorder.slots.values():
            assert isinstance(lane, Lane)
            lane.alone = True
        self.run = Run(launch, self._recorder)
        self._recorder.records["runs"].append(time.monotonic_ns(), run_row(launch, AGENT_JOB, {}, chosen))
        self.run.event("run_start")
        # Something is sealed in each such interval: a node of which nothing comes for long is silent.
        self.run.event("rank_start", launcher=launch.launcher, world_size=launch.world_size, interval_s=hand_over_s)
        self._hand_over_s = hand_over_s
        now = time.monotonic()
        self._next_anchor, self._next_hand_over = now, now + hand_over_s

    def tick(self) -> bool:
        """Do what is due; True if the stream was handed over. Nothing is raised: troubles are reported once."""
        now = time.monotonic()
        handed_over = False
        if now >= self._next_anchor:
            self._next_anchor = now + ANCHOR_EVERY_S
            self._attempt("noting the time", self._note)
        if now >= self._next_hand_over:
            self._next_hand_over = now + self._hand_over_s
            self._attempt("handing over", self._recorder.hand_over)
            handed_over = True
        return handed_over

    def sample_writer(self, samplers: Sequence[Sampler]) -> SampleWriter:
        """Return what writes what samplers give into the run."""
        rows, slots = self.run.rows, self.run.slots
        assert slots is not None
        return SampleWriter(rows.sink, rows.events, slots.meter, samplers)

    def close(self) -> None:
        """End the run; what it recorded is adopted by whoever looks next."""
        self.run.close()

    def _attempt(self, doing: str, work: Callable[[], object]) -> None:
        self._recorder.gaps.attempt(doing, work, lambda: None)

    def _note(self) -> None:
        recorder = self._recorder
        recorder.masks.look()
        if recorder.stream is not None and recorder.stream.is_gone():
            recorder.abandon_stream()
        recorder.gap_notes.flush()
        with contextlib.suppress(RefusedError):
            recorder.note_time()
            stream = recorder.require()
            recorder.sync()
            # All that this run left in the local spool counts, not the present stream alone.
            recorder.budget.look(*(path for path in stream.folder.parent.iterdir() if path.is_dir()))


EVERY_S: Final = 60.0


class SelfMetrics:
    """Keeps the figures in a run, by one thread.

    Parameters
    ----------
    every_s
        Least time between two entries.
    """

    def __init__(self, run: Run, *, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._next = 0.0
        self._values = [
            (figure, run.scalar(name, kind=kind))
            for kind, family in (("gauge", GAUGES), ("counter", COUNTERS))
            for name, (figure, _, _) in family.items()
        ]

    def note(self, figures: AgentMetrics) -> None:
        """Record the figures, if the last entry is old enough. Nothing is raised."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        for figure, scalar in self._values:
            scalar.add(getattr(figures, figure))


IDLE_S: Final = 10.0
"""Time between ticks of an agent that samples nothing but its own figures."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What to sample.

    Attributes
    ----------
    hardware
        The node's GPUs and the host.
    every_s, scrape_every_s
        Time between samples; between reads of a page.
    scrape
        URLs of pages in Prometheus' text format.
    """

    hardware: bool = True
    every_s: float = 1.0
    scrape: tuple[str, ...] = ()
    scrape_every_s: float = 15.0


def samplers(sources: Sources, holders: Holders, root: Path) -> list[Sampler]:
    """Return what these sources are sampled by."""
    chosen: list[Sampler] = []
    if sources.hardware:
        chosen.append(HostSampler(holders, root))
        chosen.append(gpus(holders, wherever=True))
    chosen += [PrometheusSampler(url, holders, sources.scrape_every_s) for url in sources.scrape]
    return chosen


def sample(root: Path, spool: str, sources: Sources, monitor: SpoolMonitor, over: threading.Event) -> None:
    """Record the agent's figures and samples in a run of its own until it is over. Nothing is raised."""
    try:
        _sample(root, spool, sources, monitor, over)
    except Exception as error:  # noqa: BLE001 - a bug of ours: what ranks record is sent all the same
        LOGGER.warning("ranklake: the node is not sampled any more: %s: %s", type(error).__name__, error)


def _sample(root: Path, spool: str, sources: Sources, monitor: SpoolMonitor, over: threading.Event) -> None:
    node = AgentRun(root, spool)
    writer = node.sample_writer(samplers(sources, lambda: monitor.holders, root))
    metrics = SelfMetrics(node.run)
    every_s = sources.every_s if sources.hardware or sources.scrape else IDLE_S
    due = time.monotonic()
    while not over.is_set():
        writer.tick()
        metrics.note(monitor.figures)
        node.tick()
        due = max(due + every_s, time.monotonic())  # a tick that took long is not made up for
        over.wait(due - time.monotonic())
    writer.close()
    node.close()
