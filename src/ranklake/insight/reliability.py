"""Reliability: how often many nodes fail, what share of its time a run then trains, and how often it should save.

Sources: Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (HPCA 2025,
arXiv:2410.21680), section on the expected ETTR; Young, "A first order approximation to the optimum checkpoint interval"
(CACM 1974); Daly (FGCS 2006), of whose estimate Young's is the first term.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.insight.runs.asking import Ask

DAY_S: Final = 86_400.0
_OF_RUN: Final = """SELECT run, failures, preemptions, checkpoint_mean_s AS save_s, checkpoint_interval_s AS interval_s,
  under_way_ns / 1e9 / nullif(failures + preemptions, 0) AS between_interruptions_s
FROM run_goodput"""


def time_between_failures_s(failures_per_1000_node_days: float, nodes: int) -> float:
    """Return the mean time between failures of any of so many nodes, in s; infinite if none fails.

    Meta's projection: 6.50 failures per 1,000 node-days, 16,384 GPUs on 2,048 nodes.

    >>> round(time_between_failures_s(6.50, 2048) / 3600, 1)
    1.8
    """
    failures_a_day = failures_per_1000_node_days / 1000 * nodes
    return DAY_S / failures_a_day if failures_a_day else math.inf


def expected_ettr(
    between_failures_s: float,
    checkpoint_interval_s: float,
    restart_s: float,
    queue_s: float = 0.0,
    run_s: float = math.inf,
) -> float:
    """Return the expected effective training time ratio: productive time over time in the queue and scheduled.

    With R productive, U unproductive, Q queued, u a restart's overhead, c the checkpoint interval, f failures per time
    scheduled: f (R + U) failures cost u + c/2 each, the first start u, and each start queues for q; so
    U = u + f (R + U) (u + c/2), Q = q (1 + f (R + U)), ETTR = R / (Q + R + U). Writing checkpoints costs nothing here.

    Parameters
    ----------
    between_failures_s
        Mean time between interruptions of the whole run: failures and preemptions.
    restart_s, queue_s
        From a start to the first step, and from an interruption to the next start.
    run_s
        Productive time of the run; a long one pays its first start and wait with nothing.

    Returns
    -------
    float
        From 0, where a run never gets on, to 1.

    Examples
    --------
    The paper's case: 16,000 GPUs that save each five minutes, and start within five.

    >>> round(expected_ettr(time_between_failures_s(6.50, 2000), 300, 300), 2)
    0.93
    """
    rate = 1 / between_failures_s
    lost = rate * (restart_s + checkpoint_interval_s / 2)
    if lost >= 1:
        return 0.0
    scheduled = (1 + restart_s / run_s) / (1 - lost)
    return 1 / (scheduled * (1 + rate * queue_s) + queue_s / run_s)


def best_checkpoint_interval_s(save_s: float, between_interruptions_s: float) -> float | None:
    """Return the interval that loses least, by Young and Daly; None where saving takes no time, or nothing interrupts.

    A run that is preempted loses its work as one that fails does: both count as interruptions.

    >>> round(best_checkpoint_interval_s(60, 2 * 3600), 1)
    929.5
    """
    if save_s <= 0 or not math.isfinite(between_interruptions_s):
        return None
    return math.sqrt(2 * save_s * between_interruptions_s)


@dataclass(frozen=True, slots=True)
class RunReliability:
    """What interrupted a run, and how it saves.

    Attributes
    ----------
    failures, preemptions
        Interruptions of either kind.
    between_interruptions_s
        Time under way over interruptions; None without any.
    save_s, interval_s
        Mean time of a checkpoint, and between two; None where none is known.
    """

    run: str
    failures: int
    preemptions: int
    between_interruptions_s: float | None
    save_s: float | None
    interval_s: float | None

    @property
    def best_interval_s(self) -> float | None:
        """How often it should save; None where that is not known."""
        if self.between_interruptions_s is None or self.save_s is None:
            return None
        return best_checkpoint_interval_s(self.save_s, self.between_interruptions_s)


def reliability_of(ask: "Ask", run: str) -> RunReliability | None:
    """Return what a run's rollup says, by its whole name; None if it has none. Raises what queries raise."""
    row = ask(f"{_OF_RUN} WHERE run = {literal(run)}").seen().first_row
    return RunReliability(**row) if row else None
