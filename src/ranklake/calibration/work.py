"""The size of the experiment's work in every step of every rank."""

from collections import deque
from collections.abc import Iterable
from typing import Final

SIDE: Final = 128
PRODUCTS: Final = 4
FLOPS: Final = PRODUCTS * 2 * SIDE**3
"""A product of two square matrices has side^3 multiplications and as many additions."""
REDUCED_BYTES: Final = 1 << 18
WRITTEN_BYTES: Final = 1 << 16
TOKENS: Final = 2048
SAMPLES: Final = 4
DATA_S: Final = 0.002
FORWARD_S: Final = 0.008
SLOW_S: Final = 0.012
"""What the slow rank's forward pass takes longer, at least."""
_NOISE_RATIO: Final = 1.5
_MOST_SLOW_S: Final = 0.5
_STEPS: Final = 20


class Noise:
    """How much longer than planned a rank's own work took of late: what other processes of the machine take from it."""

    def __init__(self) -> None:
        self._of_late: deque[float] = deque(maxlen=_STEPS)

    def add(self, planned_s: float, took_s: Iterable[float]) -> None:
        """Take note of a step's own work, without what it waited for other ranks."""
        self._of_late.append(max(sum(took_s) - planned_s, 0.0))

    @property
    def slow_s(self) -> float:
        """What the slow rank's next forward pass takes longer: beyond what noise makes of either rank.

        On a machine that takes tens of milliseconds from a rank at every other step, 12 ms more do not make one slow.
        """
        return min(max(SLOW_S, _NOISE_RATIO * max(self._of_late, default=0.0)), _MOST_SLOW_S)
