"""Budget: how much local disk a process may use while the store is unreachable, and which rows are reduced first.

Slot files are created at their full size, so usage is known when a file is created. Each lane may create files until
the process has used the lane's share of the budget. The rest is reserved for rows that are never dropped: steps, runs
and events.
"""

import os
from pathlib import Path
from typing import Final

from ranklake.capture.common.layouts import SLOT_LANES, Layout
from ranklake.capture.spool.eviction import OnDelete, evict
from ranklake.capture.spool.stream import Stream

SAMPLES: Final = ("gpu_samples", "host_samples")
SHARES: Final = {
    **dict.fromkeys(SAMPLES, 0.6),
    "scalars": 0.7,
    "rows": 0.7,
    "spans": 0.8,
    "histograms": 0.85,
    "intervals": 0.9,
}
"""Shares of the budget by lane; other lanes may use all of it."""
EVICTABLE: Final = ((("scalars", *SAMPLES), "scalars"), (("distributions",), "histograms"), (("spans",), "spans"))
"""Tables whose oldest segments may be evicted, and the lane whose share triggers it; in order of eviction."""

_FILES: Final = 32  # files that must fit into a budget: two for each of six lanes, and some that wait for sealing
_MARGIN_FILES: Final = 4  # an open file and a spare of both lanes of values
_LEAST_FILE_BYTES: Final = 1 << 14
_ROOMY_BYTES: Final = 3 << 29  # with less free, samples (0.6 of 2 GiB) may reach their share before the next check


class Budget:
    """The disk budget of one process.

    Parameters
    ----------
    limit_bytes
        0 for no limit.
    evicts
        Whether old segments are evicted for new rows. Samples, whose share is otherwise the smallest, then have the
        share of values, and the oldest segments of both are evicted.

    Attributes
    ----------
    used_bytes
        Bytes in use at the last `look`, plus files created since.
    """

    def __init__(self, limit_bytes: int, *, evicts: bool = False) -> None:
        self.limit_bytes, self._evicts = limit_bytes, evicts
        self.used_bytes = 0
        self._created_bytes = 0

    def file_bytes(self, layout: Layout) -> int:
        """Return the size of a lane's files in bytes."""
        if not self.limit_bytes:
            return layout.file_bytes
        return min(layout.file_bytes, max(_LEAST_FILE_BYTES, self.limit_bytes // _FILES))

    def has_room(self, lane: str, size_bytes: int) -> bool:
        """Whether a lane may create a file of this size."""
        share = SHARES.get("scalars" if self._evicts and lane in SAMPLES else lane, 1.0)
        return not self.limit_bytes or self.used_bytes + size_bytes <= share * self.limit_bytes

    def add_file(self, size_bytes: int) -> None:
        """Count a new file."""
        self._created_bytes += size_bytes
        self.used_bytes += size_bytes

    def look(self, *folders: Path) -> None:
        """Measure the usage of folders. Raises `OSError`.

        Files created meanwhile may be counted twice until the next call, but are never missed.
        """
        created_before = self._created_bytes
        used = 0
        for folder in folders:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        used += entry.stat(follow_symlinks=False).st_size
                    except FileNotFoundError:
                        continue
        self.used_bytes = used + self._created_bytes - created_before

    @property
    def is_roomy(self) -> bool:
        """Whether enough was free at the last `look` for several seconds at any rate of rows."""
        return not self.limit_bytes or self.limit_bytes - self.used_bytes >= _ROOMY_BYTES

    def excess_bytes(self, layout: Layout) -> int:
        """Return how many bytes a lane lacks for its next files; 0 if there is enough space."""
        if not self.limit_bytes:
            return 0
        wanted = self.used_bytes + _MARGIN_FILES * self.file_bytes(layout)
        return max(0, wanted - int(SHARES[layout.lane] * self.limit_bytes))

    def after_fork(self) -> None:
        """Start with an unused budget in a forked child."""
        self.used_bytes = 0


def make_room(budget: Budget, stream: Stream, on_delete: OnDelete) -> None:
    """Evict the oldest segments of lanes that lack space; `on_delete` gets each segment. Raises `OSError`."""
    for tables, lane in EVICTABLE:
        excess = budget.excess_bytes(SLOT_LANES[lane])
        if excess:
            evict(stream.folder, tables, excess, stream.note, on_delete)
            budget.look(stream.folder)
