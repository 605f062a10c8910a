"""Clocks: rows have monotonic times; sealing computes wall times from anchors. Also the kernel's clock state.

An anchor is a reading of both clocks at the same moment. Wall time is interpolated between two anchors, and follows the
monotonic clock after the last one. If the wall clock is set while the process runs, the step is subtracted from later
readings, so that durations stay correct. Slews and small corrections are kept. After a backward correction, wall time
runs at half speed until it has caught up, so that no event moves before an earlier event of the process.
"""

import ctypes
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ranklake.segments.segment import ClockReading

if TYPE_CHECKING:
    import numpy as np

    Times = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


Anchor = tuple[int, int]  # monotonic ns, wall ns since 1970
_LEAST_STEP_NS: Final = 10**9
_MOST_SLEW: Final = 0.1
"""Largest slew as a share of time; chrony's `maxslewrate` is 83,333 ppm."""
_NEVER_SET_NS: Final = 946_684_800 * 10**9
"""A wall clock before the year 2000 was not set yet; its first setting is kept instead of subtracted."""


def read_anchor() -> Anchor:
    """Read both clocks at nearly the same moment: the best of three tries, well under 1 µs apart when idle."""
    tries = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        tries.append((after - before, (before + after) // 2, wall))
    _, mono, wall = min(tries)
    return mono, wall


def step_between(before: Anchor, after: Anchor, asleep_ns: int = 0) -> int:
    """Nanoseconds by which the wall clock was set between two anchors; 0 for steps below a second.

    Parameters
    ----------
    asleep_ns
        Time for which the machine was suspended in between, which the monotonic clock does not count.

    >>> step_between((0, 10**18), (8 * 10**9, 10**18 + 3_608 * 10**9)) // 10**9
    3600
    """
    passed_ns = after[0] - before[0]
    step_ns = after[1] - before[1] - passed_ns - asleep_ns
    return step_ns if abs(step_ns) > _LEAST_STEP_NS + _MOST_SLEW * passed_ns else 0


def asleep_between(before: ClockReading | None, after: ClockReading | None) -> int:
    """Nanoseconds for which the machine was suspended between two readings; 0 if unknown."""
    if before is None or after is None or before.suspended_ns is None or after.suspended_ns is None:
        return 0
    return max(after.suspended_ns - before.suspended_ns, 0)


def straighten(anchors: Iterable[Anchor], readings: Mapping[int, ClockReading] | None = None) -> list[Anchor]:
    """Return anchors in monotonic order, without steps of the wall clock and never slower than half of real time.

    An anchor's result depends only on it and on earlier anchors, so sealing again with more anchors gives the same
    times. `readings` are the kernel's clock states by the anchors' monotonic time.
    """
    by_time = readings or {}
    straight: list[Anchor] = []
    shift_ns = 0
    before: Anchor | None = None
    for anchor in sorted(set(anchors)):
        mono, wall = anchor
        if before is None:
            straight.append(anchor)
        elif mono > before[0]:
            last_mono, last_wall = straight[-1]
            if last_wall >= _NEVER_SET_NS:
                shift_ns += step_between(before, anchor, asleep_between(by_time.get(before[0]), by_time.get(mono)))
            straight.append((mono, max(wall - shift_ns, last_wall + (mono - last_mono) // 2)))
        else:
            continue
        before = anchor
    return straight


def bracket(straight: Sequence[Anchor], first_ns: int, last_ns: int) -> list[Anchor]:
    """Return the anchors that determine wall times from `first_ns` to `last_ns`.

    They reach from the last anchor at or before the first time to the first anchor at or after the last time, if these
    exist.
    """
    begin = max((index for index, (mono, _) in enumerate(straight) if mono <= first_ns), default=0)
    end = min((index for index, (mono, _) in enumerate(straight) if mono >= last_ns), default=len(straight) - 1)
    return list(straight[begin : end + 1])


def wall_ns(mono_ns: "Times", straight: Sequence[Anchor]) -> "Times":
    """Return wall times (ns since 1970) of monotonic times, as int64 of the same shape. Needs at least one anchor."""
    import numpy as np  # not at the top: recording must not import numpy; sealing has already

    monos = np.array([mono for mono, _ in straight], np.int64)
    walls = np.array([wall for _, wall in straight], np.int64)
    index = np.clip(np.searchsorted(monos, mono_ns, side="right") - 1, 0, len(monos) - 1)
    since = mono_ns - monos[index]
    times: Times = walls[index] + since
    if len(monos) > 1:
        # int64 differences are exact to the ns; only the offset within an interval is computed in float.
        pace = np.append(np.diff(walls) / np.diff(monos), 1.0)[index]
        pace[since < 0] = 1.0
        times = walls[index] + np.rint(since * pace).astype(np.int64)
    return times


_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC
_NANOSECONDS: Final = 0x2000  # STA_NANO: the offset is in ns, not in µs
_FAILED: Final = -1

_long, _int = ctypes.c_long, ctypes.c_int


class _Timex(ctypes.Structure):
    """The first fields of struct timex of adjtimex(2); the kernel writes 208 bytes."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", _long),
        ("freq", _long),
        ("maxerror", _long),
        ("esterror", _long),
        ("status", _int),
        ("rest", ctypes.c_char * 208),
    )


_adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)  # on Linux


def read_clock(mono_ns: int) -> ClockReading:
    """Return the kernel's clock state now, labelled with the monotonic time of its anchor. Never raises."""
    timex = _Timex()  # modes 0: only reads, and needs no privilege
    if _adjtimex is None or _adjtimex(ctypes.byref(timex)) == _FAILED:  # a container's seccomp filter may forbid it
        return ClockReading(mono_ns, suspended_ns=_suspended_ns())
    return ClockReading(
        mono_ns,
        offset_ns=timex.offset if timex.status & _NANOSECONDS else timex.offset * 1000,
        max_error_ns=timex.maxerror * 1000,
        est_error_ns=timex.esterror * 1000,
        synchronised=0 if timex.status & _UNSYNCHRONISED else 1,
        suspended_ns=_suspended_ns(),
    )


def _suspended_ns() -> int | None:
    """Return how long the machine was suspended since boot, rounded to ms; None if no clock reports it."""
    try:
        before = time.monotonic_ns()
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - before) // 1_000_000 * 1_000_000
    except (AttributeError, OSError):
        return None
