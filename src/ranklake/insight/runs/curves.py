"""Curves of a run: by parts of its steps, so that they are as small for a hundred thousand steps as for a hundred."""

from dataclasses import dataclass
from typing import Final

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Answered, Ask

PARTS: Final = 300
HEAT_ROWS, HEAT_PARTS = 64, 96
MOST_METRICS: Final = 12
_METRIC_PARTS: Final = 100
MOST_RANK_STEPS: Final = 500_000_000
"""Rows of a run in ``steps`` that are summed up for its page: 4,096 ranks by 100,000 steps are fewer."""


@dataclass(frozen=True, slots=True)
class Curves:
    """A run by parts of its steps.

    Attributes
    ----------
    steps
        Loss, times, phases and pace; at most `PARTS` rows.
    losses
        Least and greatest loss of any rank; likewise.
    utilization
        MFU and HFU; likewise.
    heat
        How much longer ranks take than usual; at most `HEAT_ROWS` groups of ranks by `HEAT_PARTS`.
    metrics
        What else was recorded by step; at most `MOST_METRICS` metrics.
    names
        All metrics that were recorded, with the count of their values.
    """

    steps: Answered
    losses: Answered
    utilization: Answered
    heat: Answered
    metrics: Answered
    names: Answered


def curves(ask: Ask, run: str, rank_steps: int, scalars: str = "scalars") -> Curves:
    """Return the curves of a run that has so many rows in ``steps``.

    `scalars` is what is read in the place of that table, as `ranklake.lake.rollups.life.continuous` gives it.
    """
    too_many = rank_steps > MOST_RANK_STEPS
    why = f"{rank_steps:,} rows are too many to sum up for a page" if too_many else ""
    losses = statements.of_run("band", run, parts=PARTS)
    heat = statements.of_run("heat", run, rows=HEAT_ROWS, parts=HEAT_PARTS)
    return Curves(
        steps=ask(statements.of_run("curve", run, parts=PARTS)),
        losses=Answered(losses, (), why) if why else ask(losses),
        utilization=ask(statements.of_run("utilization", run, parts=PARTS)),
        heat=Answered(heat, (), why) if why else ask(heat),
        metrics=ask(statements.of_run("metrics", run, parts=_METRIC_PARTS, most=MOST_METRICS, scalars=scalars)),
        names=ask(statements.of_run("metric_names", run, scalars=scalars)),
    )
