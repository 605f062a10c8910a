"""Thresholds of the rollups, each with the reason for its value."""

from typing import Final

WARMUP_STEPS: Final = 10
"""First steps of an attempt that are not compared: caches fill, kernels are chosen, allocators grow."""
MIN_STEPS: Final = 50
"""Steps that a comparison of ranks needs; fewer say nothing about steadiness."""
MIN_EXCESS_RATIO: Final = 0.10
"""Median excess over its peers that makes a rank worth naming: below it noise of a shared machine looks alike."""
MIN_SLOWER_RATIO: Final = 0.90
"""Share of steps in which a straggler is slower than its peers: a bad quarter of an hour is not a slow rank."""
CLEAR_EXCESS_RATIO: Final = 1.0
"""Median excess that names a rank however often peers are slower: others' work holds them up for a time slice, which is
as long as many a step. That half the steps take a rank twice as long is no noise around nothing."""
MAX_P_VALUE: Final = 1e-6
"""Chance at which a verdict stands: one in a million, so that ten thousand ranks give no false name by chance."""
MIN_BURST_RATIO: Final = 0.04
"""Excess beyond a rank's usual one from which a step counts as slow, however quiet the machine."""
BURST_DEVIATIONS: Final = 3.5
"""The same in robust deviations of the excess, the rank's own or all ranks', whichever is more."""
BURST_GAP_STEPS: Final = 3
"""Slow steps no further apart are one episode: what takes a core away takes it for some steps."""
MIN_BURST_STEP_RATIO: Final = 0.003
"""Share of slow steps that makes a rank worth naming."""
MAX_BURST_CHANCE: Final = 1e-5
"""Chance at which any rank of a run would have so many of the episodes, if all were alike."""
HANG_FACTOR: Final = 10.0
"""Median step times beyond which a step is a start (the first) or a hang."""
STALL_S: Final = 60
"""Seconds without anything known that count as a stall; shorter gaps are unattributed."""
QUIET_DAYS: Final = 31
"""Days in a row without any sign that have a row of goodput each; more of them have one together."""
MAX_PLAUSIBLE_RATIO: Final = 0.9
"""Share of a published dense peak that training does not reach: bare matrix products reach 86 % of an A100's, 83 % of a
GH200's, 80 % of an H100's (Bekman, Machine Learning Engineering, table of maximum achievable matmul FLOPS)."""
MAX_INTERVAL_S: Final = 300
"""Longest time that one sample speaks for: beyond it there is a gap."""
MIN_PEERS: Final = 4
"""Hosts with a link of one name and make, from which on most of them say how fast it should be."""
MAX_WATTS: Final = 2_000
"""More than any device draws: a counter of energy cannot grow faster."""
MAX_DAYS: Final = 400
"""Days from a row's date beyond which a time in it is a clock's fault."""
MAX_SNAPSHOT_S: Final = 900
"""Longest time that a snapshot of a pool stands for, if it does not say itself."""
HELD_RATIO: Final = 0.9
"""Share of an hour from which a node counts as held all along."""
LOW_RATIO: Final = 0.1
"""Utilisation below which a node that is held counts as low."""
INCIDENT_GAP_S: Final = 1800
"""Seconds within which findings of a run or host follow each other and are one incident: a restart, its start-up and
the return of the same fault take less; two faults of a day rarely do."""

DRIFT: Final = {"psi": 0.2, "js": 0.1, "wasserstein": 0.1, "null_ratio_shift": 0.05}
"""From which value on a statistic counts as drift: 0.2 of PSI as credit scoring has it, 0.1 of distances as Evidently
has them by default, one request in twenty more without a feature."""
