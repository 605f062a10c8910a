"""A run of two stages as the simulation tells it, of which no part is much slower than the others."""

from ranklake.insight.diagnosis.critical_path import CriticalPath, Pace
from ranklake.insight.diagnosis.what_if import Slowdowns, StepTimes, Worker

SOUND = Slowdowns(
    run="r", attempt=0, s=1.2,
    by_kind={"forward-compute": 1.05}, by_stage={1: 1.0, 0: 1.0}, by_dp_rank={1: 1.0, 0: 1.0},
    by_worker=[Worker(3, 1, 1, 1.0), Worker(0, 0, 0, 1.0)],
    m_w=0.1, m_s=0.1, worst_ranks=[3], per_step={1: 1.2}, step_time_s=StepTimes(1.3, 1.2, 1.0), notes=[],
    critical_path=CriticalPath(
        {"forward-compute": 1.0}, {1: 0.75, 0: 0.25}, {3: 0.75, 0: 0.25},
        [Pace(1, 3, 0.75, "forward-compute", 1.0, 1.2e9)],
    ),
)  # fmt: skip
