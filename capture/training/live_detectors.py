"""Live detectors: what a guard looks for in one rank's own values, a few microseconds a step.

Each takes one value a step and keeps a window of the last ones, so that its memory is bounded. What lies outside stays
out of the window: a loss that has diverged is not taken for the new normal.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Final

_QUARTILES_TO_DEVIATION: Final = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a detector found.

    Attributes
    ----------
    kind
        ``non_finite``, ``divergence``, ``loss_spike``, ``gradient_spike``, ``zero_gradients``, ``slow_rank``, ``heat``
        or ``stall``.
    step
        Step at which it was found.
    since
        Step of its first sign: the same, or an earlier one.
    message
        One sentence with the figures.
    value, baseline
        What was seen, and what is normal; None where there is no such figure.
    """

    kind: str
    step: int
    since: int
    message: str
    value: float | None = None
    baseline: float | None = None


class Baseline:
    """Median and spread of the last values.

    Parameters
    ----------
    size
        Values that are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """Take a finite value; the oldest one goes where the window is full."""
        if len(self._recent) == self._size:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._recent.append(value)
        insort(self._sorted, value)

    @property
    def median(self) -> float:
        """The middle value. Raises `IndexError` where there is none."""
        return self._sorted[len(self._sorted) // 2]

    @property
    def deviation(self) -> float:
        """Standard deviation as the quartiles have it, which single outliers do not move."""
        count = len(self._sorted)
        return (self._sorted[(3 * count) // 4] - self._sorted[count // 4]) / _QUARTILES_TO_DEVIATION


@dataclass(frozen=True, slots=True)
class Limits:
    """When a value is outside, and when outside values are reported.

    Attributes
    ----------
    deviations, ratio
        A value is outside if it exceeds the median by more than so many deviations and by more than this part of the
        median's size.
    window, warmup
        Values that the baseline has at most, and at least before anything is judged.
    patience
        Consecutive values outside that make a level.
    cooldown
        Steps after a spike in which no other one is reported.
    """

    deviations: float = 8.0
    ratio: float = 0.5
    window: int = 128
    warmup: int = 30
    patience: int = 8
    cooldown: int = 100


class LevelDetector:
    """Finds values far above the last ones: single ones, and a level that stays there.

    Parameters
    ----------
    name
        What the value is called in messages.
    spike
        Kind of finding of a single value.
    lasting
        Kind of finding of a level; empty for none.
    """

    def __init__(self, name: str, spike: str, lasting: str = "", limits: Limits = Limits()) -> None:
        self._name, self._spike, self._lasting, self._limits = name, spike, lasting, limits
        self._baseline = self._former = Baseline(limits.window)
        self._outside = 0
        self._since = 0
        self._spiked_at = -limits.cooldown

    @property
    def is_suspicious(self) -> bool:
        """Whether the last value was outside, and may be the beginning of a level that stays."""
        return self._outside > 0

    def look(self, step: int, value: float) -> Finding | None:
        """Take the value of a step; NaN and infinities are `NonFiniteDetector`'s, and ignored here.

        A level that stays is reported once, and is what the baseline begins anew with: see `go_back`.
        """
        if not math.isfinite(value):
            return None
        baseline, limits = self._baseline, self._limits
        if len(baseline) < limits.warmup:
            baseline.add(value)
            return None
        median = baseline.median
        if value <= median + max(limits.deviations * baseline.deviation, limits.ratio * abs(median)):
            self._outside = 0
            baseline.add(value)
            return None
        self._outside += 1
        if self._outside == 1:
            self._since = step
        if self._outside == limits.patience:
            self._outside = 0
            self._former, self._baseline = baseline, Baseline(limits.window)
            if self._lasting:
                message = f"{self._message(value, median)} for {limits.patience} steps"
                return Finding(self._lasting, step, self._since, message, value, median)
        elif self._outside == 1 and not 0 <= step - self._spiked_at < limits.cooldown:  # steps may begin again
            self._spiked_at = step
            return Finding(self._spike, step, step, self._message(value, median), value, median)
        return None

    def go_back(self) -> None:
        """Judge by the level before the last one again: training was rolled back to it."""
        self._baseline, self._outside = self._former, 0

    def _message(self, value: float, median: float) -> str:
        return f"{self._name} is {value:.6g}, where {median:.6g} is normal"


class NonFiniteDetector:
    """Finds NaN and infinities.

    Parameters
    ----------
    name
        What the value is called in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def look(self, step: int, value: float) -> Finding | None:
        """Take the value of a step. Each one that is not finite is a finding: its step must not be trained on."""
        if math.isfinite(value):
            return None
        return Finding("non_finite", step, step, f"{self._name} is {value}", value)


class ZeroDetector:
    """Finds gradients that are exactly zero for many steps: nothing is learnt any more.

    Parameters
    ----------
    patience
        Consecutive zeros that are a finding.
    """

    def __init__(self, patience: int = 20) -> None:
        self._patience = patience
        self._count = 0
        self._since = 0

    def look(self, step: int, value: float) -> Finding | None:
        """Take the value of a step."""
        if value != 0.0:
            self._count = 0
            return None
        self._count += 1
        if self._count == 1:
            self._since = step
        if self._count != self._patience:
            return None
        message = f"the gradient norm is zero for {self._patience} steps"
        return Finding("zero_gradients", step, self._since, message, 0.0)


class SlowRankDetector:
    """Finds out that this rank's own work takes longer than that of the others.

    Parameters
    ----------
    ratio
        Its median excess over the median rank.
    window
        Steps that are compared.
    """

    def __init__(self, ratio: float = 0.1, window: int = 50) -> None:
        self._ratio, self._window = ratio, window
        self._excesses = Baseline(window)
        self._is_slow = False

    def look(self, step: int, own_s: float, median_s: float) -> Finding | None:
        """Take the time of this rank's own work in a step, and that of the median rank, both in seconds."""
        if not own_s > 0 or not median_s > 0:
            return None
        self._excesses.add(own_s / median_s - 1)
        if len(self._excesses) < self._window:
            return None
        excess = self._excesses.median
        was_slow, self._is_slow = self._is_slow, excess > self._ratio
        if was_slow or not self._is_slow:
            return None
        message = f"this rank's own work takes {100 * excess:.0f} % longer than that of the median rank"
        return Finding("slow_rank", step, max(0, step - self._window + 1), message, own_s, median_s)
