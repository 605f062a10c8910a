"""Live detectors: find faults in the values of one rank, in a few microseconds per step.

Each detector takes one value per step and keeps a window of recent values, so its memory is bounded. Outliers are kept
out of the window, so a diverged loss does not become the baseline.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Final

_DEVIATIONS_BETWEEN_QUARTILES: Final = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that a detector found.

    Attributes
    ----------
    kind
        ``non_finite``, ``divergence``, ``loss_spike``, ``gradient_spike``, ``zero_gradients``, ``slow_rank``, ``heat``
        or ``stall``.
    step
        Step at which the fault was found.
    since
        Step at which the fault began: `step` or an earlier one.
    message
        One sentence with the figures.
    value, baseline
        The faulty value and the normal one; None if the kind has no such figure.
    """

    kind: str
    step: int
    since: int
    message: str
    value: float | None = None
    baseline: float | None = None


class Baseline:
    """Median and spread of the most recent values.

    Parameters
    ----------
    size
        Number of values to keep.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """Add a finite value; if the window is full, the oldest value is removed."""
        if len(self._recent) == self._size:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._recent.append(value)
        insort(self._sorted, value)

    @property
    def median(self) -> float:
        """The median. Raises `IndexError` without values."""
        return self._sorted[len(self._sorted) // 2]

    @property
    def deviation(self) -> float:
        """Standard deviation estimated from the quartiles, which single outliers do not change."""
        count = len(self._sorted)
        return (self._sorted[(3 * count) // 4] - self._sorted[count // 4]) / _DEVIATIONS_BETWEEN_QUARTILES


@dataclass(frozen=True, slots=True)
class Limits:
    """When a value is an outlier, and when outliers are reported.

    Attributes
    ----------
    deviations, ratio
        A value is an outlier if it exceeds the median by more than `deviations` standard deviations, and also by more
        than `ratio` times the absolute median.
    window, warmup
        Most values of the baseline, and the fewest before any value is checked.
    patience
        Consecutive outliers that count as a new level.
    cooldown
        Steps after a spike during which no further spike is reported.
    """

    deviations: float = 8.0
    ratio: float = 0.5
    window: int = 128
    warmup: int = 30
    patience: int = 8
    cooldown: int = 100


class LevelDetector:
    """Finds values far above the recent ones: single spikes, and lasting new levels.

    Parameters
    ----------
    name
        Name of the value in messages.
    spike
        Kind of finding for a spike.
    lasting
        Kind of finding for a lasting level; empty to report none.
    """

    def __init__(self, name: str, spike: str, lasting: str = "", limits: Limits = Limits()) -> None:
        self._name, self._spike, self._lasting, self._limits = name, spike, lasting, limits
        self._baseline = self._previous_baseline = Baseline(limits.window)
        self._outliers = 0
        self._since = 0
        self._spiked_at = -limits.cooldown

    @property
    def is_suspicious(self) -> bool:
        """Whether the last value was an outlier, possibly the first of a lasting level."""
        return self._outliers > 0

    def look(self, step: int, value: float) -> Finding | None:
        """Check the value of a step; ignore NaN and infinities, which `NonFiniteDetector` checks.

        A lasting level is reported once. After it a new baseline is started; `go_back` returns to the previous one.
        """
        if not math.isfinite(value):
            return None
        baseline, limits = self._baseline, self._limits
        if len(baseline) < limits.warmup:
            baseline.add(value)
            return None
        median = baseline.median
        if value <= median + max(limits.deviations * baseline.deviation, limits.ratio * abs(median)):
            self._outliers = 0
            baseline.add(value)
            return None
        self._outliers += 1
        if self._outliers == 1:
            self._since = step
        if self._outliers == limits.patience:
            self._outliers = 0
            self._previous_baseline, self._baseline = baseline, Baseline(limits.window)
            if self._lasting:
                message = f"{self._message(value, median)} for {limits.patience} steps"
                return Finding(self._lasting, step, self._since, message, value, median)
        elif self._outliers == 1 and not 0 <= step - self._spiked_at < limits.cooldown:  # step numbers may start again
            self._spiked_at = step
            return Finding(self._spike, step, step, self._message(value, median), value, median)
        return None

    def go_back(self) -> None:
        """Return to the baseline before the last level, after training was rolled back."""
        self._baseline, self._outliers = self._previous_baseline, 0

    def _message(self, value: float, median: float) -> str:
        return f"{self._name} is {value:.6g}, where {median:.6g} is normal"


class NonFiniteDetector:
    """Finds NaN and infinities.

    Parameters
    ----------
    name
        Name of the value in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def look(self, step: int, value: float) -> Finding | None:
        """Check the value of a step. Every value that is not finite is a finding: the step must be skipped."""
        if math.isfinite(value):
            return None
        return Finding("non_finite", step, step, f"{self._name} is {value}", value)


class ZeroDetector:
    """Finds gradients that are exactly zero for many steps, so that the model no longer learns.

    Parameters
    ----------
    patience
        Consecutive zeros that count as a fault.
    """

    def __init__(self, patience: int = 20) -> None:
        self._patience = patience
        self._count = 0
        self._since = 0

    def look(self, step: int, value: float) -> Finding | None:
        """Check the value of a step."""
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
    """Finds that this rank's own work takes longer than that of the median rank.

    Parameters
    ----------
    ratio
        Excess over the median rank's time, as a ratio, that counts as slow (median over the window).
    window
        Number of steps to compare.
    """

    def __init__(self, ratio: float = 0.1, window: int = 50) -> None:
        self._ratio, self._window = ratio, window
        self._excesses = Baseline(window)
        self._is_slow = False

    def look(self, step: int, own_s: float, median_s: float) -> Finding | None:
        """Compare the time of this rank's own work in a step with that of the median rank, both in seconds."""
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
