"""Thresholds of the rollups, each with the reason for its value."""

from typing import Final

WARMUP_STEPS: Final = 10
"""First steps of an attempt that are not compared: caches are filled, kernels are selected, allocators grow."""
MIN_STEPS: Final = 50
"""Least steps for a comparison of ranks."""
MIN_EXCESS_RATIO: Final = 0.10
"""Least median excess over its peers with which a rank is a straggler; noise of a shared machine may reach less."""
MIN_SLOWER_RATIO: Final = 0.90
"""Least share of steps in which a straggler is slower than its peers, so that a short slow period is not enough."""
CLEAR_EXCESS_RATIO: Final = 1.0
"""Median excess with which a rank is a straggler even if peers are often slower. Other processes can take the core of a
peer for a time slice, which may be as long as a step. A median excess of 100 % is more than such noise."""
MAX_P_VALUE: Final = 1e-6
"""Largest p-value of a straggler: one in a million, so that ten thousand ranks give no false one by chance."""
MIN_BURST_RATIO: Final = 0.04
"""Least excess beyond a rank's usual one with which a step is slow, on a machine without noise."""
BURST_DEVIATIONS: Final = 3.5
"""Least excess with which a step is slow, in robust deviations of the excess: the rank's or all ranks', if larger."""
BURST_GAP_STEPS: Final = 3
"""Slow steps at most this far apart are one episode, since a lost core slows down several steps."""
MIN_BURST_STEP_RATIO: Final = 0.003
"""Least share of slow steps with which a rank is reported."""
MAX_BURST_CHANCE: Final = 1e-5
"""Largest chance that any rank of a run has as many of the episodes, if all ranks are equal."""
HANG_FACTOR: Final = 10.0
"""A step that takes longer than this many median steps is a start (the first step) or a hang."""
STALL_S: Final = 60
"""Seconds without any record that count as a stall; shorter gaps are unattributed."""
QUIET_DAYS: Final = 31
"""Most consecutive days without any record that have a row of goodput each; more days have one row together."""
MAX_PLAUSIBLE_RATIO: Final = 0.9
"""Share of a published dense peak that training does not reach. Matrix products alone reach 86 % of an A100's, 83 % of
a GH200's, 80 % of an H100's (Bekman, Machine Learning Engineering, table of maximum achievable matmul FLOPS)."""
MAX_INTERVAL_S: Final = 300
"""Longest time that one sample represents; a longer one is a gap."""
MIN_PEERS: Final = 4
"""Least hosts with a link of one name and model with which the most frequent speed is taken for the right one."""
MAX_WATTS: Final = 2_000
"""More power than any device draws; an energy counter that grows faster is wrong."""
MAX_DAYS: Final = 400
"""Most days between a row's date and a time in it; a time further away comes from a wrong clock."""
MAX_SNAPSHOT_S: Final = 900
"""Longest time that a snapshot of a pool represents, if the snapshot has no interval."""
HELD_RATIO: Final = 0.9
"""Least share of an hour with which a node counts as allocated for the whole hour."""
LOW_RATIO: Final = 0.1
"""Utilization below which an allocated node counts as low."""
INCIDENT_GAP_S: Final = 1800
"""Most seconds between findings of a run or host in one incident. A restart, its start-up and the same fault again take
less; two independent faults are rarely that close."""

DRIFT: Final = {"psi": 0.2, "js": 0.1, "wasserstein": 0.1, "null_ratio_shift": 0.05}
"""Thresholds of statistics of drift: PSI as usual in credit scoring, distances as Evidently's defaults, and 5 % more
requests without a feature."""
