"""Sampling: the agent's samplers, from its start to its end, in a thread."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ranklake.capture.common.gaps import LOGGER
from ranklake.capture.node.agent_run import AgentRun
from ranklake.capture.node.self_metrics import SelfMetrics
from ranklake.capture.node.spool_monitor import SpoolMonitor
from ranklake.capture.samplers.host import HostSampler
from ranklake.capture.samplers.inprocess import gpus
from ranklake.capture.samplers.prometheus import PrometheusSampler
from ranklake.capture.samplers.sample import Holders, Sampler

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
    found: list[Sampler] = []
    if sources.hardware:
        found.append(HostSampler(holders, root))
        found.append(gpus(holders, wherever=True))
    found += [PrometheusSampler(url, holders, sources.scrape_every_s) for url in sources.scrape]
    return found


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
