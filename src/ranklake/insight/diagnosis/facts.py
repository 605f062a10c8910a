"""Results of an analysis as plain facts: separate from its arrays, and from how they are shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ranklake.insight.diagnosis.critical_path import CriticalPath
from ranklake.insight.diagnosis.what_if import WhatIf, Worker


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean seconds of a step: as recorded, without launch delays, ideal."""

    recorded: float
    no_delay: float
    ideal: float


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """How much slower a run's attempt was than it had to be, and what made it so; see `WhatIf`.

    Attributes
    ----------
    run, attempt
        Which.
    s
        Slowdown of the whole, as a ratio.
    by_kind, by_stage, by_dp_rank, by_worker
        Slowdown of each part alone, slowest first.
    m_w, m_s
        Share of the loss that the worst ranks, and the last stage, make; None where there is none.
    worst_ranks
        Which ranks `m_w` is about.
    per_step
        Slowdown of each step, by its number.
    step_time_s
        Mean step times.
    critical_path
        Shares of the time on the steps' critical paths, and what set the pace in each step.
    notes
        What was left out or assumed, a line each.
    """

    run: str
    attempt: int
    s: float
    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_dp_rank: Mapping[int, float]
    by_worker: Sequence[Worker]
    m_w: float | None
    m_s: float | None
    worst_ranks: Sequence[int]
    per_step: Mapping[int, float]
    step_time_s: StepTimes
    critical_path: CriticalPath
    notes: Sequence[str]


def slowdowns(run: str, attempt: int, found: WhatIf) -> Slowdowns:
    """Return what an analysis tells."""
    return Slowdowns(
        run=run,
        attempt=attempt,
        s=found.s,
        by_kind=dict(found.by_kind),
        by_stage=dict(found.by_stage),
        by_dp_rank=dict(found.by_dp_rank),
        by_worker=list(found.workers),
        m_w=found.m_w,
        m_s=found.m_s,
        worst_ranks=[one.rank for one in found.workers[: found.worst]],
        per_step=dict(found.step_s),
        step_time_s=StepTimes(found.recorded_ns / 1e9, found.no_delay_ns / 1e9, found.ideal_ns / 1e9),
        critical_path=found.path,
        notes=list(found.trace.notes),
    )
