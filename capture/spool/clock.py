"""Clocks: monotonic while training, wall time computed when sealing.

An anchor is a pair of both clocks read at one moment. Between two anchors time is interpolated, beyond the last it goes
on at the monotonic clock's pace. What an anchor says of a wall clock that was set back is paid back at half speed,
so that no event moves before an earlier one of the same process.
"""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    Times = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

Anchor = tuple[int, int]  # monotonic ns, wall ns since 1970


def read_anchor() -> Anchor:
    """Read both clocks as nearly at one moment as three tries allow (well under a microsecond when idle)."""
    tries = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        tries.append((after - before, (before + after) // 2, wall))
    _, mono, wall = min(tries)
    return mono, wall


def straighten(anchors: Iterable[Anchor]) -> list[Anchor]:
    """Return anchors in monotonic order whose wall time never runs slower than half of real time.

    What an anchor becomes depends on itself and earlier ones only: sealing again with more anchors gives the same
    times.
    """
    straight: list[Anchor] = []
    for mono, wall in sorted(set(anchors)):
        if not straight:
            straight.append((mono, wall))
            continue
        last_mono, last_wall = straight[-1]
        if mono > last_mono:
            straight.append((mono, max(wall, last_wall + (mono - last_mono) // 2)))
    return straight


def bracket(straight: Sequence[Anchor], first_ns: int, last_ns: int) -> list[Anchor]:
    """Return the anchors that times from `first_ns` to `last_ns` are computed from.

    These are the last one at or before the first time to the first one at or after the last time, where there are such.
    """
    begin = max((index for index, (mono, _) in enumerate(straight) if mono <= first_ns), default=0)
    end = min((index for index, (mono, _) in enumerate(straight) if mono >= last_ns), default=len(straight) - 1)
    return list(straight[begin : end + 1])


def wall_ns(mono_ns: "Times", straight: Sequence[Anchor]) -> "Times":
    """Return wall times (ns since 1970) of monotonic times, int64 arrays of one shape; needs one anchor at least."""
    import numpy as np  # recording needs no numpy, sealing has it already

    monos = np.array([mono for mono, _ in straight], np.int64)
    walls = np.array([wall for _, wall in straight], np.int64)
    index = np.clip(np.searchsorted(monos, mono_ns, side="right") - 1, 0, len(monos) - 1)
    since = mono_ns - monos[index]
    times: Times = walls[index] + since
    if len(monos) > 1:
        # Differences of int64 keep nanoseconds; only the part within an interval passes through a float.
        pace = np.append(np.diff(walls) / np.diff(monos), 1.0)[index]
        pace[since < 0] = 1.0
        times = walls[index] + np.rint(since * pace).astype(np.int64)
    return times
