"""Device memory: what torch's allocator holds of a GPU, in the row of about one step a second.

A look takes some tens of microseconds and waits for nothing. torch's peaks are left alone: they are the user's to
reset.
"""

import sys
from typing import Any, Final

from ranklake.capture.common.monotonic import now
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.device_phases import cuda_in_use
from ranklake.capture.steps.progress import OpenStep

_EVERY_NS: Final = 10**9


class DeviceMemory:
    """Looks at the memory of the device that the process computes on, as steps end."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._next_ns = 0

    def look(self, step: OpenStep, _: int, is_failed: bool) -> None:
        """Put the allocator's bytes into a step's row, about once a second."""
        at = now()
        if at < self._next_ns or is_failed or not cuda_in_use():
            return
        self._next_ns = at + _EVERY_NS
        with self._sink.guarded("looking at the device's memory"):
            torch: Any = sys.modules["torch"]
            stats = torch.cuda.memory_stats()
            allocated, reserved = (stats.get(f"{part}_bytes.all.current") for part in ("allocated", "reserved"))
            if allocated is not None and reserved is not None:  # a user's own allocator may report neither
                step.put_memory(allocated, reserved)
