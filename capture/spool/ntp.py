"""Ntp: what the kernel knows of its wall clock's error, and how long the machine has been suspended."""

import ctypes
import time
from typing import Final

from ranklake.segments.segment import ClockReading

_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC
_NANOSECONDS: Final = 0x2000  # STA_NANO: the offset is in ns, not in µs
_FAILED: Final = -1

_long, _int = ctypes.c_long, ctypes.c_int


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), as far as it is read; the kernel writes 208 bytes."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", _long),
        ("freq", _long),
        ("maxerror", _long),
        ("esterror", _long),
        ("status", _int),
        ("rest", ctypes.c_char * 208),
    )


_adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)  # Linux has it


def read_clock(mono_ns: int) -> ClockReading:
    """Return what the kernel says now, under the monotonic time of the anchor that it belongs to. Never raises."""
    timex = _Timex()  # modes 0: reads, changes nothing, needs no right
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
    """Return how long this boot's monotonic clock has stood still, to the ms; None where no clock tells."""
    try:
        before = time.monotonic_ns()
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - before) // 1_000_000 * 1_000_000
    except (AttributeError, OSError):
        return None
