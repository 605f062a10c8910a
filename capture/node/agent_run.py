"""Agent run: the agent's own run, which is recorded without numpy, pyarrow and further threads.

A run of `start` seals its own rows. This run closes its stream every few minutes instead, as if the process had ended.
A `WorkerTask` then adopts, seals and sends the stream, and the next row opens a new one.
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
"""Time between anchors, and between syncs to disk."""
HAND_OVER_S: Final = 300.0
"""Default time until the agent's own rows are sealed."""
_FILE_BYTES: Final = {"scalars": 1 << 16, "rows": 1 << 16, "intervals": 1 << 14, "spans": 1 << 14}


class AgentRun:
    """A run named ``ranklake-agent-<host>-<start time>``. Each start of an agent is a new run.

    Parameters
    ----------
    root
        The local spool.
    spool
        Destination of segments.
    hand_over_s
        Seconds until rows are sealed.

    Attributes
    ----------
    run
        The run. Only the thread that calls `tick` may use it.
    """

    def __init__(
        self, root: Path, spool: str, settings: CaptureSettings | None = None, *, hand_over_s: float = HAND_OVER_S
    ) -> None:
        # A single thread writes, and no sealer runs, so values that exceed the budget cannot be aggregated.
        capture_settings = replace(
            settings or CaptureSettings(), shards="never", backpressure="drop_newest", sampling=""
        )
        masks = row_masks(capture_settings, lambda _, message: LOGGER.warning("ranklake: %s", message))
        host = masks.masked_text("runs", "host", socket.gethostname())
        host = re.sub(r"[^A-Za-z0-9._-]", "-", host)[:64]
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        launch = Launch(run=f"{AGENT_JOB}-{host}-{began}", local_world_size=1, node_count=1)
        self._recorder = Recorder(root, launch, spool, capture_settings, _FILE_BYTES)
        for lane in self._recorder.slots.values():
            assert isinstance(lane, Lane)
            lane.alone = True
        self.run = Run(launch, self._recorder)
        self._recorder.records["runs"].append(time.monotonic_ns(), run_row(launch, AGENT_JOB, {}, capture_settings))
        self.run.event("run_start")
        # A segment is sealed in each such interval; a node without one for longer counts as silent.
        self.run.event("rank_start", launcher=launch.launcher, world_size=launch.world_size, interval_s=hand_over_s)
        self._hand_over_s = hand_over_s
        now = time.monotonic()
        self._next_anchor, self._next_hand_over = now, now + hand_over_s

    def tick(self) -> bool:
        """Do the work that is due; return whether the stream was closed for sealing. Errors are logged once."""
        now = time.monotonic()
        is_handed_over = False
        if now >= self._next_anchor:
            self._next_anchor = now + ANCHOR_EVERY_S
            self._attempt("recording an anchor", self._note)
        if now >= self._next_hand_over:
            self._next_hand_over = now + self._hand_over_s
            self._attempt("handing over", self._recorder.hand_over)
            is_handed_over = True
        return is_handed_over

    def sample_writer(self, samplers: Sequence[Sampler]) -> SampleWriter:
        """Return a writer that records the samples of samplers in the run."""
        rows, slots = self.run.rows, self.run.slots
        assert slots is not None
        return SampleWriter(rows.sink, rows.events, slots.meter, samplers)

    def close(self) -> None:
        """End the run; the next worker adopts its stream."""
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
            # Count all streams of this run in the local spool, not only the current one.
            recorder.budget.look(*(path for path in stream.folder.parent.iterdir() if path.is_dir()))


EVERY_S: Final = 60.0


class SelfMetrics:
    """Records the agent's metrics in a run.

    Parameters
    ----------
    every_s
        Shortest time between two records.
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
        """Record the metrics if `every_s` has passed. Nothing is raised."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every_s
        for figure, scalar in self._values:
            scalar.add(getattr(figures, figure))


IDLE_S: Final = 10.0
"""Time between ticks of an agent that records only its own metrics."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources to sample.

    Attributes
    ----------
    hardware
        Whether to sample the node's GPUs and the host.
    every_s, scrape_every_s
        Time between samples, and between reads of a page.
    scrape
        URLs of pages in Prometheus' text format.
    """

    hardware: bool = True
    every_s: float = 1.0
    scrape: tuple[str, ...] = ()
    scrape_every_s: float = 15.0


def samplers(sources: Sources, holders: Holders, root: Path) -> list[Sampler]:
    """Return the samplers of these sources."""
    capture_settings: list[Sampler] = []
    if sources.hardware:
        capture_settings.append(HostSampler(holders, root))
        capture_settings.append(gpus(holders, wherever=True))
    capture_settings += [PrometheusSampler(url, holders, sources.scrape_every_s) for url in sources.scrape]
    return capture_settings


def sample(root: Path, spool: str, sources: Sources, monitor: SpoolMonitor, over: threading.Event) -> None:
    """Record the agent's metrics and samples in a run until `over` is set. Nothing is raised."""
    try:
        _sample(root, spool, sources, monitor, over)
    except Exception as error:  # noqa: BLE001 - a bug: the agent must continue to send segments
        LOGGER.warning("ranklake: the node is no longer sampled: %s: %s", type(error).__name__, error)


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
        due = max(due + every_s, time.monotonic())  # missed ticks are not repeated
        over.wait(due - time.monotonic())
    writer.close()
    node.close()
