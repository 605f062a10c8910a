"""Agreement: ranks tell each other what they found, so that all of them do the same."""

import sys
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Final

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Vote:
    """The vote of one rank, or the outcome over all ranks.

    Attributes
    ----------
    level
        0 where all is well, 0.5 for a suspicion, else the number of an action.
    since
        Step of the first sign; infinity where there is none.
    own_s
        Time of the rank's own work in this step, in seconds: of all of them, the median.
    """

    level: float
    since: float
    own_s: float


class Agreement:
    """A group of all ranks of torch.distributed, on main memory, so that no GPU is waited for.

    Raises what torch does where there is no process group yet. All ranks make it, and call `reach`, equally often.
    """

    def __init__(self) -> None:
        self._torch: Any = sys.modules["torch"]
        self._distributed: Any = sys.modules["torch.distributed"]
        self._group = self._distributed.new_group(backend="gloo")
        self._all = self._torch.zeros((self._distributed.get_world_size(), 3), dtype=self._torch.float64)
        self._rows = list(self._all.unbind(0))

    def reach(self, vote: Vote) -> Vote:
        """Gather 24 bytes of each rank; return the highest level, the earliest step, and the median of times.

        Raises what torch does, such as for a rank that is gone.
        """
        own = self._torch.tensor((vote.level, vote.since, vote.own_s), dtype=self._torch.float64)
        self._distributed.all_gather(self._rows, own, group=self._group)
        levels, steps, times = self._all.T.tolist()
        return Vote(max(levels), min(steps), median_low(times))


def ranks() -> int:
    """Return how many ranks torch.distributed has; 1 without a process group."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())
